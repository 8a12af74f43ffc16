"""A read by the queues' index finds what a scan does, whatever is wrong with their files."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import InputPartition

from commitlog import layout
from commitlog.disk.real_disk import RealDisk
from commitlog.records.message import Message
from consumequeue import queue
from consumequeue.entry import ENTRY_BYTES
from services.broker.broker import Broker
from services.broker.spine.settings import BrokerSettings
from spark_jobs.log.index import queue_index, rocketmq_index
from spark_jobs.log.index.queue_index import Indexed, QueueFile
from spark_jobs.source import LogReader

SETTINGS = BrokerSettings(queue_count=1, tail_entries_max=1)
NOW_MS = 1_763_700_000_000
COUNT = 60
FILE_ENTRIES = 8
FOLDER = f"{layout.CONSUMEQUEUE}/t/0"
FILES = [f"{FOLDER}/{first * ENTRY_BYTES:020d}" for first in range(0, COUNT, FILE_ENTRIES)]
IDS = [f"M{number}" for number in range(COUNT)]
Row = dict[str, Any]


class Kept:
    """A broker on a real disk."""

    def __init__(self, root: Path, segment_bytes: int = 1 << 12) -> None:
        self.root, self.disk = root, RealDisk(root)
        self.settings = replace(SETTINGS, segment_bytes=segment_bytes)
        self.places: list[int] = []
        """Where the messages of topic `t` lie."""
        self.open()

    def open(self) -> None:
        self.broker = Broker.open(self.disk, self.settings, NOW_MS)

    def send(self) -> None:
        for topic, message_id in (("t", f"M{len(self.places)}"), ("other", f"other {len(self.places)}")):
            message = Message(topic=topic, body=b"x" * 50, message_id=message_id)
            placed = self.broker.sending.send(message, NOW_MS)
            self.places += [placed.physical_offset] * (topic == "t")
        while (flush := self.broker.take_flush()) is not None:
            flush.write()
            self.broker.complete_flush(flush, NOW_MS)
        self.broker.store.dispatch.write()

    def checkpoint(self) -> None:
        done = self.broker.checkpoint(NOW_MS)
        done.write(self.disk)
        self.broker.complete_checkpoint(done)

    def damage(self, number: int) -> None:
        """Flip a bit of the record of a message."""
        at = self.places[number] + 95
        first = max(int(path.name) for path in (self.root / "commitlog").iterdir() if int(path.name) <= at)
        flip(self.root / layout.segment_path(first), at - first)


def flip(path: Path, at: int) -> None:
    stored = bytearray(path.read_bytes())
    stored[at] ^= 1
    path.write_bytes(stored)


@pytest.fixture(scope="module", autouse=True)
def _small_files() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (queue, queue_index):
            patch.setattr(module, "_FILE_BYTES", FILE_ENTRIES * ENTRY_BYTES)
        yield


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of many segments and files of a queue, all of which a snapshot names."""
    kept = Kept(tmp_path_factory.mktemp("sound"))
    for _ in range(COUNT):
        kept.send()
    kept.checkpoint()
    kept.disk.close()
    assert [str(path.relative_to(kept.root)) for path in sorted((kept.root / FOLDER).iterdir())] == FILES
    return kept.root


@pytest.fixture
def store(sound: Path, tmp_path: Path) -> Path:
    return copied(sound, tmp_path / "store")


def copied(sound: Path, root: Path) -> Path:
    shutil.rmtree(root, ignore_errors=True)
    return shutil.copytree(sound, root)


def planned(root: Path, **options: str) -> LogReader:
    return LogReader(
        {"path": str(root), "topics": "t", **options}, ("message_id", "physical_offset", "damage")
    )


def rows_of(reader: LogReader, parts: Sequence[InputPartition] = ()) -> list[Row]:
    """The rows of what was planned, in log order."""
    parts = parts or reader.partitions()
    rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: row["physical_offset"])


def ids(rows: list[Row]) -> list[str]:
    return [row["message_id"] for row in rows if not row["damage"]]


def indexed_count(root: Path) -> int:
    return sum(isinstance(part.part, Indexed) for part in planned(root).partitions())  # type: ignore[attr-defined]


HARMS: Final[dict[str, Callable[[Path], object]]] = {
    "lost": Path.unlink,
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "differs": lambda path: flip(path, 3),
    "being made anew": lambda path: path.write_bytes(b""),
}


@settings(max_examples=60, deadline=None)
@given(harmed=st.dictionaries(st.sampled_from(FILES), st.sampled_from([*HARMS]), min_size=1))
def test_a_read_by_the_index_lacks_nothing_whichever_files_are_damaged(
    sound: Path, harmed: dict[str, str]
) -> None:
    """Before the read is planned, or between that and its tasks.

    The oldest files were lacking in silence, since retention could have deleted them.
    """
    root = copied(sound, sound.with_name("harmed"))
    reader = planned(root)
    parts = reader.partitions()
    for path, how in harmed.items():
        HARMS[how](root / path)
    assert ids(rows_of(reader, parts)) == IDS
    assert ids(rows_of(planned(root))) == IDS


