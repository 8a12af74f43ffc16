"""The tasks of `/api/moves/tasks`: messages moved from one topic to another (`services.ops.bulk.tasks`).

    POST   /api/moves/tasks      {"source", "target", "filter", "rate_per_second", "limit", "reason"}

What a move does to a message is in `services.broker.topic_moves`.
"""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from commitlog import limits
from services.live.bulk.move_tasks import MessageFilter, MoveTask, MoveTaskRequest, MoveTasks, QueuePlace
from services.live.live_broker import LiveBroker
from services.ops.bulk.dead_letters import PER_SECOND_MAX
from services.ops.bulk.tasks import (
    Bulk,
    CountedAnswer,
    Limit,
    QueuePlaceAnswer,
    TaskProgressAnswer,
    progress_shape,
)
from services.ops.requests.request import GivenFields, Reason, Repeated
from services.ops.timers.timers import property_of


class MessageFilterFields(GivenFields):
    """Which messages: those that match everything that is given."""

    key: str = Field(
        "", max_length=limits.TIMER_NAME_CHARACTERS_MAX, description="A message key or message id."
    )
    tag: str = ""
    properties: Repeated = Field(
        [],
        alias="property",
        max_length=limits.FILTER_PROPERTIES_MAX,
        description="A property of the message, as NAME=VALUE; all that are given must match.",
    )


class NewMove(BaseModel):
    """Which unfinished messages to move, and where; with `dry_run` they are only counted."""

    model_config = ConfigDict(extra="forbid")

    verb: Literal["move"] = "move"
    source: str = Field(min_length=1)
    target: str = Field(min_length=1)
    filter: MessageFilterFields = Field(default_factory=lambda: MessageFilterFields.model_validate({}))
    rate_per_second: float = Field(0, ge=0, le=PER_SECOND_MAX, description="Highest rate; 0: no limit.")
    limit: Limit = None
    reason: Reason = ""
    dry_run: bool = False

    def order(self, now_ms: int) -> MoveTaskRequest:
        """Return the task's order as the broker takes it; raise `ClientMistake`."""
        wanted = MessageFilter(
            self.filter.key, self.filter.tag, tuple(property_of(text) for text in self.filter.properties)
        )
        return MoveTaskRequest(
            self.source, self.target, wanted, self.rate_per_second, self.reason, self.limit or 0
        )


class MoveTaskAnswer(TaskProgressAnswer):
    """A task that moves messages."""

    verb: Literal["move"]
    source: str
    target: str
    rate_per_second: float


class MoveTasksAnswer(TypedDict):
    """The tasks that move messages since the broker's start, the newest first."""

    tasks: list[MoveTaskAnswer]


def move_task_shape(task: MoveTask) -> MoveTaskAnswer:
    """Return a task as JSON has it."""
    order = task.order
    return {
        **progress_shape(task),
        "verb": "move",
        "source": order.source,
        "target": order.target,
        "rate_per_second": order.per_second,
    }


async def count_moves(live: LiveBroker, order: MoveTaskRequest, seconds_max: float) -> CountedAnswer:
    """Count the messages of an order by the verdict that a move would have now.

    Stop after about `seconds_max`.
    """
    preview = await MoveTasks(live).preview(order, seconds_max)
    return {
        "matched": preview.by_verdict.total(),
        "counted_until": preview.counted_until and place_shape(preview.counted_until),
        "by_verdict": dict(preview.by_verdict),
        "reasons": preview.reasons,
    }


def place_shape(place: QueuePlace) -> QueuePlaceAnswer:
    """Return a position in the queues of a topic in JSON form."""
    return {"queue_id": place.queue_id, "queue_offset": str(place.queue_offset)}


MOVES: Final = Bulk(
    "moves", NewMove, move_task_shape, count_moves, MoveTaskAnswer, MoveTasksAnswer, (400, 404, 409, 503)
)
