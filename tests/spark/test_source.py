"""The data source "tidewheel" under Spark: one DataFrame, many uses, the same rows."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from commitlog import layout
from commitlog.disk.real_disk import RealDisk
from commitlog.log.log import CommitLog
from commitlog.records.record import Record
from spark_jobs.log.scan.decode import DEFAULT, SCHEMA
from spark_jobs.source import COLUMNS, LogReader

TOPICS = ("a", "b", "c")
COUNT = 60
SEGMENT_BYTES = 2048
Load = Callable[..., DataFrame]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of several segments, of records whose topics take turns."""
    folder = tmp_path_factory.mktemp("store")
    disk = RealDisk(folder)
    log = CommitLog(disk, SEGMENT_BYTES, 0, 0)
    for number in range(COUNT):
        topic = TOPICS[number % 3]
        keys = f"KEYS\x01k {number % 5}\x02TW_KEY_LENGTHS\x013\x02".encode()
        log.append(Record(topic=topic, body=topic.encode() * 9, queue_offset=number, properties=keys))
    flush = log.take_flush()
    assert flush is not None
    flush.write()
    log.complete_flush(flush)
    disk.write("format", 0, b"tidewheel 1\n")
    disk.close()
    return folder


@pytest.fixture
def load(spark: SparkSession, store: Path) -> Load:
    """`load(columns, option=value, ...)` is the log as a DataFrame."""

    def run(columns: str | None = None, **options: Any) -> DataFrame:
        reader = spark.read.format("tidewheel").options(**options)
        return (reader.schema(columns) if columns else reader).load(str(store))

    return run


def test_one_frame_under_several_filters_keeps_all_its_rows(load: Load) -> None:
    frame = load("topic string, keys string, queue_offset bigint")
    only_a, only_b = frame.where("topic = 'a'"), frame.where("topic = 'b'")
    assert only_a.count() == COUNT // 3
    assert frame.count() == COUNT
    assert only_a.union(frame).count() == COUNT // 3 + COUNT
    assert only_a.union(only_b).agg(F.countDistinct("queue_offset")).first()[0] == 2 * COUNT // 3  # type: ignore[index]
    assert only_a.join(only_b, "keys").count() == (COUNT // 3) * (COUNT // 3) // 5


def test_the_reader_never_takes_filters() -> None:
    assert "pushFilters" not in vars(LogReader)


def test_the_documented_types_are_the_types(load: Load) -> None:
    assert load().columns == list(DEFAULT)
    types = dict(load(COLUMNS).dtypes)
    assert list(types) == SCHEMA.names
    assert {types[name] for name in ("physical_offset", "store_ms", "due_ms", "queue_offset")} == {"bigint"}
    assert (types["queue_id"], types["topic"], types["body"]) == ("int", "string", "binary")
    assert load().where("damage is null and record_bytes > 0").count() == COUNT


def test_keys_are_a_list_as_they_were_sent(store: Path) -> None:
    reader = LogReader({"path": str(store)}, ("keys", "first_key", "key_list"))
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    found = {(row["keys"], row["first_key"], tuple(row["key_list"])) for row in rows}
    assert found == {(key, key, (key,)) for key in (f"k {number}" for number in range(5))}


def test_slices_change_the_tasks_and_not_the_rows(load: Load) -> None:
    columns = "physical_offset bigint, queue_offset bigint"
    whole, sliced = load(columns), load(columns, slice_bytes=700)
    assert sliced.rdd.getNumPartitions() > whole.rdd.getNumPartitions() > 1
    assert sorted(sliced.collect()) == sorted(whole.collect())


def test_topics_bodies_and_end_are_options(load: Load) -> None:
    frame = load("topic string, body binary", topics="a,b", bodies="b")
    rows = {(row.topic, row.body and bytes(row.body)) for row in frame.collect()}
    assert rows == {("a", None), ("b", b"b" * 9)}
    first = load("record_bytes bigint").first()
    assert first is not None
    assert load("topic string", durable=3 * first.record_bytes).count() == 3


def test_a_column_or_choice_that_does_not_exist_is_named(load: Load) -> None:
    with pytest.raises(Exception, match="A log has no column 'colour'"):
        load("colour string").collect()
    with pytest.raises(Exception, match="verify='perhaps' is none of record, body, none"):
        load("topic string", verify="perhaps").collect()


def test_one_flipped_bit_is_one_row_of_damage_and_the_rest_is_unchanged(
    spark: SparkSession, store: Path, load: Load, tmp_path: Path
) -> None:
    columns = "physical_offset bigint, record_bytes bigint, queue_offset bigint, keys string, body binary"
    whole = {row.physical_offset: row for row in load(columns, bodies="*").collect()}
    hit = sorted(whole)[COUNT // 2]
    flipped = tmp_path / "store"
    shutil.copytree(store, flipped)
    path = flipped / layout.segment_path(hit // SEGMENT_BYTES * SEGMENT_BYTES)
    stored = bytearray(path.read_bytes())
    stored[hit % SEGMENT_BYTES + 95] ^= 0x10
    path.write_bytes(stored)

    def read(**options: str) -> dict[int, Row]:
        reader = (
            spark.read.format("tidewheel").schema(columns).options(bodies="*", slice_bytes=700, **options)
        )
        return {row.physical_offset: row for row in reader.load(str(flipped)).collect()}

    lost = read(dataset="damaged")
    assert {(row.physical_offset, row.record_bytes) for row in lost.values()} == {
        (hit, whole[hit].record_bytes)
    }
    assert read() == whole | lost
