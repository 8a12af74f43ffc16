"""The source's options mean one thing in batch and in a stream, or are refused with a sentence.

The readers are taken through Spark's steps without Spark; tests/spark has the same with a session.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition
from pyspark.sql.types import LongType, StructField, StructType

from commitlog import layout
from commitlog.log import keep
from commitlog.records.record import Record, encode
from spark_jobs.errors import StreamLost
from spark_jobs.source import LogReader, TidewheelSource
from tests.spark.streaming import Steps, Writer
from tidewheel.errors import ConfigurationError, UnknownChoice

START_MS = 1_763_700_000_000
COUNT = 10
SCHEMA = StructType([StructField("queue_offset", LongType())])
Read = Callable[..., list[int]]


def at(minute: float) -> int:
    return START_MS + int(minute * 60_000)


def iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat().replace("+00:00", "Z")


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    """A log of ten records, one every six seconds: closer than the margin for clocks that were set back."""
    written = Writer(tmp_path / "store")
    for number in range(COUNT):
        written.append(1, store_ms=at(number / 10))
    return written


def batch(store: Path, **options: object) -> list[int]:
    """Return what a batch reads, planned as Spark plans it: no part at all is one that is nothing."""
    given = CaseInsensitiveDict(path=str(store)) | {name: str(one) for name, one in options.items()}
    reader = LogReader(given, ("queue_offset",))
    parts = reader.partitions() or [InputPartition(None)]
    rows = [row for part in parts for found in reader.read(part) for row in found.to_pylist()]
    return sorted(row["queue_offset"] for row in rows)


def stream(store: Path, **options: object) -> list[int]:
    """Return what a new stream reads."""
    query = Steps()
    query.drain(store, **options)
    return query.arrived()


both = pytest.mark.parametrize("read", [batch, stream])


def offset_of(store: Path, number: int) -> int:
    query = Steps()
    query.drain(store)
    return next(int(row.physical_offset) for row in query.rows() if row.queue_offset == number)


@both
def test_from_a_time_gives_the_rows_of_that_time_on(writer: Writer, read: Read) -> None:
    expected = list(range(5, COUNT))
    assert read(writer.store, **{"from": iso(at(0.5))}) == expected
    assert read(writer.store, **{"from": iso(at(0.5)).replace("Z", "+00:00")}) == expected
    assert read(writer.store, startingTimestamp=at(0.5)) == expected
    assert read(writer.store, startingtimestamp=at(0.5) - 5999) == expected
    assert read(writer.store, **{"from": iso(at(0.5) + 1)}) == expected[1:]
    assert read(writer.store, **{"from": iso(at(0.4)).replace("Z", ".000001Z")}) == expected


@both
def test_from_a_log_offset_gives_the_records_that_start_there_or_behind(writer: Writer, read: Read) -> None:
    offset = offset_of(writer.store, 4)
    assert read(writer.store, **{"from": offset}) == list(range(4, COUNT))
    assert read(writer.store, **{"from": offset + 1}) == list(range(5, COUNT))


def test_a_stream_from_a_time_leaves_out_older_rows_that_come_later(writer: Writer) -> None:
    query = Steps()
    query.drain(writer.store, **{"from": iso(at(0.5))})
    writer.append(2, store_ms=at(0.4))  # the clock was set back
    writer.append(2, store_ms=at(2))
    query.drain(writer.store, **{"from": iso(at(0.5))})
    query.drain(writer.store)  # where it began is in the checkpoint
    writer.append(1, store_ms=at(0.4))
    writer.append(1, store_ms=at(3))
    query.drain(writer.store)
    assert query.arrived() == [*range(5, COUNT), 12, 13, 15]
    assert batch(writer.store, **{"from": iso(at(0.5))}) == query.arrived()


@pytest.mark.parametrize("is_time", [False, True])
def test_a_stream_from_behind_the_end_begins_there(writer: Writer, is_time: bool) -> None:
    place = iso(at(5)) if is_time else str(writer.log.durable_offset + 1500)
    query = Steps()
    for _ in range(2):
        query.drain(writer.store, **{"from": place})
        assert query.arrived() == []
    writer.append(4, store_ms=at(4))
    query.drain(writer.store, **{"from": place})
    writer.append(20, store_ms=at(6))
    query.drain(writer.store, **{"from": place}, max_bytes_per_trigger=700)
    assert query.arrived() == batch(writer.store, **{"from": place})
    assert 0 < len(query.arrived()) < 24


def test_a_stream_that_waits_for_its_store_begins_where_it_was_told(tmp_path: Path) -> None:
    query = Steps()
    query.drain(tmp_path / "store", startingTimestamp=at(1))
    writer = Writer(tmp_path / "store")
    writer.append(3, store_ms=at(0))
    writer.append(3, store_ms=at(1))
    query.drain(writer.store, startingTimestamp=at(1))
    writer.append(1, store_ms=at(0))
    query.drain(writer.store)
    assert query.arrived() == [3, 4, 5]


@both
def test_milliseconds_in_from_are_refused_with_the_option_for_them(writer: Writer, read: Read) -> None:
    with pytest.raises(UnknownChoice, match=f"give startingTimestamp={at(0.5)}"):
        read(writer.store, **{"from": at(0.5)})
    with pytest.raises(UnknownChoice, match="from and startingTimestamp say the same"):
        read(writer.store, startingTimestamp=at(0.5), **{"from": iso(at(0.5))})
    for wrong in ("yesterday", "-5", "5.5"):
        with pytest.raises(UnknownChoice, match="startingTimestamp"):
            read(writer.store, startingTimestamp=wrong)
        with pytest.raises(UnknownChoice, match="neither a log offset nor a time"):
            read(writer.store, **{"from": wrong})


def test_milliseconds_in_to_are_refused_too(writer: Writer) -> None:
    with pytest.raises(UnknownChoice, match=f"give endingTimestamp={at(0.5)}"):
        batch(writer.store, to=at(0.5))
    assert batch(writer.store, endingTimestamp=at(0.5)) == list(range(5))
    assert batch(writer.store, to="1970-01-01") == []


@pytest.mark.parametrize("name", ["to", "endingTimestamp", "durable"])
def test_a_stream_has_no_end(writer: Writer, name: str) -> None:
    with pytest.raises(UnknownChoice, match=f"'{name}' is an option of spark.read and has no meaning here"):
        stream(writer.store, **{name: "100"})


@pytest.mark.parametrize("name", ["max_bytes_per_trigger", "failOnDataLoss"])
def test_a_batch_has_no_triggers(writer: Writer, name: str) -> None:
    with pytest.raises(UnknownChoice, match=f"'{name}' is an option of spark.readStream"):
        batch(writer.store, **{name: "1"})


MISSPELT = {"topic": "topics", "sliceBytes": "slice_bytes", "form": "from", "until": "", "TOPICS ": "topics"}


@pytest.mark.parametrize(("given", "meant"), MISSPELT.items())
def test_an_unknown_option_is_refused_when_it_is_loaded(writer: Writer, given: str, meant: str) -> None:
    with pytest.raises(UnknownChoice, match="is no option of the format") as raised:
        TidewheelSource({"path": str(writer.store), given: "x"})
    assert (f"Did you mean '{meant}'?" in str(raised.value)) == bool(meant)
    assert "topics, from, startingTimestamp, bodies" in str(raised.value)


@given(name=st.text(min_size=1))
def test_every_other_name_is_refused(name: str) -> None:
    known = {"topics", "from", "startingtimestamp", "bodies", "dataset", "verify", "index", "slice_bytes"}
    known |= {"to", "endingtimestamp", "durable", "max_bytes_per_trigger", "failondataloss", "path"}
    if name.lower() in known:
        TidewheelSource({name: "x"})
    else:
        with pytest.raises(UnknownChoice):
            TidewheelSource({name: "x"})


NUMBERS = {"slice_bytes": ("-5", "0", "64m", "", "1_000", " 7", "٣"), "durable": ("-1", "all")}


@pytest.mark.parametrize(
    ("name", "given"), [(name, given) for name, listed in NUMBERS.items() for given in listed]
)
def test_what_is_no_number_of_bytes_is_a_sentence(writer: Writer, name: str, given: str) -> None:
    with pytest.raises(UnknownChoice, match=f"{name}='{given}' is no number of bytes from"):
        batch(writer.store, **{name: given})
    if name == "slice_bytes":
        with pytest.raises(UnknownChoice, match=f"{name}='{given}' is no number of bytes from 1 on"):
            stream(writer.store, **{name: given})


@both
def test_topics_are_told_apart_by_comma_and_none_is_no_choice(writer: Writer, read: Read) -> None:
    for listed in ("*", " * ", "t,*", " t , u"):
        assert read(writer.store, topics=listed, bodies=listed) == list(range(COUNT))
    assert read(writer.store, bodies="") == list(range(COUNT)), "none are wanted"
    for listed in ("", " ", ","):
        with pytest.raises(UnknownChoice, match=f"topics='{listed}' names no topic"):
            read(writer.store, topics=listed)


@both
def test_numbers_of_any_size_are_places(writer: Writer, read: Read) -> None:
    for number in (1 << 63, 1 << 64, 10**30):
        assert read(writer.store, startingTimestamp=number) == []
        assert read(writer.store, **{"from": number}) == []
        assert read(writer.store, slice_bytes=number) == list(range(COUNT))
        if read is batch:
            assert batch(writer.store, endingTimestamp=number) == list(range(COUNT))
            assert batch(writer.store, to=number, topics="t") == list(range(COUNT))
        else:
            assert stream(writer.store, max_bytes_per_trigger=number) == list(range(COUNT))


def test_a_segment_that_is_deleted_while_it_is_read_is_a_sentence(writer: Writer) -> None:
    """Retention goes on beside a batch that was planned before."""
    writer.append(40)
    options = CaseInsensitiveDict(path=str(writer.store))
    reader = LogReader(options, ("queue_offset",))
    first, *_ = reader.partitions()
    writer.retain(1)
    with pytest.raises(StreamLost, match=r"was deleted while it was read, as by retention. Read it again"):
        list(reader.read(first))


@pytest.mark.parametrize("given", ["-1", "0", "1g"])
def test_a_limit_of_a_batch_is_a_number_of_bytes(writer: Writer, given: str) -> None:
    with pytest.raises(UnknownChoice, match=f"max_bytes_per_trigger='{given}' is no number of bytes"):
        stream(writer.store, max_bytes_per_trigger=given)


@both
def test_other_choices_are_refused_alike(writer: Writer, read: Read) -> None:
    for wrong in ({"verify": "perhaps"}, {"dataset": "letters"}, {"index": "always"}):
        with pytest.raises(UnknownChoice, match="is none of"):
            read(writer.store, **wrong)
    for name in ("topics", "bodies"):
        with pytest.raises(UnknownChoice, match=f"'{name}' has no meaning for dataset=acks"):
            read(writer.store, dataset="acks", **{name: "t"})
    with pytest.raises(UnknownChoice, match="failOnDataLoss='perhaps' is none of true, false"):
        stream(writer.store, failOnDataLoss="perhaps")


@pytest.mark.parametrize("use", ["reader", "streamReader"])
def test_a_load_without_a_folder_is_a_sentence(use: str) -> None:
    with pytest.raises(ConfigurationError, match="Give its folder"):
        getattr(TidewheelSource({}), use)(SCHEMA)


EMPTY: dict[str, Callable[[Writer], dict[str, Any]]] = {
    "from = to, as times": lambda writer: {"from": iso(at(0.5)), "to": iso(at(0.5))},
    "from = to, as offsets": lambda writer: {"from": 500, "to": 500},
    "from behind to": lambda writer: {"from": 900, "to": 500},
    "from = to, at the end": lambda writer: dict.fromkeys(("from", "to"), writer.log.durable_offset),
    "to before the log": lambda writer: {"to": iso(at(-60 * 24))},
    "to = 0": lambda writer: {"to": 0},
    "from behind the end, as time": lambda writer: {"from": iso(at(60 * 24))},
    "from behind the end, as offset": lambda writer: {"from": writer.log.durable_offset + 1},
    "the next hour": lambda writer: {"startingTimestamp": at(60), "endingTimestamp": at(120)},
    "durable = 0": lambda writer: {"durable": 0},
}


@pytest.mark.parametrize("window", EMPTY.values(), ids=EMPTY.keys())
@pytest.mark.parametrize("more", [{}, {"topics": "t"}, {"dataset": "acks"}, {"dataset": "damaged"}], ids=str)
def test_an_empty_window_has_no_rows(
    writer: Writer, window: Callable[[Writer], dict[str, Any]], more: dict[str, str]
) -> None:
    names = ("physical_offset",)
    given = {name: str(one) for name, one in (window(writer) | more).items()}
    reader = LogReader({"path": str(writer.store)} | given, names)
    parts = reader.partitions() or [InputPartition(None)]
    assert [row for part in parts for found in reader.read(part) for row in found.to_pylist()] == []


@both
def test_a_store_to_which_nothing_has_come_has_no_rows(tmp_path: Path, read: Read) -> None:
    writer = Writer(tmp_path / "store")
    assert read(writer.store) == []
    assert read(writer.store, startingTimestamp=at(0)) == []
    layout.reset_durable(writer.disk, 0)
    assert read(writer.store, topics="t") == []


def test_what_outlived_its_segment_is_in_the_window_or_not(writer: Writer) -> None:
    writer.append(30)
    first_offset = writer.retain(1)
    half = Record(topic="RMQ_SYS_TRANS_HALF_TOPIC", body=b"", queue_offset=99, physical_offset=500)
    stored = encode(half)
    (writer.store / layout.KEEP).mkdir()
    (writer.store / keep.path_of(first_offset)).write_bytes(stored)
    assert 99 in batch(writer.store)
    assert batch(writer.store, to=501) == [99]
    assert batch(writer.store, to=500) == []
    assert batch(writer.store, to=0) == []