def test_one_damaged_file_costs_only_the_segments_in_which_its_records_lie(store: Path) -> None:
    all_count = indexed_count(store)
    (store / FILES[2]).unlink()
    assert 0 < all_count - indexed_count(store) <= all_count // 3


@pytest.mark.parametrize("mark", [None, b"", b"yes\n", b"77\n"])
def test_files_that_are_not_marked_as_whole_are_not_read(store: Path, mark: bytes | None) -> None:
    assert indexed_count(store) > 0
    (store / layout.QUEUES_WHOLE).unlink()
    if mark is not None:
        (store / layout.QUEUES_WHOLE).write_bytes(mark)
    assert indexed_count(store) == 0
    assert ids(rows_of(planned(store))) == IDS


def test_files_that_retention_has_deleted_with_their_records_are_not_looked_for(store: Path) -> None:
    for segment in sorted((store / "commitlog").iterdir())[:4]:
        segment.unlink()
    expected = ids(rows_of(planned(store, index="never")))
    gone = (COUNT - len(expected)) // FILE_ENTRIES
    assert gone > 1
    segment_count = len([*(store / "commitlog").iterdir()])
    for path in FILES[:gone]:
        (store / path).unlink()
    assert indexed_count(store) >= segment_count - 1
    assert ids(rows_of(planned(store))) == expected


def test_a_store_of_rocketmqs_lacks_nothing_either_where_the_oldest_files_are_lost(store: Path) -> None:
    (store / layout.FORMAT).unlink()
    assert ids(rows_of(planned(store))) == IDS
    all_count = indexed_count(store)
    for path in FILES[:2]:
        (store / path).unlink()
    assert 0 < indexed_count(store) < all_count
    assert ids(rows_of(planned(store))) == IDS


@pytest.mark.parametrize("is_made_anew", [False, True])
@pytest.mark.parametrize("number", [0, 7, 30, COUNT - 1])
def test_a_read_by_the_index_tells_of_damage_whether_or_not_the_queues_were_made_anew(
    tmp_path: Path, is_made_anew: bool, number: int
) -> None:
    """Queues that are made anew have a gap where the record was, or begin behind it."""
    kept = Kept(tmp_path)
    for _ in range(COUNT):
        kept.send()
    kept.checkpoint()
    kept.disk.close()
    kept.damage(number)
    if is_made_anew:
        (tmp_path / layout.QUEUES_WHOLE).unlink()
        kept.open()
        assert any("queues" in one for one in kept.broker.rebuilt_files)
        kept.send()  # and a later checkpoint names them
        kept.checkpoint()
        kept.disk.close()
    found, scanned = rows_of(planned(tmp_path)), rows_of(planned(tmp_path, index="never"))
    assert found == scanned
    assert [row["physical_offset"] for row in found if row["damage"]] == [kept.places[number]]
    assert f"M{number}" not in ids(found)
    assert len(ids(found)) == len(kept.places) - 1
    assert indexed_count(tmp_path) > 0


class Held:
    """How many files' entries are in memory at once, of those that two functions return."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = self.most = self.read = 0
        patch.setattr(QueueFile, "entries", self._counted(QueueFile.entries))
        patch.setattr(rocketmq_index, "_entries", self._counted(rocketmq_index._entries))

    def _counted(self, read: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def entries(file: Any) -> Any:
            found = read(file)
            if found is not None:
                self.read += 1
                self.now += 1
                self.most = max(self.most, self.now)
                weakref.finalize(found, self._let_go)
            return found

        return entries

    def _let_go(self) -> None:
        self.now -= 1


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_plan_and_its_tasks_hold_few_files_of_a_queue_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_ours: bool
) -> None:
    """A queue of 1 billion entries has 20 GB of them. While one is read, the one before is still held."""
    kept = Kept(tmp_path, segment_bytes=1 << 20)
    for _ in range(COUNT):
        kept.send()
    kept.checkpoint()
    kept.disk.close()
    if not is_ours:
        (tmp_path / layout.FORMAT).unlink()
    held = Held(monkeypatch)
    reader = planned(tmp_path)
    parts = reader.partitions()
    assert held.read >= len(FILES)
    assert held.most <= 2, f"the plan holds {held.most} files of one queue"
    held.read = held.most = 0
    assert ids(rows_of(reader, parts)) == IDS
    assert held.read == len(FILES)
    assert held.most <= 2, f"a task holds {held.most} files of one queue"
