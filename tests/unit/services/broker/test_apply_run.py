"""A run of records applied as columns leaves what its records leave, decoded and applied one by one."""

from __future__ import annotations

from itertools import takewhile
from typing import Any, Final

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from commitlog.facts.facts import facts_of
from commitlog.records import record as records
from commitlog.records.message import Message, MessageType
from commitlog.records.record import Record
from consumequeue.entry import tags_code
from services.broker.broker import Broker
from services.broker.spine.appended import to_append_result
from services.broker.spine.encoded_batch import EncodedBatch, TimersDelivered
from services.broker.spine.settings import BrokerSettings
from services.broker.timers.timer_records import ReplacedTimer, due_ms_of, timer_record
from services.broker.timers.timer_source import name_hashes, ready_record
from tests.memory_disk import MemoryDisk
from tests.simulation.tables import tables

NOW_MS = 1_763_700_000_000
SETTINGS = BrokerSettings(segment_bytes=4096, queue_count=2)
DUE_MS = (0, NOW_MS, NOW_MS + 1, NOW_MS + 999, NOW_MS + 10**8, NOW_MS + 10**9)

timers = st.tuples(
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(["m1", "m2", "m3"]),
    st.sampled_from(["", "k1", "k2"]),
    st.sampled_from(DUE_MS),
    st.integers(0, 1),
    st.one_of(st.none(), st.integers(0, 30)),
)
"""Topic, message id, key, due time, queue, and the number of the timer whose place it takes."""
steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.lists(timers, min_size=1, max_size=8)),
        st.tuples(st.just("deliver"), st.lists(st.integers(0, 30), min_size=1, max_size=8)),
        st.tuples(st.just("come due"), st.integers(1, 5)),
        st.tuples(st.just("time"), st.sampled_from([-5, 1, 2_000])),
        st.just(("flush", None)),
    ),
    max_size=12,
)
LATE: Final = [
    ("set", [("a", "m1", "", NOW_MS + 10**9, 0, None)]), ("flush", None), ("come due", 1),
    ("set", [("a", "m2", "", NOW_MS, 0, None)]), ("flush", None), ("come due", 1),
]  # fmt: skip
"""The clock was set back: the second timer is due before the watermark, and its place is there."""


class Pair:
    """A core that takes runs, and one that takes the same records one by one."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS
        self.disks = MemoryDisk(), MemoryDisk()
        self.by_run, self.by_row = (Broker.open(disk, SETTINGS, NOW_MS) for disk in self.disks)
        for broker in (self.by_run, self.by_row):
            broker.topics.create("a", MessageType.DELAY, 1, NOW_MS)
        self.set: list[Record] = []

    def step(self, kind: str, given: Any) -> None:
        match kind:
            case "set":
                self._set(given)
            case "deliver":
                chosen = sorted({number % len(self.set) for number in given} if self.set else ())
                if chosen:
                    self._append(self._deliveries([self.set[number] for number in chosen]))
            case "come due":
                self._come_due(given)
            case "time":
                self.now_ms += given
            case "flush":
                self.flush()

    def flush(self) -> None:
        for broker in (self.by_run, self.by_row):
            while (flush := broker.take_flush()) is not None:
                flush.write()
                broker.complete_flush(flush, self.now_ms)

    def compare(self) -> None:
        mine, others = self.by_run.timers, self.by_row.timers
        assert +mine.pending_by_topic == +others.pending_by_topic
        assert mine.near.deviating == others.near.deviating
        for timer in self.set:
            offset = timer.physical_offset
            assert (offset in mine._unarmed) == (offset in others._unarmed)
            assert (offset in mine.near) == (offset in others.near)

    def _append(self, copies: EncodedBatch) -> None:
        done = 0
        while done < len(copies):
            (run,) = self.by_run.store.append(copies.slice_rows(done, len(copies)), self.now_ms).facts
            assert isinstance(run, TimersDelivered)
            starts = np.cumsum(run.copies.record_bytes) - run.copies.record_bytes
            for start, record_bytes in zip(starts.tolist(), run.copies.record_bytes.tolist(), strict=True):
                self._apply_row(bytes(run.copies.content[start : start + record_bytes]))
            done += len(run.copies)

    def _apply_row(self, encoded: bytes) -> Record:
        """The second core takes a record as it lies in the first one's log."""
        log, record = self.by_row._log, records.decode(encoded)
        log.room_for([len(encoded)])
        log.append_encoded(bytearray(encoded))
        appended = to_append_result(record, len(encoded), facts_of(record))
        self.by_row.store._appended.append(appended)
        self.by_row.store.apply(appended)
        self.by_row.store.apply_to_parts(appended)
        return record

    def _come_due(self, count: int) -> None:
        """The first timers that wait in partitions are delivered, and the watermark passes them."""
        known = {timer.physical_offset: timer for timer in self.set}
        rows = [row for rows, _ in self.by_run.timers.partitions.scan(0, 1 << 62) for row in rows.tolist()]
        due = list(takewhile(lambda row: row[1] not in self.by_run.timers.near, rows))[:count]
        if due:
            for broker in (self.by_run, self.by_row):
                broker.timers.partitions.watermark = due[-1][:2]
            self._append(self._deliveries([known[row[1]] for row in due]))

    def _set(self, given: list[Any]) -> None:
        for topic, message_id, key, due_ms, queue_id, replaced in given:
            keyed = {"TW_TIMER_KEY": key} if key else {}
            message = Message(
                topic=topic, body=b"x", message_id=message_id, delivery_ms=due_ms, properties=keyed
            )
            old = None if replaced is None else self._replaced(replaced)
            timer = timer_record(message, queue_id, old)
            self.by_run.store.append(timer, self.now_ms)
            self.set.append(self._apply_row(records.encode(timer)))

    def _replaced(self, number: int) -> ReplacedTimer | None:
        if not self.set:
            return None
        timer = self.set[number % len(self.set)]
        return ReplacedTimer(timer.physical_offset, due_ms_of(timer))

    def _deliveries(self, chosen: list[Record]) -> EncodedBatch:
        ready = [ready_record(timer, timer.physical_offset) for timer in chosen]
        encoded = list(map(records.encode, ready))
        queues = sorted({(one.topic, one.queue_id) for one in ready})
        return EncodedBatch(
            bytearray(b"".join(encoded)),
            np.array(list(map(len, encoded))),
            [("another", 5), *queues],
            np.array([1 + queues.index((one.topic, one.queue_id)) for one in ready]),
            np.array([tags_code("")] * len(ready)),
            np.array([name_hashes(one) for one in ready], np.uint64),
            np.array([due_ms_of(timer) for timer in chosen]),
            np.array([timer.physical_offset for timer in chosen]),
        )


@settings(max_examples=300)
@given(steps)
@example(LATE)
def test_a_run_leaves_what_its_records_leave(given: list[tuple[str, Any]]) -> None:
    pair = Pair()
    for kind, what in given:
        pair.step(kind, what)
        pair.compare()
    pair.flush()
    pair.compare()
    assert tables(pair.by_run) == tables(pair.by_row)
