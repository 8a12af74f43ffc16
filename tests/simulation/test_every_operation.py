"""Crash or fail each disk operation of a scenario in turn; the store must start again without losses.

A scenario creates a store and records the acknowledged messages; then it acts, and the process dies before,
during or after operation number 1, 2, 3 ... of that, or the operation fails. The process ends by a kill, or
by a power cut that keeps nothing, half or all of the unsynced writes. The store must open, contain all
acknowledged messages and none that was not sent, pass the verification, and open again after a power cut that
drops all unsynced writes: the messages visible after the first start are on disk.

Each (operation, fault) meets one of the ends in turn; with `--seeds` above 100, all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from typing import Final, NamedTuple

import pytest

from commitlog import layout
from commitlog.disk.disk import SyncFailed
from commitlog.log.retention import RetentionPolicy
from commitlog.log.sink import SegmentFiles
from commitlog.records.message import Message
from consumequeue.indexes import timerindex_recent
from services.broker.broker import Broker
from services.broker.spine.errors import DiskFull
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import Resolution, RetireSegments
from services.store.read_only.opening import look_at
from services.store.verify.verify import verify
from tests.memory_disk import Death, Fault, MemoryDisk

NOW_MS: Final = 1_763_700_000_000
SEGMENT_BYTES: Final = 1024
SETTINGS: Final = BrokerSettings(
    segment_bytes=SEGMENT_BYTES, queue_count=1, housekeeping_ms=1_000, tail_entries_max=4
)
BRIEF: Final = replace(SETTINGS, retention=RetentionPolicy(log_bytes_max=2 * SEGMENT_BYTES, group_pin_ms=0))
TOPIC: Final = "t"


class Bench:
    """A broker on a disk, with its effects and its clients; `told` has the acknowledged message ids."""

    def __init__(self, settings: BrokerSettings = SETTINGS, disk: MemoryDisk | None = None) -> None:
        self.disk = disk or MemoryDisk()
        self.settings = settings
        self.now_ms = NOW_MS
        self.sent = 0
        self.told: set[str] = set()
        self.halves: dict[str, str] = {}
        self.broker: Broker | None = None

    def start(self, acknowledged_offset: int | None = None) -> Broker:
        self.broker = Broker.open(self.disk, self.settings, self.now_ms, acknowledged_offset)
        return self.broker

    def send(self, count: int = 1, body_bytes: int = 100, *, half: bool = False) -> None:
        """Send messages or halves, flush, and record the acknowledgements."""
        assert self.broker is not None
        ids = [f"M{number}" for number in range(self.sent, self.sent + count)]
        self.sent += count
        for message_id in ids:
            message = Message(topic=TOPIC, body=b"x" * body_bytes, message_id=message_id, transactional=half)
            receipt = self.broker.sending.send(message, self.now_ms)
            if half:
                self.halves[message_id] = receipt.transaction_id
        self.flush()
        self.told |= set(ids) if not half else set()

    def append(self, count: int, body_bytes: int = 100) -> None:
        """Send without a flush, so that the messages are not acknowledged."""
        assert self.broker is not None
        for _ in range(count):
            message = Message(topic=TOPIC, body=b"x" * body_bytes, message_id=f"M{self.sent}")
            self.broker.sending.send(message, self.now_ms)
            self.sent += 1

    def flush(self) -> None:
        assert self.broker is not None
        while (flush := self.broker.take_flush()) is not None:
            flush.write()
            self.broker.complete_flush(flush, self.now_ms)
        if (entries := self.broker.take_entries()) is not None:
            entries.write(self.disk)
            self.broker.complete_entries()

    def checkpoint(self) -> None:
        assert self.broker is not None
        self.flush()
        checkpoint = self.broker.checkpoint(self.now_ms)
        checkpoint.write(self.disk)
        self.broker.complete_checkpoint(checkpoint)

    def run_maintenance(self) -> None:
        """Let time pass, and run the retention and due checkpoints."""
        assert self.broker is not None
        for _ in range(4):
            self.now_ms += 1_000
            for effect in self.broker.tick(self.now_ms):
                if isinstance(effect, RetireSegments):
                    self.flush()
                    effect.retirement.run(self.disk)
                    self.broker.continue_retirement(effect.retirement, self.now_ms)
            self.flush()
            if self.broker.is_checkpoint_due:
                self.checkpoint()


def first_start() -> Bench:
    return Bench()


def start_and_send(bench: Bench) -> None:
    bench.start()
    bench.send(3)
    bench.send(12)


def with_messages(settings: BrokerSettings = SETTINGS) -> Bench:
    bench = Bench(settings)
    bench.start()
    bench.send(10)
    bench.checkpoint()
    bench.send(4)
    return bench


def torn(bench: Bench) -> Bench:
    """Simulate a power cut during a flush that filled one segment and began others."""
    assert bench.broker is not None
    bench.append(15)
    flush = bench.broker.take_flush()
    assert flush is not None
    files = SegmentFiles(bench.disk, bench.broker._log.segments, sync=False)
    files.append(flush.first_offset, flush.parts, 0)
    bench.disk.crash(lambda count: count // 2)
    bench.broker = None
    return bench


def start(bench: Bench) -> None:
    bench.start()
    bench.send(2)


def checkpoint(bench: Bench) -> None:
    bench.send(3)
    bench.checkpoint()
    bench.send(1)
    bench.checkpoint()


def with_halves() -> Bench:
    bench = Bench(BRIEF)
    bench.start()
    bench.send(2, half=True)
    for _ in range(3):
        bench.send(12)
        bench.checkpoint()
    bench.told.clear()  # retention may delete them, but never the halves
    return bench


def retire(bench: Bench) -> None:
    bench.run_maintenance()
    bench.send(12)
    bench.told.clear()
    bench.checkpoint()
    bench.run_maintenance()


def rebuild(bench: Bench) -> None:
    """Rebuild the core from the disk after a failed flush, in the same process."""
    assert bench.broker is not None
    bench.append(15)
    flush = bench.broker.take_flush()
    assert flush is not None
    bench.disk.failing_syncs = 2
    files = SegmentFiles(bench.disk, bench.broker._log.segments, sync=True)
    for offset, share in files.shares(flush.first_offset, flush.parts):
        with suppress(SyncFailed):
            files.append(offset, [share], 0)
    bench.disk.failing_syncs = 0
    bench.start(bench.broker.durable_offset)
    bench.send(3)


class Scenario(NamedTuple):
    """Creation of a store, whether its broker runs before the faults begin, and the faulty actions."""

    make: Callable[[], Bench]
    is_running: bool
    act: Callable[[Bench], None]


SCENARIOS: Final = {
    "first start and sends": Scenario(first_start, False, start_and_send),
    "start after a stop": Scenario(with_messages, False, start),
    "start after a torn flush": Scenario(lambda: torn(with_messages()), False, start),
    "checkpoint": Scenario(with_messages, True, checkpoint),
    "retention": Scenario(with_halves, True, retire),
    "rebuild": Scenario(with_messages, True, rebuild),
}
ENDS: Final[dict[str, Callable[[MemoryDisk], None]]] = {
    "killed": lambda disk: disk.kill(lambda count: 0),
    "killed, and given up pages dropped": lambda disk: disk.kill(lambda count: count),
    "power cut, nothing kept": lambda disk: disk.crash(lambda count: 0),
    "power cut, half kept": lambda disk: disk.crash(lambda count: count // 2),
    "power cut, all kept": lambda disk: disk.crash(lambda count: count),
}


def struck(scenario: Scenario, fault: Fault) -> Iterator[Bench]:
    """Yield the bench after each operation of a scenario in turn was the last one, or failed."""
    made = scenario.make()
    made.broker = None
    number, is_struck = 0, True
    while is_struck:
        number += 1
        bench = deepcopy(made)
        if scenario.is_running:
            bench.start()
        bench.disk.strike(number, fault)
        with suppress(Death, OSError, DiskFull):
            scenario.act(bench)
        is_struck = bench.disk.is_struck
        bench.broker = None
        yield bench


def messages_of(broker: Broker) -> list[str]:
    first, end = broker.finding.queue_range(TOPIC, 0) if broker.topics.all() else (0, 0)
    found: list[str] = []
    for at in range(first, end):
        found += [delivery.message.message_id for delivery in broker.finding.read(TOPIC, 0, at, 1)]
    return found


def check(bench: Bench, where: str) -> None:
    """Verify that the store starts, twice, with all acknowledged messages."""
    broker = bench.start()
    found = messages_of(broker)
    assert not broker.damaged, where
    assert bench.told <= set(found), f"lost {where}: {bench.told - set(found)}"
    assert len(found) == len(set(found)), f"twice {where}"
    assert set(found) <= {f"M{number}" for number in range(bench.sent)}, where
    for transaction_id in bench.halves.values():
        assert broker.half_views.get_half(transaction_id).state.name == "OPEN", where
    bench.disk.crash(lambda count: 0)
    again = bench.start()
    assert messages_of(again) == found, f"what a start has shown is gone {where}"
    for message_id, transaction_id in bench.halves.items():
        again.transactions.end(TOPIC, transaction_id, message_id, Resolution.COMMIT, bench.now_ms)
    bench.send(9)
    assert set(bench.halves) <= set(messages_of(again)), f"a half is lost {where}"
    verdict = verify(look_at(bench.disk, "the store"), bench.now_ms)
    assert verdict.is_sound, (where, verdict.findings)
    assert {bench.disk.size(layout.segment_path(at)) for at in layout.segment_offsets(bench.disk)} == {
        SEGMENT_BYTES
    }, where


@pytest.mark.parametrize("fault", Fault, ids=[fault.value for fault in Fault])
@pytest.mark.parametrize("name", SCENARIOS)
def test_whatever_operation_is_the_last_or_fails_the_store_starts_with_all_it_held(
    name: str, fault: Fault, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timerindex_recent, "_SLOTS", 1023)  # there are no timers here, and many starts
    takes_all = request.config.getoption("--seeds") > 100
    count = list(Fault).index(fault)
    for bench in struck(SCENARIOS[name], fault):
        count += 1
        for how in ENDS if takes_all else [list(ENDS)[count % len(ENDS)]]:
            end = ENDS[how]
            ended = deepcopy(bench)
            end(ended.disk)
            check(ended, f"at operation {count}, {how}")
    assert count > 5


@pytest.mark.parametrize("segments", [1, 4])
def test_a_store_with_a_short_tail_and_no_known_size_starts_with_all_it_held(segments: int) -> None:
    """The tail is truncated and not yet allocated again, and the second line of `format` is lost."""
    bench = Bench()
    bench.start()
    bench.send(2 if segments == 1 else 12)
    assert bench.broker is not None
    end_offset = bench.broker.end_offset
    tail = layout.segment_offsets(bench.disk)[-1]
    bench.disk.truncate(layout.segment_path(tail), end_offset - tail)
    bench.disk.delete(layout.FORMAT)
    bench.disk.write(layout.FORMAT, 0, b"tidewheel 1\n")
    bench.disk.sync(layout.FORMAT)
    assert len(layout.segment_offsets(bench.disk)) == segments
    check(bench, "without a known size")
