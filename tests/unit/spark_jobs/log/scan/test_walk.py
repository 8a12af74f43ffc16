"""Damage, torn tails and slices: what is lost is named, and nothing else is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commitlog import layout
from commitlog.disk.real_disk import RealDisk
from commitlog.log import imported
from commitlog.records import record as codec
from commitlog.records.record import Record
from spark_jobs.log.scan import walk
from spark_jobs.log.scan.decode import Wanted
from spark_jobs.log.scan.walk import Check

Row = dict[str, Any]
ReadLog = Callable[..., list[Row]]
WriteLog = Callable[..., Path]
COUNT = 40
BODY_BYTES = 100


def some_records(count: int = COUNT) -> list[Record]:
    return [
        Record(topic="t", body=bytes([number]) * BODY_BYTES, queue_offset=number) for number in range(count)
    ]


def segments_of(store: Path) -> list[Path]:
    return sorted((store / layout.COMMITLOG).iterdir())


def flip(path: Path, position: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def numbers(rows: list[Row]) -> list[int]:
    return [row["queue_offset"] for row in rows if row["damage"] is None]


def damaged(rows: list[Row]) -> list[tuple[int, int]]:
    return [
        (row["physical_offset"], row["physical_offset"] + row["record_bytes"])
        for row in rows
        if row["damage"]
    ]


@pytest.mark.parametrize("slice_bytes", [300, 1000, 1 << 20])
def test_every_record_is_read_once_across_segments_and_slices(
    write_log: WriteLog, read_log: ReadLog, slice_bytes: int
) -> None:
    store = write_log(some_records(), segment_bytes=1024)
    assert len(segments_of(store)) > 5
    rows = read_log(store, slice_bytes=slice_bytes)
    assert numbers(rows) == list(range(COUNT))
    assert damaged(rows) == []


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_flipped_bit_costs_one_record_and_is_named(
    write_log: WriteLog, read_log: ReadLog, data: st.DataObject
) -> None:
    written = some_records(8)
    store = write_log(written)
    hit = data.draw(st.sampled_from(written), label="record")
    length = len(codec.encode(hit))
    place = data.draw(st.integers(0, length * 8 - 1), label="bit")
    flip(segments_of(store)[0], hit.physical_offset + place // 8, place % 8)
    rows = read_log(store, slice_bytes=data.draw(st.sampled_from([100, 333, 1 << 20]), label="slice"))
    assert numbers(rows) == [record.queue_offset for record in written if record is not hit]
    assert damaged(rows) == [(hit.physical_offset, hit.physical_offset + length)]


def test_damage_that_starts_where_a_slice_starts_is_named(write_log: WriteLog, read_log: ReadLog) -> None:
    written = some_records(6)
    length = len(codec.encode(written[0]))
    store = write_log(written)
    flip(segments_of(store)[0], 3 * length + 50)
    rows = read_log(store, slice_bytes=3 * length)
    assert damaged(rows) == [(3 * length, 4 * length)]
    assert numbers(rows) == [0, 1, 2, 4, 5]


def test_damage_behind_a_full_chunk_is_named(
    write_log: WriteLog, read_log: ReadLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk, "RECORDS_PER_CHUNK", 3)
    written = some_records(7)
    length = len(codec.encode(written[0]))
    store = write_log(written)
    flip(segments_of(store)[0], 3 * length)
    for slice_bytes in (3 * length, 1 << 20):
        rows = read_log(store, slice_bytes=slice_bytes)
        assert damaged(rows) == [(3 * length, 4 * length)]
        assert numbers(rows) == [0, 1, 2, 4, 5, 6]


def test_reading_stops_at_the_published_durable_offset(write_log: WriteLog, read_log: ReadLog) -> None:
    written = some_records(5)
    store = write_log(written)
    layout.reset_durable(RealDisk(store), written[3].physical_offset)
    rows = read_log(store)
    assert numbers(rows) == [0, 1, 2]
    assert damaged(rows) == []


def test_a_torn_tail_of_a_store_without_durable_offset_is_no_damage(
    write_log: WriteLog, read_log: ReadLog
) -> None:
    written = some_records(5)
    store = write_log(written)
    (store / layout.DURABLE).unlink()
    segment = segments_of(store)[0]
    data = bytearray(segment.read_bytes())
    torn_at = written[4].physical_offset + 60
    data[torn_at:] = bytes(len(data) - torn_at)
    segment.write_bytes(data)
    rows = read_log(store)
    assert numbers(rows) == [0, 1, 2, 3]
    assert damaged(rows) == []


def test_a_torn_tail_below_the_durable_offset_is_damage(write_log: WriteLog, read_log: ReadLog) -> None:
    written = some_records(5)
    store = write_log(written)
    segment = segments_of(store)[0]
    data = bytearray(segment.read_bytes())
    data[written[4].physical_offset :] = bytes(len(data) - written[4].physical_offset)
    segment.write_bytes(data)
    end = written[4].physical_offset + len(codec.encode(written[4]))
    assert damaged(read_log(store)) == [(written[4].physical_offset, end)]


def test_a_missing_segment_is_damage(write_log: WriteLog, read_log: ReadLog) -> None:
    store = write_log(some_records(), segment_bytes=1024)
    gone = segments_of(store)[2]
    gone.unlink()
    rows = read_log(store)
    assert damaged(rows) == [(2048, 3072)]
    assert len(numbers(rows)) < COUNT


def test_a_copy_of_a_record_inside_a_body_is_not_a_record(write_log: WriteLog, read_log: ReadLog) -> None:
    inner = codec.encode(Record(topic="t", body=b"inner", queue_offset=99))
    store = write_log([Record(topic="t", body=inner, queue_offset=number) for number in range(4)])
    assert numbers(read_log(store, slice_bytes=64)) == [0, 1, 2, 3]


def test_without_verification_a_flipped_body_goes_unseen(write_log: WriteLog, read_log: ReadLog) -> None:
    written = some_records(3)
    store = write_log(written)
    flip(segments_of(store)[0], written[1].physical_offset + 100)
    assert numbers(read_log(store, Wanted(check=Check.NONE))) == [0, 1, 2]
    assert numbers(read_log(store, Wanted(check=Check.BODY))) == [0, 2]
    assert numbers(read_log(store, Wanted(check=Check.RECORD))) == [0, 2]


@pytest.mark.parametrize("slice_bytes", [100, 1 << 20])
def test_imported_records_may_lack_a_crc_and_our_own_may_not(
    tmp_path: Path, read_log: ReadLog, slice_bytes: int
) -> None:
    log, offsets = b"", []
    for record in some_records(5):
        record.physical_offset = len(log)
        offsets.append(len(log))
        log += codec.encode(record, with_crc=record.queue_offset == 3)
    disk = RealDisk(tmp_path)
    disk.write(layout.FORMAT, 0, b"tidewheel 1\n")
    disk.write(layout.segment_path(0), 0, log.ljust(4096, b"\0"))
    imported.write(disk, offsets[3])
    layout.reset_durable(disk, len(log))
    rows = read_log(tmp_path, slice_bytes=slice_bytes)
    assert numbers(rows) == [0, 1, 2, 3]
    assert damaged(rows) == [(offsets[4], len(log))]


@pytest.mark.parametrize("stretch_bytes", [300, 2000])
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_walking_abreast_finds_what_one_walker_finds(
    write_log: WriteLog, read_log: ReadLog, stretch_bytes: int, data: st.DataObject
) -> None:
    sizes = data.draw(st.lists(st.sampled_from([0, 60, 250, 900]), min_size=60, max_size=90), label="sizes")
    inner = codec.encode(Record(topic="t", body=b"inner", queue_offset=99))
    written = [
        Record(topic="t", body=inner[:size].ljust(size), queue_offset=number)
        for number, size in enumerate(sizes)
    ]
    store = write_log(written, segment_bytes=32 * 1024)
    hits = data.draw(st.sets(st.integers(0, len(sizes) - 1), max_size=3), label="damaged")
    for hit in hits:
        place = data.draw(st.integers(0, len(codec.encode(written[hit])) * 8 - 1), label="bit")
        segment, position = divmod(written[hit].physical_offset, 32 * 1024)
        flip(segments_of(store)[segment], position + place // 8, place % 8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walk, "_STRETCH_BYTES", stretch_bytes)
        patch.setattr(walk, "_ABREAST_BYTES", 12 * stretch_bytes)
        patch.setattr(walk, "_WALKERS_MIN", 2)
        abreast = read_log(store)
        patch.setattr(walk, "_WALKERS_MIN", 1 << 30)
        alone = read_log(store)
    assert abreast == alone
    assert numbers(abreast) == [number for number in range(len(sizes)) if number not in hits]
