"""Background tasks that move messages from one topic to another (`services.live.bulk.tasks`).

    count -> queue -> page -> matching messages -> batch in order -> flush -> rate limit pause -> ...

A task moves the unfinished messages that were stored before the start of the task. The messages in a batch
are moved in offset order (`services.broker.topic_moves`). The verdict on a message is MOVED, LEASED (the
message, or another message of the same message group, is leased to a consumer), FINISHED, UNREADABLE, or an
error code. A preview determines the verdicts without moving any messages.

Cost: each unfinished message is read twice, and the record of each moved message is copied.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from math import inf
from time import monotonic
from typing import NamedTuple

from commitlog import limits
from commitlog.records.message import Message
from services.broker.task_items import TaskItem
from services.broker.topic_moves import MOVED, WHY_LEFT, MessageToMove
from services.live.bulk.tasks import Task, Tasks, batch_size, pause_seconds
from tidewheel.errors import Busy, TidewheelError


class MoveVerb(Enum):
    """An operation on a message."""

    MOVE = "move"


@dataclass(slots=True, frozen=True)
class MessageFilter:
    """A filter for messages. A message matches only if it meets all specified conditions.

    `key` matches a message if it equals the message id or one of the message keys.
    """

    key: str = ""
    tag: str = ""
    properties: tuple[tuple[str, str], ...] = ()

    def matches(self, message: Message) -> bool:
        """Return whether a message matches the filter."""
        return (
            self.key in ("", message.message_id, *message.keys)
            and self.tag in ("", message.tag)
            and all(message.properties.get(name) == value for name, value in self.properties)
        )


EVERY_MESSAGE = MessageFilter()


@dataclass(slots=True, frozen=True)
class MoveTaskRequest:
    """A request to move messages from `source` to `target`.

    `per_second` is the maximum rate, or 0 for no limit.
    """

    source: str
    target: str
    wanted: MessageFilter = field(default_factory=MessageFilter)
    per_second: float = 0
    reason: str = ""
    limit: int = 0
    verb: MoveVerb = MoveVerb.MOVE


MoveTask = Task[MoveTaskRequest]


class QueuePlace(NamedTuple):
    """The position of a message in the queues of a topic."""

    queue_id: int
    queue_offset: int


class MatchingPage(NamedTuple):
    """The matching messages of a page.

    `first` is the position of the first message of the page, or None if the page is empty.
    """

    first: QueuePlace | None
    messages: list[MessageToMove]


@dataclass(slots=True)
class Preview:
    """The number of messages per verdict, and the reason for each verdict other than MOVED.

    `counted_until` is the position of the first message that was not counted, or None if all messages were
    counted.
    """

    by_verdict: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, str] = field(default_factory=dict)
    counted_until: QueuePlace | None = None


class MoveTasks(Tasks[MoveTaskRequest]):
    """Tasks that move messages."""

    what, command = "messages", "topic"

    def check(self, order: MoveTaskRequest) -> None:
        """Raise an error if a topic does not exist, or if messages cannot be moved between the topics."""
        is_filtered = order.wanted != EVERY_MESSAGE
        self._live.core.topic_moves.check(order.source, order.target, is_filtered=is_filtered)

    async def preview(self, order: MoveTaskRequest, seconds_max: float = inf) -> Preview:
        """Return the current verdicts on the messages that match the filter of a request.

        Stop after about `seconds_max` seconds if messages remain.
        """
        preview, staying = Preview(), set[int]()
        ends, has_read = monotonic() + seconds_max, False
        async for page in self._pages(order, self._live.core.end_offset):
            if has_read and page.first is not None and monotonic() >= ends:
                preview.counted_until = page.first
                return preview
            has_read = has_read or page.first is not None
            for one in page.messages:
                verdict_of = partial(self._live.core.topic_moves.verdict, is_behind=one.queue_id in staying)
                try:
                    place = order.source, one.queue_id, one.queue_offset
                    verdict, reason = self._live.query(verdict_of, *place, order.target), ""
                except Busy:
                    raise
                except TidewheelError as error:
                    verdict, reason = error.code, str(error)
                preview.by_verdict[verdict] += 1
                if verdict != MOVED:
                    staying.add(one.queue_id)
                    preview.reasons.setdefault(verdict, reason or WHY_LEFT[verdict])
        return preview

    def _end_offset(self, order: MoveTaskRequest) -> int:
        return self._live.core.end_offset

    async def _process_items(self, task: MoveTask) -> None:
        """Move the messages that were stored before the start of the task, one queue at a time."""
        order = task.order
        task.matched = sum([len(page.messages) async for page in self._pages(order, task.end_offset)])
        async for page in self._pages(order, task.end_offset):
            found = task.admit(page.messages)
            size = batch_size(order.per_second)
            for first in range(0, len(found), size):
                if task.why:
                    return
                await self._process_batch(task, found[first : first + size])
            if task.is_full or task.why:
                return

    async def _pages(self, order: MoveTaskRequest, end_offset: int) -> AsyncIterator[MatchingPage]:
        """Yield pages of matching messages in order of queue and offset.

        Each page is read in a separate event loop iteration.
        """
        read, count = self._live.core.topic_moves.read_page, limits.DEAD_LETTERS_EXAMINED_AT_ONCE
        for queue_id in range(self._live.core.topics.get(order.source).queue_count):
            after: int | None = 0
            while after is not None:
                page = self._live.query(read, order.source, queue_id, after, end_offset, count)
                found = [one for one in page.messages if order.wanted.matches(one.message)]
                first = QueuePlace(*page.messages[0][:2]) if page.messages else None
                yield MatchingPage(first, found)
                after = page.after
                await asyncio.sleep(0)

    async def _process_batch(self, task: MoveTask, found: Sequence[MessageToMove]) -> None:
        """Move a batch in order, wait until the batch is durable, and pause if there is a rate limit."""
        loop, order = asyncio.get_running_loop(), task.order
        ends, done, durable_at = (
            loop.time() + pause_seconds(order.per_second, len(found)),
            list[TaskItem](),
            0,
        )
        try:
            for one in found:
                await self._live.room.wait_for_copy()
                verdict, moved_at = self._move(task, one)
                name = f"{one.queue_id}:{one.queue_offset}"
                done.append(TaskItem(order.source, name, one.message.message_id, verdict))
                durable_at = max(durable_at, moved_at)
        finally:
            await self._complete_items(task, done, durable_at)
        with suppress(TimeoutError):
            if (left := ends - loop.time()) > 0:
                async with asyncio.timeout(left):
                    await task.stop_requested.wait()

    def _move(self, task: MoveTask, one: MessageToMove) -> tuple[str, int]:
        """Move a message.

        Return the verdict or an error code, and the offset up to which the log must be durable.
        """
        order, move = task.order, self._live.core.topic_moves.move
        try:
            moved = self._live.call_with_time(
                move, order.source, one.queue_id, one.queue_offset, order.target
            )
        except Busy:
            raise
        except TidewheelError as error:
            return task.refuse(error), 0
        if moved.verdict in WHY_LEFT:
            task.reasons.setdefault(moved.verdict, WHY_LEFT[moved.verdict])
        return moved
