"""What an export appends behind the copied log: RocketMQ's own records for what waits and what is over."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from commitlog.errors import StoreDamaged
from commitlog.records import properties
from commitlog.records.kinds import HALF_TOPIC, TIMER_TOPIC, without_endings
from commitlog.records.record import COMPRESSION, Record
from services.rocketmq.append import Appender
from services.rocketmq.names import DISCARD_TOPIC, OP_TOPIC
from services.store.read_only.state import HalfState
from services.store.read_only.timers import Waiting
from tidewheel import property_names

OP_TAG: Final = "d"
OP_BODY_BYTES_MAX: Final = 4096


class Handover:
    """Reads records with `read`, appends with `appender`, tells `indexed` of each one and its length."""

    def __init__(
        self,
        read: Callable[[int], Record],
        first_offset: int,
        appender: Appender,
        indexed: Callable[[Record, int], None],
    ) -> None:
        self.timer_count = 0
        self.op_count = 0
        self.half_offset = 0
        """The queue offset of the first half that RocketMQ must look at."""
        self.op_offset = appender.next_offsets.get((OP_TOPIC, 0), 0)
        """The queue offset of the first op record that it must read."""
        self.end_offset = 0
        self.notes: list[str] = []
        self._read = read
        self._first_offset = first_offset
        self._appender = appender
        self._indexed = indexed

    def timers(self, waiting: Iterable[Waiting]) -> None:
        """Write a fresh timer record for each timer that waits, in due order."""
        for timer in waiting:
            if timer.record is None:
                self.notes.append(f"Not handed over: the timer at {timer.timer_offset} cannot be read.")
                continue
            stored = without_endings(timer.record.properties)
            self._append(_copy(timer.record, TIMER_TOPIC, properties.encode(stored)))
            self.timer_count += 1

    def halves(self, halves: Iterable[HalfState], queue_offsets: dict[int, int]) -> None:
        """Op records for all halves of the log that are not open; `queue_offsets` has those by place."""
        waiting = {half.half_offset: half.state for half in halves if half.state in ("OPEN", "EXPIRED")}
        open_offsets = [
            queue_offset for offset, queue_offset in queue_offsets.items() if waiting.get(offset) == "OPEN"
        ]
        next_offset = self._appender.next_offsets.get((HALF_TOPIC, 0), 0)
        self.half_offset = min(open_offsets, default=next_offset)
        for offset, state in waiting.items():
            if state == "EXPIRED":
                self._again(offset, DISCARD_TOPIC)
            elif offset < self._first_offset:
                self._again(offset, HALF_TOPIC)
        over = [
            queue_offset
            for offset, queue_offset in queue_offsets.items()
            if waiting.get(offset) != "OPEN" and queue_offset >= self.half_offset
        ]
        self._write_ops(sorted(over))

    def _again(self, offset: int, topic: str) -> None:
        original = self._original(offset)
        if original is not None:
            self._append(_copy(original, topic, original.properties))

    def _write_ops(self, over: list[int]) -> None:
        body = b""
        for queue_offset in over:
            word = b"%d," % queue_offset
            if len(body) + len(word) > OP_BODY_BYTES_MAX:
                self._write_op(body)
                body = b""
            body += word
        if body:
            self._write_op(body)
        self.op_count = len(over)

    def _write_op(self, body: bytes) -> None:
        self._append(
            Record(topic=OP_TOPIC, body=body, properties=properties.encode({property_names.TAG: OP_TAG}))
        )

    def _original(self, offset: int) -> Record | None:
        try:
            return self._read(offset)
        except StoreDamaged as error:
            self.notes.append(f"Not handed over: {error}")
            return None

    def _append(self, new: Record) -> None:
        record_bytes = self._appender.append(new)
        self.end_offset = new.physical_offset + record_bytes
        self._indexed(new, record_bytes)


def _copy(original: Record, topic: str, stored: bytes) -> Record:
    return replace(
        original,
        topic=topic,
        queue_id=0,
        properties=stored,
        sys_flag=original.sys_flag & COMPRESSION,
        half_offset=0,
    )
