"""What the verbs on consumer groups and their dead letters take and give back."""

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
    """A place in every queue of a topic; `at` is a store time (ms since 1970) or a queue offset.

    `places`: where that time lies, by (topic, queue id), as far as the caller has looked; to find it in a
    queue takes some 20 reads.
    """

    kind: From = From.EARLIEST
    at: int = 0
    places: Mapping[tuple[str, int], int] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class GroupPolicy:
    """How a group's messages are given out.

    `retry_after_ms` is what its consumers are told to wait before the next attempt; `fifo_run_max` is how
    many messages of one message group a single receive may take, in their order. 1 keeps them apart.
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

    Below `committed_offset` everything is done, from `next_offset` on nothing was given out;
    `done_above` counts what is done between the two. The queue goes from `min_offset` up to before
    `end_offset`. `waiting` came back or was held back, and will be given out. `oldest_ms` is the store time
    of the first message that is not done.
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
        """The number of messages that are not done."""
        return self.end_offset - self.committed_offset - self.done_above


@dataclass(slots=True, frozen=True)
class FilterView:
    """A filter of a group on a topic.

    `clients` used it last, as far as they are remembered; `waiting` messages are set aside for it. A message
    that several filters match counts for each of them.
    """

    topic: str
    text: FilterText
    clients: tuple[str, ...]
    waiting: int


@dataclass(slots=True, frozen=True)
class MissedView:
    """What retention has deleted of a topic before the group had finished it; `last_ms`: the last time."""

    topic: str
    count: int
    last_ms: int


@dataclass(slots=True, frozen=True)
class GroupView:
    """A consumer group: its policy, where it is on the queues of its topics, its filters, what it missed."""

    name: str
    policy: GroupPolicy
    queues: list[QueueView]
    filters: tuple[FilterView, ...] = ()
    missed: tuple[MissedView, ...] = ()


@dataclass(slots=True, frozen=True)
class Move:
    """A queue's first message that is not done, `before` and `after` a reset."""

    topic: str
    queue_id: int
    before: int
    after: int
    min_offset: int
    end_offset: int


@dataclass(slots=True, frozen=True)
class Reset:
    """What a reset moves; a dry run has `durable_at` 0."""

    moves: list[Move]
    durable_at: int


@dataclass(slots=True, frozen=True)
class Received:
    """What a receive leased, to be shown once the log is durable up to `durable_at`.

    `is_unfinished`: the receive looked at, or leased, as much as it may; there may be more. `has_set_aside`:
    it left messages to receives with other filters of the group. `has_read_damage`: it has spent work on the
    file of a queue that is damaged, which is read once: a receive that is repeated at once comes further.
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
    """A message that a group gave up; errors are "<ms since 1970> <what happened>", empty where unknown."""

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
    """How many dead letters of a group are open; those of its topic end before `end_offset`."""

    group: str
    count: int
    end_offset: int


@dataclass(slots=True, frozen=True)
class DeadLetterPage:
    """Dead letters, the oldest first; `after` asks for the next page, None when there is none."""

    dead_letters: list[DeadLetter]
    after: int | None
