"""Background tasks that redrive or purge the dead letters of a consumer group (`services.live.bulk.tasks`).

    count -> page -> matching dead letters -> batch -> flush -> rate limit pause -> ... -> done

A message that is dead-lettered again after a redrive has an offset of at least `end_offset`, so a task never
processes a message twice. With a rate limit, a batch contains the dead letters for a tenth of a second, or
one dead letter at low rates. Small batches avoid bursts at the consumers. A dead letter that another call has
already redriven or purged is counted under the error code TW-152.

Cost: a task reads each dead letter of the group twice, and keeps one page in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum

from services.broker.groups.group_values import DeadLetter
from services.broker.spine.errors import GroupNotFound
from services.broker.task_items import TaskItem
from services.live.bulk.tasks import Task, Tasks, batch_size, pause_seconds
from services.live.queries import dead_letters
from services.live.queries.dead_letters import DeadLetterFilter
from tidewheel.errors import Busy, TidewheelError


class DeadLetterVerb(Enum):
    """An operation on a dead letter."""

    REDRIVE = "redrive"
    PURGE = "purge"


VERDICTS = {DeadLetterVerb.REDRIVE: "REDRIVEN", DeadLetterVerb.PURGE: "PURGED"}


@dataclass(slots=True, frozen=True)
class DeadLetterTaskRequest:
    """A request to purge dead letters, or to redrive them to the topic `target`.

    If `target` is empty, each dead letter is returned to its original topic and delivered only to its group.
    `per_second` is the maximum rate, or 0 for no limit.
    """

    verb: DeadLetterVerb
    group: str
    wanted: DeadLetterFilter = field(default_factory=DeadLetterFilter)
    target: str = ""
    per_second: float = 0
    reason: str = ""
    limit: int = 0


DeadLetterTask = Task[DeadLetterTaskRequest]


class DeadLetterTasks(Tasks[DeadLetterTaskRequest]):
    """Tasks on dead letters."""

    what, command = "dead letters", "dlq"

    def check(self, order: DeadLetterTaskRequest) -> None:
        """Raise an error if the group or a topic does not exist.

        The check prevents the creation of a group or topic with a misspelled name.
        """
        dead_letters.check_group(self._live, order.group)
        if order.target:
            self._live.core.topics.get(order.target)
        self._return_topics(order)

    def _end_offset(self, order: DeadLetterTaskRequest) -> int:
        return dead_letters.end_offset(self._live, order.group)

    async def _process_items(self, task: DeadLetterTask) -> None:
        """Process the dead letters that existed at the start of the task, oldest first."""
        order, end_offset = task.order, task.end_offset
        counted = await dead_letters.count_dead_letters(self._live, order.group, order.wanted, end_offset)
        task.matched = counted.total
        async for page in dead_letters.read_pages(self._live, order.group, end_offset):
            found = task.admit([one for one in page if order.wanted.matches(one)])
            if task.is_full:
                return
            size = batch_size(order.per_second)
            for first in range(0, len(found), size):
                if task.why:
                    return
                await self._process_batch(task, found[first : first + size])

    async def _process_batch(self, task: DeadLetterTask, found: Sequence[DeadLetter]) -> None:
        """Process a batch, wait until the batch is durable, and pause if there is a rate limit."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + pause_seconds(task.order.per_second, len(found))
        back = self._return_topics(task.order)
        await self._gather(task, ((_item(one), self._verb(task, one, back)) for one in found))
        with suppress(TimeoutError):
            if (left := ends - loop.time()) > 0:
                async with asyncio.timeout(left):
                    await task.stop_requested.wait()

    def _return_topics(self, order: DeadLetterTaskRequest) -> set[str] | None:
        is_back = order.verb is DeadLetterVerb.REDRIVE and not order.target
        return dead_letters.find_return_topics(self._live, order.group) if is_back else None

    async def _verb(self, task: DeadLetterTask, dead_letter: DeadLetter, back: set[str] | None) -> str:
        """Perform the operation on a dead letter. Return the verdict or an error code.

        `back` is the set of original topics to which dead letters may be returned. It is None for a purge and
        for a request with a target topic.
        """
        order = task.order
        try:
            if order.verb is DeadLetterVerb.PURGE:
                await self._live.call(
                    self._live.core.dead_letters.purge, order.group, dead_letter.queue_offset
                )
            else:
                if back is not None and dead_letter.topic not in back:
                    return task.refuse(GroupNotFound(f"{order.group} does not receive {dead_letter.topic}."))
                await self._live.groups.redrive(order.group, dead_letter.queue_offset, order.target)
        except Busy:
            raise
        except TidewheelError as error:
            return task.refuse(error)
        return VERDICTS[order.verb]


def _item(dead_letter: DeadLetter) -> TaskItem:
    return TaskItem(dead_letter.topic, str(dead_letter.queue_offset), dead_letter.message.message_id, "")
