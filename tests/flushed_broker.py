"""A broker on a disk in memory, with everything flushed after each call, and a clock that the test moves."""

from __future__ import annotations

from typing import Final

from services.broker.broker import Broker
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import RunTimersJob
from tests.memory_disk import MemoryDisk

NOW_MS: Final = 1_763_700_000_000


class FlushedBroker:
    """A broker with its disk and clock; `count` is for the ids of the messages that a test sends."""

    def __init__(self, settings: BrokerSettings) -> None:
        self.disk, self.settings, self.now_ms, self.count = MemoryDisk(), settings, NOW_MS, 0
        self.broker = Broker.open(self.disk, settings, self.now_ms)

    def flush(self) -> list[object]:
        """Make everything durable; return the effects."""
        effects: list[object] = []
        while flush := self.broker.take_flush():
            flush.write()
            effects += self.broker.complete_flush(flush, self.now_ms)
        return effects

    def advance(self, by_ms: int) -> list[object]:
        """Move the clock, with a tick at each due time; return the effects."""
        end_ms, effects = self.now_ms + by_ms, []
        while (due_ms := self.broker.next_due_ms()) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            effects += self._tick() + self.flush()
        self.now_ms = end_ms
        return effects

    def _tick(self) -> list[object]:
        """Return the effects of a tick, except reads of files of timers, which are done at once."""
        effects: list[object] = []
        for effect in self.broker.tick(self.now_ms):
            if isinstance(effect, RunTimersJob):
                effect.job.run(self.disk)
                self.broker.complete_timers_job(effect.job)
            else:
                effects.append(effect)
        return effects

    def checkpoint(self) -> None:
        """Write a checkpoint."""
        checkpoint = self.broker.checkpoint(self.now_ms)
        checkpoint.write(self.disk)
        self.broker.complete_checkpoint(checkpoint)

    def reopen(self) -> None:
        """Start the broker again from its disk."""
        self.broker = Broker.open(self.disk, self.settings, self.now_ms)
