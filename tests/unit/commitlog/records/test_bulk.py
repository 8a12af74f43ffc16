"""Tests that NumPy reads and writes the same record fields as the codec."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.records import bulk, record
from commitlog.records.record import Record

HOSTS = {"IPv4": ("10.1.2.3", 4001), "IPv6": ("2001:db8::7", 4001)}


@pytest.mark.parametrize("first", HOSTS)
@pytest.mark.parametrize("second", HOSTS)
def test_store_times_are_read_behind_hosts_of_either_kind(first: str, second: str) -> None:
    made = [
        record.encode(
            Record(topic="t", body=b"b" * number, born_host=HOSTS[kind], store_ms=1_763_700_000_000 + number)
        )
        for number, kind in enumerate((first, second, first))
    ]
    starts = np.cumsum([0, *map(len, made[:-1])])
    times = bulk.store_times_ms(bytearray(b"".join(made)), starts)
    assert times.tolist() == [record.decode(one).store_ms for one in made]
    assert times.tolist() == [1_763_700_000_000 + number for number in range(3)]


made = st.builds(
    Record,
    topic=st.sampled_from(["t", "a longer topic"]),
    body=st.binary(max_size=40),
    born_host=st.sampled_from([*HOSTS.values()]),
    store_ms=st.integers(0, 1 << 50),
)


@given(st.lists(st.tuples(made, st.none() | st.integers(0, 1 << 20)), min_size=1, max_size=6))
def test_each_record_is_held_to_its_own_crc(records: list[tuple[Record, int | None]]) -> None:
    """At most one bit of a record is flipped."""
    stored = []
    for one, bit in records:
        data = bytearray(record.encode(one))
        if bit is not None:
            data[bit // 8 % len(data)] ^= 1 << bit % 8
        stored.append(bytes(data))
    ends = np.cumsum([*map(len, stored)])
    sound = bulk.are_sound(bytearray(b"".join(stored)), ends - [*map(len, stored)], ends)
    assert sound.tolist() == [record.crc_holds(one) for one in stored]
    assert sound.tolist() == [bit is None for _, bit in records]


@given(st.lists(st.tuples(made, st.integers(0, 1 << 40), st.integers(0, 1 << 40)), min_size=1, max_size=6))
def test_stamped_records_are_those_that_the_codec_makes_at_their_places(
    places: list[tuple[Record, int, int]],
) -> None:
    stored = [record.encode(one) for one, _, _ in places]
    ends = np.cumsum([*map(len, stored)])
    content = bytearray(b"".join(stored))
    physical, queue = (np.array([row[at] for row in places], np.int64) for at in (1, 2))
    bulk.stamp(content, ends - [*map(len, stored)], ends, physical, queue, 1_763_700_000_000)
    expected = [
        replace(one, physical_offset=at, queue_offset=place, store_ms=1_763_700_000_000)
        for one, at, place in places
    ]
    assert bytes(content) == b"".join(map(record.encode, expected))
