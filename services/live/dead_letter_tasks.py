"""Redrive and purge: a task over a group's dead letters; `services.live.tasks` has the rules.

    count -> page of them -> those that match -> a slice -> its flush -> the rate's pause -> ... -> done

A dead letter that goes back and is given up again lies behind `end_offset` and is left alone: a task never
drives it round in a circle. With a rate a slice is a tenth of a second's, so the receivers of the target see
a stream and no bursts. One that somebody else redrove or purged meanwhile is counted under TW-152.

Cost: every dead letter of the group is read twice; one page of them in memory for each task that runs.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum

from commitlog import limits
from services.broker.groups.group_values import DeadLetter
from services.broker.spine.errors import GroupNotFound
from services.live import dead_letters
from services.live.dead_letters import DeadLetterFilter
from services.live.tasks import Task, Tasks
from tidewheel.errors import Busy, TidewheelError

SLICES_PER_SECOND = 10


class DeadLetterVerb(Enum):
    """What a task does to each dead letter."""

    REDRIVE = "redrive"
    PURGE = "purge"


VERDICTS = {DeadLetterVerb.REDRIVE: "REDRIVEN", DeadLetterVerb.PURGE: "PURGED"}


@dataclass(slots=True, frozen=True)
class DeadLetterOrder:
    """What a task is to do: purge, or send to `target` ("": back to its own topic, for the group alone).

    At most `per_second` dead letters a second, or with 0 as fast as it goes.
    """

    verb: DeadLetterVerb
    group: str
    wanted: DeadLetterFilter = field(default_factory=DeadLetterFilter)
    target: str = ""
    per_second: float = 0
    reason: str = ""

    @property
    def slice_count(self) -> int:
        """The number of dead letters that go at once."""
        if not self.per_second:
            return limits.TASK_SLICE
        return min(limits.TASK_SLICE, max(1, int(self.per_second / SLICES_PER_SECOND)))

    def pause_seconds(self, count: int) -> float:
        """Return how many seconds so many dead letters are to take."""
        return count / self.per_second if self.per_second else 0


DeadLetterTask = Task[DeadLetterOrder]


class DeadLetterTasks(Tasks[DeadLetterOrder]):
    """The tasks over dead letters."""

    what = "dead letters"

    def check(self, order: DeadLetterOrder) -> None:
        """Refuse a group or a target that is not there, so that a misspelt one is not made."""
        dead_letters.check_group(self._live, order.group)
        if order.target:
            self._live.core.topics.get(order.target)
        self._back(order)

    def _end_offset(self, order: DeadLetterOrder) -> int:
        return dead_letters.end_offset(self._live, order.group)

    async def _work(self, task: DeadLetterTask) -> None:
        """Go through the dead letters that were there when the task began, the oldest first."""
        order, end_offset = task.order, task.end_offset
        task.matched = await dead_letters.count(self._live, order.group, order.wanted, end_offset)
        async for page in dead_letters.pages(self._live, order.group, end_offset):
            found = [dead_letter for dead_letter in page if order.wanted.matches(dead_letter)]
            for first in range(0, len(found), order.slice_count):
                if task.why:
                    return
                await self._slice(task, found[first : first + order.slice_count])

    async def _slice(self, task: DeadLetterTask, found: list[DeadLetter]) -> None:
        """Carry the verb out on a slice, wait until that is durable, and as long as the rate wants."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + task.order.pause_seconds(len(found))
        back = self._back(task.order)
        task.by_verdict.update(await asyncio.gather(*(self._verb(task.order, one, back) for one in found)))
        with suppress(TimeoutError):
            if (left := ends - loop.time()) > 0:
                async with asyncio.timeout(left):
                    await task.told.wait()

    def _back(self, order: DeadLetterOrder) -> set[str] | None:
        is_back = order.verb is DeadLetterVerb.REDRIVE and not order.target
        return dead_letters.topics_back(self._live, order.group) if is_back else None

    async def _verb(self, order: DeadLetterOrder, dead_letter: DeadLetter, back: set[str] | None) -> str:
        """Carry the verb out on a dead letter; return the verdict, or the code of the error that refused it.

        `back`: where a dead letter may go if it goes back; None if none does.
        """
        try:
            if order.verb is DeadLetterVerb.PURGE:
                await self._live.call(
                    self._live.core.dead_letters.purge, order.group, dead_letter.queue_offset
                )
            else:
                if back is not None and dead_letter.topic not in back:
                    return GroupNotFound.code
                await self._live.groups.redrive(order.group, dead_letter.queue_offset, order.target)
        except Busy:
            raise
        except TidewheelError as error:
            return error.code
        return VERDICTS[order.verb]
