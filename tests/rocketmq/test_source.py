"""The store that Apache RocketMQ's own code wrote, as rows: exactly what that code reads out of it."""

from __future__ import annotations

import base64
import shutil
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commitlog.records.record import COMPRESSED, COMPRESSION_TYPE
from spark_jobs.log.index.queue_index import Indexed
from spark_jobs.session import spark_session
from spark_jobs.source import COLUMNS as EVERY_COLUMN
from spark_jobs.source import FORMAT, LogReader

COLUMNS = (
    "physical_offset", "kind", "topic", "queue_id", "queue_offset", "message_id", "tag", "keys", "real_topic",
    "due_ms", "sys_flag", "body", "damage",
)  # fmt: skip
KINDS = {
    "ordinary": ("normal", "commit"),
    "batch": ("normal",),
    "compressed": ("normal",),
    "hosts": ("normal",),
    "v2": ("normal",),
    "op": ("system",),
    "level-delivered": ("timer",),
    "level-pending": ("timer",),
    "timer-delivered": ("timer",),
    "timer-pending": ("timer",),
    "timer-recalled": ("timer",),
    "timer-marker": ("timer",),
    "half-ended": ("half",),
    "half-open": ("half",),
}
TIMES = struct.Struct(">qq")
Row = dict[str, Any]


def read(store: Path, columns: tuple[str, ...] = COLUMNS, **options: str) -> list[Row]:
    """The rows of a store without Spark, in log order."""
    reader = LogReader({"path": str(store), "bodies": "*", **options}, columns)
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: row["physical_offset"])


def row_of(line: Row) -> Row:
    """The row that must come of a record as RocketMQ's own code reads it; `kind` is told elsewhere."""
    given = line["properties"]
    due_ms = given.get("TIMER_OUT_MS")
    return {
        "physical_offset": line["physicalOffset"],
        "topic": line["topic"],
        "queue_id": line["queueId"],
        "queue_offset": line["queueOffset"],
        "message_id": given.get("UNIQ_KEY"),
        "tag": given.get("TAGS"),
        "keys": given.get("KEYS"),
        "real_topic": given.get("REAL_TOPIC"),
        "due_ms": None if due_ms is None else int(due_ms),
        "sys_flag": line["sysFlag"] | COMPRESSED * (line["sysFlag"] & COMPRESSION_TYPE > 0),  # it unpacks
        "body": base64.b64decode(line["body"]),
        "damage": None,
    }


@pytest.fixture(scope="module")
def expected(genuine: Any, written: tuple[Path, list[Any]], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A row for each record, by RocketMQ's own reading of a copy."""
    copy = tmp_path_factory.mktemp("copy") / "store"
    shutil.copytree(written[0], copy)
    lines = [line for line in genuine.read(copy) if "of" in line]
    rows = {line["physicalOffset"]: row_of(line) for line in lines}
    assert len(rows) > 140
    return [rows[offset] for offset in sorted(rows)]


def without_kind(rows: list[Row]) -> list[Row]:
    return [{name: value for name, value in row.items() if name != "kind"} for row in rows]


def test_every_record_is_the_row_that_rocketmq_reads(written: tuple[Path, list[Any]], expected: Any) -> None:
    assert without_kind(read(written[0])) == expected


def test_every_record_is_of_the_kind_as_which_it_was_written(written: tuple[Path, list[Any]]) -> None:
    found = {(row["topic"], row["queue_id"], row["queue_offset"]): row for row in read(written[0])}
    told = [one for one in written[1] if one["kind"] in KINDS]
    wrong = [
        (one["kind"], row["kind"])
        for one in told
        if (row := found[(one["topic"], one["queueId"], one["queueOffset"])])["kind"]
        not in KINDS[one["kind"]]
    ]
    assert wrong == []
    assert {one["kind"] for one in told} == set(KINDS)
    counted = Counter(row["kind"] for row in read(written[0], dataset="timers"))
    assert counted == {"timer": sum(one["kind"].startswith(("timer-", "level-")) for one in told)}


def stopped(store: Path) -> None:
    """As it was closed."""


def running(store: Path) -> None:
    """As a broker that runs, or was killed, before its queue files were synced."""
    (store / "abort").write_text("1")


def running_long(store: Path) -> None:
    """Likewise, but all of its queue files are on disk."""
    running(store)
    path = store / "checkpoint"
    times = [one + 10_000 for one in TIMES.unpack_from(path.read_bytes())]
    path.write_bytes(TIMES.pack(*times) + path.read_bytes()[TIMES.size :])


def without_checkpoint(store: Path) -> None:
    """Killed, and nothing says how far the queue files were on disk."""
    running(store)
    (store / "checkpoint").unlink()


def with_a_hole(store: Path) -> None:
    """A page of a queue file never reached the disk."""
    path = store / "consumequeue" / "orders" / "0" / ("0" * 20)
    stored = bytearray(path.read_bytes())
    stored[5 * 20 : 9 * 20] = bytes(4 * 20)
    path.write_bytes(stored)


@pytest.mark.parametrize(
    ("happens", "is_indexed"),
    [
        (stopped, True),
        (running, False),
        (running_long, True),
        (without_checkpoint, False),
        (with_a_hole, False),
    ],
)
def test_a_topic_by_rocketmqs_own_queues_is_the_topic_by_a_scan(
    written: tuple[Path, list[Any]], tmp_path: Path, happens: Callable[[Path], None], is_indexed: bool
) -> None:
    store = tmp_path / "store"
    shutil.copytree(written[0], store)
    happens(store)
    reader = LogReader({"path": str(store), "topics": "orders"}, COLUMNS)
    assert any(isinstance(part.part, Indexed) for part in reader.partitions()) == is_indexed  # type: ignore[attr-defined]
    for topics in ("orders", "orders,payments", "reminders", "batches", "orders,batches", "nowhere"):
        assert read(store, topics=topics) == read(store, topics=topics, index="never")


def test_spark_reads_the_same_rows(written: tuple[Path, list[Any]], tmp_path: Path) -> None:
    expected = read(written[0])
    with spark_session(tmp_path, tmp_path / "spark.log", quick=True, master="local[2]") as spark:
        reader = spark.read.format(FORMAT).schema(EVERY_COLUMN).options(bodies="*", slice_bytes=50_000)
        frame = reader.load(str(written[0]))
        found = [row.asDict() for row in frame.select(*COLUMNS).orderBy("physical_offset").collect()]
    assert [row | {"body": bytes(row["body"])} for row in found] == expected
