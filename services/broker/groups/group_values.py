"""Arguments and results of the verbs on consumer groups and their dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from commitlog import limits
from commitlog.message import Message
from consumequeue.filter import FilterText
from services.broker.spine.values import Delivery, From


class GroupQueue(NamedTuple):
    """Key of a group's offsets on one queue."""

    group: str
    topic: str
    queue_id: int


@dataclass(slots=True, frozen=True)
class Start:
    """A position in every queue of a topic; `at` is a store time (ms since 1970) or a queue offset.

    `places`: the offsets of that time by (topic, queue id), as far as the caller has searched; a search in a
    queue takes some 20 reads.
    """

    kind: From = From.EARLIEST
    at: int = 0
    places: Mapping[tuple[str, int], int] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class GroupPolicy:
    """The delivery policy of a group.

    `retry_after_ms` are the pauses before the next attempt, sent to its consumers; `fifo_run_max` is the
    maximum number of messages of one message group in a single receive, in order (1: one at a time).
    `is_lite_exclusive`: a lite topic belongs to the client of the group that subscribed to it last.
    """

    attempts_max: int = limits.ATTEMPTS_DEFAULT
    retry_after_ms: tuple[int, ...] = limits.RETRY_AFTER_MS
    fifo_run_max: int = 1
    is_paused: bool = False
    is_lite_exclusive: bool = False


@dataclass(slots=True, frozen=True)
class QueueView:
    """A group on one queue.

    All messages below `committed_offset` are done, none from `next_offset` on has been delivered;
    `done_above` counts the done ones between the two. The queue has the offsets from `min_offset` to before
    `end_offset`. `waiting` counts messages that were returned or held back, and will be delivered.
    `oldest_ms` is the store time of the first unfinished message.
    """

    topic: str
    queue_id: int
    min_offset: int
    committed_offset: int
    next_offset: int
    end_offset: int
    in_flight: int
    waiting: int
    done_above: int
    oldest_ms: int | None

    @property
    def lag(self) -> int:
        """The number of unfinished messages."""
        return self.end_offset - self.committed_offset - self.done_above


@dataclass(slots=True, frozen=True)
class FilterView:
    """A filter of a group on a topic.

    `clients` are its most recent users, as far as known; `waiting` messages are set aside for it. A message
    that several filters match counts for each of them.
    """

    topic: str
    text: FilterText
    clients: tuple[str, ...]
    waiting: int


@dataclass(slots=True, frozen=True)
class MissedView:
    """Messages deleted by retention before the group had finished them; `last_ms`: the last time."""

    topic: str
    count: int
    last_ms: int


@dataclass(slots=True, frozen=True)
class GroupView:
    """A consumer group: its policy, its positions on queues, its filters, its missed messages."""

    name: str
    policy: GroupPolicy
    queues: list[QueueView]
    filters: tuple[FilterView, ...] = ()
    missed: tuple[MissedView, ...] = ()


@dataclass(slots=True, frozen=True)
class Move:
    """The first unfinished message of a queue `before` and `after` a reset."""

    topic: str
    queue_id: int
    before: int
    after: int
    min_offset: int
    end_offset: int


@dataclass(slots=True, frozen=True)
class Reset:
    """The moves of a reset; `durable_at` is 0 for a dry run."""

    moves: list[Move]
    durable_at: int


@dataclass(slots=True, frozen=True)
class Received:
    """The messages that a receive leased, to be delivered once the log is durable up to `durable_at`.

    `is_unfinished`: the receive reached its limits; there may be more messages. `has_set_aside`: it left
    messages to receives with other filters of the group. `has_read_damage`: it has spent work on a damaged
    queue file, which is read only once: a receive that is repeated at once makes progress.
    """

    deliveries: list[Delivery]
    durable_at: int
    is_unfinished: bool
    work: int
    """In `limits.WORK_NS`."""
    has_set_aside: bool = False
    has_read_damage: bool = False


@dataclass(slots=True, frozen=True)
class DeadLetter:
    """A message that a group gave up; errors are "<ms since 1970> <what happened>", empty if unknown."""

    queue_offset: int
    message: Message
    store_ms: int
    topic: str
    reason: str
    attempts: int
    first_error: str
    last_error: str


@dataclass(slots=True, frozen=True)
class DeadLetterCount:
    """The number of open dead letters of a group; the end of its dead-letter topic is `end_offset`."""

    group: str
    count: int
    end_offset: int


@dataclass(slots=True, frozen=True)
class DeadLetterPage:
    """Dead letters, oldest first; `after` is the cursor of the next page, None on the last."""

    dead_letters: list[DeadLetter]
    after: int | None
