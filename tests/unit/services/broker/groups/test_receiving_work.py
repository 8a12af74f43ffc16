"""One receive does a bounded amount of work, counted: with costly filters, large messages, many tags."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from commitlog import limits
from commitlog.limits import QUEUE_FILE_ENTRIES
from commitlog.records.message import Message
from commitlog.snapshots import snapshot
from consumequeue.entry import ENTRY_BYTES, Entry, encode, tags_code
from consumequeue.filters.filter import EVERYTHING, Filter, parse_tags
from consumequeue.filters.sql_filter import SqlFilter, parse_sql
from consumequeue.queue import ConsumeQueue
from services.broker import derived
from services.broker.broker import Broker
from services.broker.groups.group_values import ReceivedMessages
from services.broker.spine.settings import BrokerSettings
from tests.memory_disk import MemoryDisk
from tests.unit.services.broker.timers.test_timers import Store

NOW_MS = 1_763_700_000_000
COUNT = 300
LONG = "a" * 12_000
COSTLY = " OR ".join([*(f"p CONTAINS 'word{number}'" for number in range(99)), "wanted = 1"])


class Bench:
    """A broker with one queue, whose messages are durable."""

    def __init__(self) -> None:
        settings = BrokerSettings(segment_bytes=1 << 26, queue_count=1)
        self.broker, self.count = Broker.open(MemoryDisk(), settings, NOW_MS), 0

    def send(self, count: int = COUNT, **attributes: Any) -> None:
        messages = [
            Message(topic="t", message_id=f"M{self.count + number}", **{"body": b"x"} | attributes)
            for number in range(count)
        ]
        self.count += count
        self.broker.sending.send_many(messages, NOW_MS)
        while flush := self.broker.take_flush():
            flush.write()
            self.broker.complete_flush(flush, NOW_MS)

    def receive(self, wanted: Filter) -> ReceivedMessages:
        return self.broker.receiving.receive("g", "t", wanted, 32, 20_000, "c", False, NOW_MS)

    def receives(self, wanted: Filter) -> Iterator[ReceivedMessages]:
        """Yield receives up to the first that is finished and found nothing."""
        while True:
            received = self.receive(wanted)
            yield received
            if not received.deliveries and not received.is_unfinished:
                return


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What SQL filters have judged since it was cleared."""
    seen: list[bytes] = []
    matches = SqlFilter.matches
    monkeypatch.setattr(
        SqlFilter, "matches", lambda self, stored: seen.append(stored) or matches(self, stored)
    )
    return seen


def test_a_costly_filter_judges_few_messages_a_call_and_all_that_it_wants_come(
    bench: Bench, judged: list[bytes]
) -> None:
    bench.send(properties={"p": LONG})
    bench.send(40, properties={"p": LONG, "wanted": "1"})
    wanted, found = parse_sql(COSTLY), 0
    for received in bench.receives(wanted):
        assert len(judged) <= 4, f"{len(judged)} messages were judged in one go"
        assert received.deliveries or received.is_unfinished or found == 40
        found += len(received.deliveries)
        judged.clear()
    assert found == 40


def test_a_cheap_filter_judges_as_many_as_ever(bench: Bench, judged: list[bytes]) -> None:
    bench.send(properties={"p": "short"})
    assert bench.receive(parse_sql("p = 'long' OR p CONTAINS 'x'")).is_unfinished
    assert len(judged) >= 250


def test_large_messages_that_a_filter_passes_over_count_for_their_bytes(
    bench: Bench, judged: list[bytes]
) -> None:
    bench.send(40, body=bytes(1 << 20))
    bench.send(1, properties={"wanted": "1"})
    calls = list(bench.receives(parse_sql("wanted = 1")))
    assert sum(len(one.deliveries) for one in calls) == 1
    assert len(judged) / len(calls) <= 6, "5 MiB a call are read"


def test_bodies_that_are_unpacked_in_vain_count_for_what_was_unpacked(bench: Bench) -> None:
    bench.send(4, body=zlib.compress(bytes(limits.BODY_UNPACKED_FOR_CLIENT_BYTES_MAX + 1)), gzip=True)
    bench.send(4, body=b"no zlib", gzip=True)
    calls = [len(one.deliveries) for one in bench.receives(EVERYTHING)]
    assert calls == [1, 1, 1, 1, 4, 0]


def test_a_filter_by_tag_looks_at_no_more_entries_than_it_passes_over(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(30):
        bench.send(49, tag="other")
        bench.send(1, tag="mine")
    rows, counts = ConsumeQueue.rows, []

    def counted(self: ConsumeQueue, offset: int, count: int) -> Any:
        found = rows(self, offset, count)
        counts.append(len(found))
        return found

    monkeypatch.setattr(ConsumeQueue, "rows", counted)
    assert len(bench.receive(parse_tags("mine||yours")).deliveries) == 30
    assert sum(counts) <= 3 * 1_500


@pytest.mark.parametrize("tags", [1, 2, 2_048])
def test_the_next_match_is_the_first_whose_hash_is_wanted(tags: int) -> None:
    queue, codes = ConsumeQueue(MemoryDisk(), "t", 0), np.random.default_rng(tags).integers(0, 4_000, 3_000)
    for offset, code in enumerate(codes):
        queue.put(offset, (offset * 100, 100, int(code)))  # type: ignore[arg-type]  # an entry is a tuple
    wanted = np.arange(tags, dtype=np.int64)
    for offset in range(0, 3_000, 7):
        for count in (1, 64, 65, 5_000):
            window = codes[offset : offset + count]
            hits = np.flatnonzero(np.isin(window, wanted))
            expected = offset + (int(hits[0]) if len(hits) else len(window))
            assert queue.next_match(offset, wanted, count) == expected


def test_a_receive_reads_one_large_file_of_queues_behind_a_start_as_the_others_come_later() -> None:
    """16 queues of 300,000 messages each, of which a group with a filter lacks the last ten."""
    queue_count, file_bytes = 16, QUEUE_FILE_ENTRIES * ENTRY_BYTES
    store = Store(queue_count=queue_count, segment_bytes=1 << 20)
    for number in range(queue_count):
        store.send(f"M{number}", None)
    store.checkpoint()
    newest = snapshot.newest(store.disk)
    assert newest is not None
    content = encode(Entry(0, 100, tags_code("b"))) * QUEUE_FILE_ENTRIES
    for row in [one for one in newest.parts[derived.QUEUES] if one[0] == "t"]:
        row[2:] = [QUEUE_FILE_ENTRIES, [[0, zlib.crc32(content)]], QUEUE_FILE_ENTRIES - 10, "", 0]
        store.disk.write(f"consumequeue/t/{row[1]}/{0:020d}", 0, content)
    for row in newest.parts["store"]["next_offsets"]:
        if row[0] == "t":
            row[2] = QUEUE_FILE_ENTRIES
    replace(newest).write(store.disk)
    store.disk.kill(lambda _: 0)
    store.broker = Broker.open(store.disk, store.settings, store.now_ms)
    assert not store.broker.rebuilt_files
    queues = [store.broker.store.dispatch.queue("t", queue_id) for queue_id in range(queue_count)]
    for number in range(queue_count):
        received = store.broker.receiving.receive(
            "g", "t", parse_tags("a"), 32, 20_000, "c", False, store.now_ms
        )
        assert received.is_unfinished or number == queue_count - 1
        assert sum(one.compared_bytes for one in queues) == (number + 1) * file_bytes
    assert not [*store.broker.damage]
