"""What a sender and an operator are told about timers: crowded seconds, limits, clocks, room."""

from __future__ import annotations

from dataclasses import replace

import pytest

from commitlog.records.message import Message
from services.broker.broker import Broker
from services.broker.spine.errors import TooManyTimers
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import (
    LogWarning,
    RunTimersJob,
    SendReceipt,
    TimerName,
    TimerVerdict,
    Verdict,
)
from tests.memory_disk import MemoryDisk

NOW_MS = 1_763_700_000_000
SETTINGS = BrokerSettings(segment_bytes=1 << 20)
HOUR_MS = 3_600_000


class Bench:
    """A broker on a disk in memory, its clock in the test's hand."""

    def __init__(self, settings: BrokerSettings = SETTINGS) -> None:
        self.disk, self.settings, self.now_ms, self.count = MemoryDisk(), settings, NOW_MS, 0
        self.broker = Broker.open(self.disk, settings, NOW_MS)
        self.warnings: list[str] = []

    def set(self, delay_ms: int, topic: str = "t") -> SendReceipt:
        self.count += 1
        message = Message(
            topic=topic, body=b"x", message_id=f"M{self.count}", delivery_ms=self.now_ms + delay_ms
        )
        receipt = self.broker.sending.send(message, self.now_ms)
        self.flush()
        return receipt

    def flush(self) -> None:
        while flush := self.broker.take_flush():
            flush.write()
            self.broker.complete_flush(flush, self.now_ms)

    def at(self, now_ms: int) -> None:
        """The clock shows this, whatever it showed before, and all that comes of it has been done."""
        self.now_ms = now_ms
        for _ in range(4):
            for effect in self.broker.tick(now_ms):
                if isinstance(effect, RunTimersJob):
                    effect.job.run(self.disk)
                    self.broker.complete_timers_job(effect.job)
                elif isinstance(effect, LogWarning):
                    self.warnings.append(effect.text)
            self.flush()
            if self.broker.is_checkpoint_due:
                self.checkpoint()

    def checkpoint(self) -> None:
        self.flush()
        checkpoint = self.broker.checkpoint(self.now_ms)
        checkpoint.write(self.disk)
        self.broker.complete_checkpoint(checkpoint)

    def reopen(self) -> None:
        self.broker = Broker.open(self.disk, self.settings, self.now_ms)

    def delivered(self, number: int, topic: str = "t") -> int:
        """How often message M<number> lies in its real queue."""
        found = self.broker.finding.find(topic, f"M{number}", 100).messages
        return sum(delivery.stored_topic == topic for delivery in found)


def test_no_more_timers_than_the_limit_wait_for_one_topic() -> None:
    bench = Bench(replace(SETTINGS, timers_per_topic_max=2))
    bench.set(HOUR_MS)
    bench.set(HOUR_MS)
    end_offset = bench.broker.end_offset
    with pytest.raises(TooManyTimers, match=r"2 wait for 't'.*Cancel some"):
        bench.set(HOUR_MS)
    assert bench.broker.end_offset == end_offset
    bench.set(HOUR_MS, "u")
    bench.broker.timers.cancel(TimerName("t", "M1"), "", bench.now_ms)
    bench.set(HOUR_MS)


def test_a_clock_set_back_holds_nothing_up_and_repeats_nothing() -> None:
    bench = Bench()
    bench.set(1_000)
    bench.set(7_200_000)
    bench.at(NOW_MS + 2_000)
    assert bench.delivered(1) == 1
    back_ms = NOW_MS - HOUR_MS
    bench.at(back_ms)
    bench.set(5_000)
    bench.at(back_ms + 4_999)
    assert bench.delivered(3) == 0
    bench.at(back_ms + 5_000)
    assert bench.delivered(3) == 1
    assert bench.broker.statistics.clock_jumps["backward"] == 1
    bench.set(60_000)
    bench.checkpoint()
    bench.reopen()
    bench.at(NOW_MS + 3_000)
    assert [bench.delivered(number) for number in (1, 2, 3, 4)] == [1, 0, 1, 1]
    bench.at(NOW_MS + 7_200_000)
    assert bench.delivered(2) == 1


def test_a_jump_forward_fires_what_is_due_and_says_why_it_is_late() -> None:
    bench = Bench()
    bench.set(60_000)
    bench.at(NOW_MS + 1_000)
    bench.broker.record_clock_jump(NOW_MS + 1_000, NOW_MS + HOUR_MS)
    bench.at(NOW_MS + HOUR_MS)
    assert bench.delivered(1) == 1
    assert bench.broker.statistics.lateness_by_cause == {("t", "clock"): 1}


def test_what_was_due_while_nobody_served_is_late_for_the_restart() -> None:
    bench = Bench()
    bench.set(60_000)
    bench.now_ms += HOUR_MS
    bench.reopen()
    bench.at(bench.now_ms)
    assert bench.broker.statistics.lateness_by_cause == {("t", "restart"): 1}
    found = bench.broker.timers.get_timer(TimerName("t", "M1"), bench.now_ms)
    assert isinstance(found, TimerVerdict)
    assert found.verdict is Verdict.TOO_LATE


def test_an_operator_is_warned_when_the_disk_cannot_hold_what_waits() -> None:
    bench = Bench()
    bench.set(HOUR_MS)
    bench.checkpoint()
    bench.disk.usage = lambda: (10, 1000)
    bench.at(NOW_MS + 20_000)
    refusing, short = bench.warnings
    assert refusing.startswith("TW-172 ")
    assert "the disk has room for 10" in short
