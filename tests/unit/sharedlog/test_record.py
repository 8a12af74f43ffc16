"""Tests the encoding and decoding of shared log records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharedlog.record import (
    HEAD_BYTES,
    ID_BYTES,
    CorruptRecord,
    ForeignRecord,
    Kind,
    SharedRecord,
    decode,
    encode,
    encode_facts,
    extend_chain,
)

CLUSTER = bytes(range(16))
U64 = st.integers(0, (1 << 64) - 1)
RECORDS = st.builds(
    SharedRecord,
    cluster=st.just(CLUSTER),
    kind=st.sampled_from(Kind),
    epoch=U64,
    holder=st.binary(min_size=ID_BYTES, max_size=ID_BYTES),
    start=U64,
    chain=U64,
    body=st.binary(max_size=300),
    zeros=U64,
    is_last=st.booleans(),
)


@given(RECORDS)
def test_what_is_written_is_read(one: SharedRecord) -> None:
    assert decode(encode(one), CLUSTER) == one
    assert len(encode(one)) == HEAD_BYTES + len(one.body)


@given(RECORDS, st.data())
def test_any_other_bit_is_found(one: SharedRecord, data: st.DataObject) -> None:
    stored = bytearray(encode(one))
    bit = data.draw(st.integers(0, 8 * len(stored) - 1))
    stored[bit // 8] ^= 1 << bit % 8
    with pytest.raises(ForeignRecord if bit < 20 * 8 else CorruptRecord):
        decode(bytes(stored), CLUSTER)


def test_the_bytes_are_these() -> None:
    one = SharedRecord(CLUSTER, Kind.BYTES, 3, b"h" * 16, 4096, 0xABCD, b"body", zeros=8, is_last=False)
    stored = encode(one)
    assert stored[:22] == b"TWSL" + CLUSTER + b"\x03\x01"
    assert stored[22:46] == (3).to_bytes(8, "big") + b"h" * 16
    assert stored[46:71] == b"".join(one.to_bytes(8, "big") for one in (4096, 8, 0xABCD)) + b"\0"
    assert stored[71:75] == (4).to_bytes(4, "big")
    assert stored[79:] == b"body"


@pytest.mark.parametrize("stored", [b"", b"a line from a console producer", b"TWSL" + bytes(90)])
def test_what_nobody_of_the_cluster_wrote_is_foreign(stored: bytes) -> None:
    with pytest.raises(ForeignRecord):
        decode(stored, CLUSTER)


def test_a_record_cut_short_is_garbled() -> None:
    stored = encode(SharedRecord(CLUSTER, Kind.BEAT, 1, b"h" * 16, 0, 0, encode_facts({"clock_ms": 5})))
    with pytest.raises(CorruptRecord):
        decode(stored[:-1], CLUSTER)


@given(U64, U64, st.binary(max_size=50), st.integers(0, 100))
def test_a_chain_names_its_history(chain: int, start: int, body: bytes, zeros: int) -> None:
    found = extend_chain(chain, start, body, zeros)
    assert found == extend_chain(chain, start, body, zeros)
    assert found != extend_chain(chain, start, body, zeros + 1)
    assert found != extend_chain(chain, start, body + b"\0", zeros)
    assert found != extend_chain((chain + 1) % (1 << 64), start, body, zeros)


def test_facts_are_said_in_one_way() -> None:
    assert encode_facts({"b": 1, "a": [2]}) == b'{"a":[2],"b":1}' == encode_facts({"a": [2], "b": 1})
