"""Tests the record codec against bytes that were created or confirmed by RocketMQ code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.errors import StoreDamaged
from commitlog.records import record as codec
from commitlog.records.record import Record
from tidewheel.errors import PropertiesTooLarge

VECTORS = json.loads((Path(__file__).parents[3] / "vectors" / "rocketmq.json").read_text())
RECORDS = [vector for vector in VECTORS if vector["kind"] == "commitlog_record"]


def record_of(vector: dict[str, Any]) -> Record:
    given_fields = vector["input"]
    pairs = given_fields["properties"]
    return Record(
        topic=given_fields["topic"],
        body=bytes.fromhex(given_fields["body_hex"]),
        properties="".join(f"{name}\x01{value}\x02" for name, value in pairs).encode(),
        queue_id=given_fields["queue_id"],
        queue_offset=given_fields["queue_offset"],
        physical_offset=given_fields["phy"],
        flag=given_fields["flag"],
        sys_flag=given_fields["sysflag"],
        born_ms=given_fields["born_ts"],
        born_host=tuple(given_fields["born"]),
        store_ms=given_fields["store_ts"],
        store_host=tuple(given_fields["store"]),
        reconsume_times=given_fields["reconsume"],
        half_offset=given_fields["prep_off"],
    )


@pytest.mark.parametrize("vector", RECORDS, ids=lambda vector: vector["name"])
def test_encodes_and_decodes_the_golden_bytes(vector: dict[str, Any]) -> None:
    record = record_of(vector)
    golden = bytes.fromhex(vector["hex"])
    with_crc = vector["input"]["append_crc"]
    assert codec.encode(record, with_crc=with_crc) == golden
    assert codec.encode(codec.decode(golden), with_crc=with_crc) == golden
    assert codec.crc_holds(golden) is with_crc


def test_blank_record_matches_the_golden_bytes() -> None:
    vector = next(vector for vector in VECTORS if vector["kind"] == "blank_record")
    assert codec.blank(vector["input"]["remaining"]).hex() == vector["hex"]


text = st.text(
    st.characters(blacklist_characters="\x01\x02", blacklist_categories=["Cs"]), min_size=1, max_size=20
)
records = st.builds(
    Record,
    topic=st.text("abcXYZ%_-09", min_size=1, max_size=200),
    body=st.binary(max_size=300),
    properties=st.dictionaries(text, text, max_size=4).map(
        lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs.items()).encode()
    ),
    queue_id=st.integers(0, 2**31 - 1),
    queue_offset=st.integers(0, 2**62),
    physical_offset=st.integers(0, 2**62),
    sys_flag=st.sampled_from([0, 1, 8, 12]),
    born_ms=st.integers(0, 2**45),
    born_host=st.tuples(st.sampled_from(["10.0.0.1", "fe80::1", "2001:db8::9"]), st.integers(0, 65535)),
    store_ms=st.integers(0, 2**45),
    half_offset=st.integers(0, 2**62),
)


@given(records)
def test_what_is_written_is_read_back(record: Record) -> None:
    stored = codec.encode(record)
    assert codec.crc_holds(stored)
    assert codec.encode(codec.decode(stored)) == stored
    assert codec.decode(b"junk" + stored, 4).body == record.body


@given(records, st.data())
def test_any_flipped_bit_is_seen(record: Record, data: st.DataObject) -> None:
    stored = bytearray(codec.encode(record))
    bit = data.draw(st.integers(0, len(stored) * 8 - 1))
    stored[bit // 8] ^= 1 << (bit % 8)
    assert not codec.crc_holds(bytes(stored))


@given(records, st.data())
def test_a_cut_record_is_refused(record: Record, data: st.DataObject) -> None:
    stored = codec.encode(record)
    kept = data.draw(st.integers(0, len(stored) - 1))
    with pytest.raises(StoreDamaged):
        codec.decode(stored[:kept])


def test_properties_that_the_format_cannot_hold_are_refused() -> None:
    room = 0xFFFF - codec.CRC_BYTES - len(b"a\x01\x02")
    held = Record("t", b"x", b"a\x01" + b"x" * room + b"\x02")
    assert codec.decode(codec.encode(held)).properties == held.properties
    with pytest.raises(PropertiesTooLarge, match=r"65536 bytes, a record holds 65535"):
        codec.encode(Record("t", b"x", b"a\x01" + b"x" * (room + 1) + b"\x02"))
