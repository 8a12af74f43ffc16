"""Only the key opens a sealed secret, and only for the name that it was sealed for."""

from __future__ import annotations

from base64 import b64decode, b64encode

from hypothesis import given
from hypothesis import strategies as st

from services.auth.vault import KEY_BYTES, NONCE_BYTES, id_of, seal, unseal

keys = st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES)
nonces = st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES)


@given(keys, st.text(), st.binary(), nonces)
def test_a_sealed_secret_comes_back(key: bytes, name: str, secret: bytes, nonce: bytes) -> None:
    assert unseal(key, name, seal(key, name, secret, nonce)) == secret


@given(keys, keys, nonces)
def test_another_key_or_name_opens_nothing(key: bytes, other: bytes, nonce: bytes) -> None:
    sealed = seal(key, "orders", b"a secret of some length", nonce)
    assert b"a secret" not in b64decode(sealed)
    assert unseal(key, "carts", sealed) is None
    assert (unseal(other, "orders", sealed) is None) == (key != other)


@given(st.text(max_size=80), st.binary(max_size=80))
def test_what_is_damaged_opens_nothing(text: str, some: bytes) -> None:
    key = bytes(KEY_BYTES)
    assert unseal(key, "orders", text) is None
    assert unseal(key, "orders", b64encode(some).decode()) is None


@given(keys, keys)
def test_a_key_has_an_id_that_does_not_show_it(key: bytes, other: bytes) -> None:
    assert (id_of(key) == id_of(other)) == (key == other)
    assert len(id_of(key)) == 16
    assert id_of(b"") == ""
