"""Redrive and purge: a task over a group's dead letters; `services.live.tasks` has the rules.

    count -> page of letters -> those that match -> a slice -> its flush -> the rate's pause -> ... -> done

A letter that goes back and is given up again lies behind `end_offset` and is left alone: a task never drives
a letter round in a circle. With a rate a slice is a tenth of a second's, so the receivers of the target see a
stream and no bursts. One that somebody else redrove or purged meanwhile is counted under TW-152.

Cost: every letter of the group is read twice; one page of them in memory for each task that runs.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum

from commitlog import limits
from commitlog.errors import Busy, GroupNotFound, TidewheelError
from services.broker.group_values import DeadLetter
from services.live import letters
from services.live.letters import LetterFilter
from services.live.tasks import Task, Tasks

SLICES_PER_SECOND = 10


class LetterVerb(Enum):
    """What a task does to each dead letter."""

    REDRIVE = "redrive"
    PURGE = "purge"


VERDICTS = {LetterVerb.REDRIVE: "REDRIVEN", LetterVerb.PURGE: "PURGED"}


@dataclass(slots=True, frozen=True)
class LetterOrder:
    """What a task is to do: purge, or send to `target` ("": back to its own topic, for the group alone).

    At most `per_second` letters a second, or with 0 as fast as it goes.
    """

    verb: LetterVerb
    group: str
    wanted: LetterFilter = field(default_factory=LetterFilter)
    target: str = ""
    per_second: float = 0
    reason: str = ""

    @property
    def slice_count(self) -> int:
        """How many letters go at once."""
        if not self.per_second:
            return limits.TASK_SLICE
        return min(limits.TASK_SLICE, max(1, int(self.per_second / SLICES_PER_SECOND)))

    def pause_seconds(self, count: int) -> float:
        """How long so many letters are to take."""
        return count / self.per_second if self.per_second else 0


LetterTask = Task[LetterOrder]


class LetterTasks(Tasks[LetterOrder]):
    """The tasks over dead letters."""

    what = "dead letters"

    def check(self, order: LetterOrder) -> None:
        """Refuse a group or a target that is not there, so that a misspelt one is not made."""
        letters.check_group(self._live, order.group)
        if order.target:
            self._live.core.topics.get(order.target)
        self._back(order)

    def _end_offset(self, order: LetterOrder) -> int:
        return letters.end_offset(self._live, order.group)

    async def _work(self, task: LetterTask) -> None:
        """Go through the letters that were there when the task began, the oldest first."""
        order, end_offset = task.order, task.end_offset
        task.matched = await letters.count(self._live, order.group, order.wanted, end_offset)
        async for page in letters.pages(self._live, order.group, end_offset):
            found = [letter for letter in page if order.wanted.matches(letter)]
            for first in range(0, len(found), order.slice_count):
                if task.why:
                    return
                await self._slice(task, found[first : first + order.slice_count])

    async def _slice(self, task: LetterTask, found: list[DeadLetter]) -> None:
        """Do it to some letters at once, wait until that is durable and as long as the rate wants."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + task.order.pause_seconds(len(found))
        back = self._back(task.order)
        task.by_verdict.update(await asyncio.gather(*(self._verb(task.order, one, back) for one in found)))
        with suppress(TimeoutError):
            if (left := ends - loop.time()) > 0:
                await asyncio.wait_for(task.told.wait(), left)

    def _back(self, order: LetterOrder) -> set[str] | None:
        is_back = order.verb is LetterVerb.REDRIVE and not order.target
        return letters.topics_back(self._live, order.group) if is_back else None

    async def _verb(self, order: LetterOrder, letter: DeadLetter, back: set[str] | None) -> str:
        """Do it to one letter; returns the verdict, or the code of the error that refused it.

        `back`: where a letter may go if it goes back; None if none does.
        """
        try:
            if order.verb is LetterVerb.PURGE:
                await self._live.call(self._live.core.dead_letters.purge, order.group, letter.queue_offset)
            else:
                if back is not None and letter.topic not in back:
                    return GroupNotFound.code
                await self._live.groups.redrive(order.group, letter.queue_offset, order.target)
        except Busy:
            raise
        except TidewheelError as error:
            return error.code
        return VERDICTS[order.verb]
