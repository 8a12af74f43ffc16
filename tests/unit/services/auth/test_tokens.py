"""The text of a token, its id in it, and what is kept of it."""

from __future__ import annotations

from hashlib import sha256

import pytest

from services.auth.tokens import ID_BYTES, SECRET_BYTES, Token, digest_of, id_of, id_within, text_of

RANDOM = bytes(range(ID_BYTES + SECRET_BYTES))
TEXT = "tw_000102030405_BgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCU"


def test_a_text_has_the_id_in_the_clear_and_all_random_bytes() -> None:
    assert text_of(RANDOM) == TEXT
    assert id_of(TEXT) == "000102030405"
    assert digest_of(TEXT) == sha256(TEXT.encode()).hexdigest()


@pytest.mark.parametrize(
    "wrong", ["", "x", TEXT[:-1], TEXT + "x", TEXT + "\n", f" {TEXT}", TEXT.upper(), "\udcff"]
)
def test_what_is_no_token_has_no_id(wrong: str) -> None:
    assert id_of(wrong) == ""


def test_a_token_is_found_within_a_url_whole_or_cut() -> None:
    assert id_within(f"/api/topics?a=b&key={TEXT}") == "000102030405"
    assert id_within(f"/api/auth/tokens/{TEXT[:32]}") == "000102030405"
    for other in ("/api/auth/tokens/000102030405", "/api/topics/tw_000102030405_orders"):
        assert id_within(other) == ""


def test_a_token_expires_at_its_time_or_never() -> None:
    one = Token("1", "u", "d", 1, 10)
    assert [one.has_expired(now_ms) for now_ms in (9, 10, 11)] == [False, True, True]
    assert not Token("1", "u", "d", 1, None).has_expired(1 << 60)
