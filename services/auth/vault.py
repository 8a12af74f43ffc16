"""Encryption of secrets in the log: AES-256-GCM with a key that is not part of the log.

An encrypted text is the base64 encoding of a 12-byte nonce and the AES-GCM output. It can be decrypted only
for the name for which it was encrypted, so that a record cannot give one user the secret of another. The
caller provides a random nonce, which must never be used twice with the same key.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from hashlib import blake2b
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12


def id_of(key: bytes) -> str:
    """Return a non-secret identifier of a key, or an empty string for an empty key."""
    return blake2b(key, digest_size=8, person=b"tidewheel key id").hexdigest() if key else ""


def seal(key: bytes, name: str, secret: bytes, nonce: bytes) -> str:
    """Return the encrypted secret of a user."""
    return b64encode(nonce + AESGCM(key).encrypt(nonce, secret, name.encode())).decode()


def unseal(key: bytes, name: str, sealed: str) -> bytes | None:
    """Return the decrypted secret, or None if the key or the name differs, or the text is damaged."""
    try:
        whole = b64decode(sealed, validate=True)
        return AESGCM(key).decrypt(whole[:NONCE_BYTES], whole[NONCE_BYTES:], name.encode())
    except (InvalidTag, ValueError):
        return None
