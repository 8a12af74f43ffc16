"""What a broker holds in memory does not grow with what has passed, only with what is open or recent.

A broker on a real disk stores messages of every kind and gives them out, minute after minute of its own time,
with a checkpoint now and then. Once all that it remembers for a time or up to a number is full, the bytes
that Python and numpy have allocated (`tracemalloc`) are compared, always right behind a checkpoint. A number
so large that it is not reached by then is found as well: it fills for hours, and looks like a leak.
"""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from commitlog.disk.real_disk import RealDisk
from commitlog.records.message import Message
from consumequeue.filters.filter import parse_tags
from consumequeue.indexes import keyindex
from services.broker.broker import Broker
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import Resolution, RunTimersJob, SendReceipt

NOW_MS: Final = 1_763_700_000_000
TOPIC, GROUP = "t", "g"
PLAIN, DELAYED, HALVES = 25, 25, 150
"""How many of each kind are sent in a round; what is known of halves is what fills slowest."""
ROUND_MS: Final = 10_000
DELAY_MS: Final = 3_000
CYCLE_ROUNDS: Final = 10
"""From one checkpoint to the next."""
CYCLE_MESSAGES: Final = CYCLE_ROUNDS * (PLAIN + DELAYED + HALVES)
FULL_CYCLES: Final = 7
"""By then, after 700 s and 10,500 halves, all is full that is kept for ten minutes or up to a number."""
COUNTED_CYCLES, LOW_CYCLES = 6, 2
"""Of so many cycles the lowest bytes of the first and of the last few are compared: a table may just grow."""
BYTES_PER_MESSAGE_MAX: Final = 6
"""Measured: 0.4, which is what is known of timers for a week (`timerindex`), 3.5 bytes each."""


class Passing:
    """A broker that messages pass through, each received and acknowledged."""

    def __init__(self, folder: Path) -> None:
        self.now_ms, self.sent_count, self.received_count = NOW_MS, 0, 0
        self._disk = RealDisk(folder)
        self.broker = Broker.open(self._disk, BrokerSettings(segment_bytes=1 << 26), NOW_MS)

    def cycle(self) -> int:
        """Let messages pass, and write a checkpoint; return the bytes that are allocated then."""
        for _ in range(CYCLE_ROUNDS):
            self._round()
        checkpoint = self.broker.checkpoint(self.now_ms)
        checkpoint.write(self._disk)
        self.broker.complete_checkpoint(checkpoint)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    def close(self) -> None:
        self._disk.close()

    def _round(self) -> None:
        for _ in range(PLAIN):
            self._send()
        for _ in range(DELAYED):
            self._send(delivery_ms=self.now_ms + DELAY_MS)
        halves = [self._send(transactional=True) for _ in range(HALVES)]
        self._flush()
        for half in halves:
            name = TOPIC, half.transaction_id, half.message_id
            self.broker.transactions.end(*name, Resolution.COMMIT, self.now_ms)
        self._flush()
        self._pass_time()
        while self._receive():
            self._flush()
        entries = self.broker.take_entries()
        if entries is not None:
            entries.write(self._disk)
            self.broker.complete_entries()
        assert self.received_count == self.sent_count, "a message was not received when it was due"

    def _send(self, **attributes: Any) -> SendReceipt:
        self.sent_count += 1
        name = f"M{self.sent_count:030d}"
        message = Message(topic=TOPIC, body=b"x", message_id=name, keys=(f"k{name}",), **attributes)
        return self.broker.sending.send(message, self.now_ms)

    def _flush(self) -> None:
        while (flush := self.broker.take_flush()) is not None:
            flush.write()
            self.broker.complete_flush(flush, self.now_ms)

    def _pass_time(self) -> None:
        end_ms = self.now_ms + ROUND_MS
        while (due_ms := self.broker.next_due_ms()) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            for effect in self.broker.tick(self.now_ms):
                if isinstance(effect, RunTimersJob):
                    effect.job.run(self._disk)
                    self.broker.complete_timers_job(effect.job)
            self._flush()
        self.now_ms = end_ms

    def _receive(self) -> int:
        receiving = self.broker.receiving
        received = receiving.receive(GROUP, TOPIC, parse_tags("*"), 32, 20_000, "c", False, self.now_ms)
        for one in received.deliveries:
            receiving.ack(GROUP, TOPIC, one.receipt_handle, self.now_ms)
        self.received_count += len(received.deliveries)
        return len(received.deliveries)


def test_what_a_broker_holds_does_not_grow_with_what_has_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Filters of the key index take some 10 MB in all, which so few messages do not fill.
    monkeypatch.setattr(keyindex, "KEYS", replace(keyindex.KEYS, filtered_max=8 * CYCLE_MESSAGES))
    tracemalloc.start()
    passing = Passing(tmp_path)
    try:
        for _ in range(FULL_CYCLES):
            passing.cycle()
        held = [passing.cycle() for _ in range(COUNTED_CYCLES)]
    finally:
        tracemalloc.stop()
        passing.close()
    grown_bytes = min(held[-LOW_CYCLES:]) - min(held[:LOW_CYCLES])
    passed_count = (COUNTED_CYCLES - LOW_CYCLES) * CYCLE_MESSAGES
    assert grown_bytes <= BYTES_PER_MESSAGE_MAX * passed_count, held
