"""What a TLS client offers to speak is read from its hello, and from nothing else."""

from __future__ import annotations

import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.front.client_hello import is_complete_record, parse_protocols


def hello(*protocols: str) -> bytes:
    """What Python's own TLS says first."""
    context, out = ssl.create_default_context(), ssl.MemoryBIO()
    context.set_alpn_protocols(list(protocols))
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost").do_handshake()
    return out.read()


@pytest.mark.parametrize("protocols", [["h2"], ["http/1.1", "h2"], ["foo"], []])
def test_what_a_hello_offers_is_read(protocols: list[str]) -> None:
    assert parse_protocols(hello(*protocols)) == [name.encode() for name in protocols]


def test_a_hello_is_whole_with_its_last_byte_and_cut_it_is_none() -> None:
    said = hello("h2")
    for end in range(len(said)):
        assert not is_complete_record(said[:end])
        assert parse_protocols(said[:end]) is None
    assert is_complete_record(said)


def test_what_can_be_no_record_is_not_waited_for() -> None:
    assert is_complete_record(b"\x16PRI * HTTP/2.0\r\n\r\n")
    assert parse_protocols(b"\x16PRI * HTTP/2.0\r\n\r\n") is None
    assert parse_protocols(b"\x16\x03\x01\x00\x05hello") is None


@given(st.integers(0, 600), st.binary(max_size=40))
def test_a_spoilt_hello_is_read_or_not_and_never_a_bug(place: int, spoilt: bytes) -> None:
    said = hello("h2")
    parse_protocols(said[:place] + spoilt + said[place + len(spoilt) :])
    parse_protocols(said[:5] + said[5:][:place] + spoilt)
