"""Secrets as the log may hold them: AES-256-GCM under a key that lies outside the store.

Sealed text is base64 of a nonce of 12 bytes and what AES-GCM makes of the secret. It opens only for the name
that it was sealed for, so that no record can give one user another's secret. The nonce is the caller's, from
the system's randomness: the same key must never see one twice.
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
    """Return what names a key to those who have it, and tells others nothing of it; "" of no key."""
    return blake2b(key, digest_size=8, person=b"tidewheel key id").hexdigest() if key else ""


def seal(key: bytes, name: str, secret: bytes, nonce: bytes) -> str:
    """Return a user's secret, so that only the key opens it."""
    return b64encode(nonce + AESGCM(key).encrypt(nonce, secret, name.encode())).decode()


def unseal(key: bytes, name: str, sealed: str) -> bytes | None:
    """Return the secret; None when it was sealed with another key, for another name, or is damaged."""
    try:
        whole = b64decode(sealed, validate=True)
        return AESGCM(key).decrypt(whole[:NONCE_BYTES], whole[NONCE_BYTES:], name.encode())
    except (InvalidTag, ValueError):
        return None
