"""Defines the arguments and results of operations on consumer groups and dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from commitlog import limits
from commitlog.message import Message
from consumequeue.filter import FilterText
from services.broker.spine.values import Delivery, StartPosition


class GroupQueue(NamedTuple):
    """The key that identifies a group's state on a queue."""

    group: str
    topic: str
    queue_id: int


@dataclass(slots=True, frozen=True)
class Start:
    """A start position that applies to every queue of a topic.

    Depending on `kind`, `at` is a store time (ms since 1970) or a queue offset. `places` maps (topic, queue
    id) to the offset that corresponds to the store time, for queues that the caller has already searched.
    Searching a queue requires about 20 reads.
    """

    kind: StartPosition = StartPosition.EARLIEST
    at: int = 0
    places: Mapping[tuple[str, int], int] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class GroupPolicy:
    """The delivery policy of a group.

    `retry_after_ms` contains the pauses between attempts, in ms. The pauses are also sent to consumers.
    `fifo_run_max` is the maximum number of consecutive messages of a message group that a single receive may
    return. If `is_lite_exclusive` is set, only the client with the most recent subscription to a lite topic
    receives the messages of the lite topic.
    """

    attempts_max: int = limits.ATTEMPTS_DEFAULT
    retry_after_ms: tuple[int, ...] = limits.RETRY_AFTER_MS
    fifo_run_max: int = 1
    is_paused: bool = False
    is_lite_exclusive: bool = False


@dataclass(slots=True, frozen=True)
class QueueView:
    """The state of a group on a queue.

    All messages below `committed_offset` are finished, and no message at or above `next_offset` has been
    delivered. `done_above` is the number of finished messages between the two offsets. The queue contains the
    offsets from `min_offset` up to but not including `end_offset`. `in_flight` is the number of leased
    messages, except those that were discarded during their lease. `waiting` is the number of messages that
    were released or held back and will be delivered later. `oldest_ms` is the store time of the first
    unfinished message.
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
        """The number of unfinished messages in the queue."""
        return self.end_offset - self.committed_offset - self.done_above


@dataclass(slots=True, frozen=True)
class FilterView:
    """A filter that a group uses on a topic.

    `clients` contains the ids of the filter's most recent clients, and `waiting` is the number of messages
    that are set aside for the filter. A message that matches several filters is counted for each of them.
    """

    topic: str
    text: FilterText
    clients: tuple[str, ...]
    waiting: int


@dataclass(slots=True, frozen=True)
class MissedView:
    """The number of messages that a group lost to retention, and the time of the last loss."""

    topic: str
    count: int
    last_ms: int


@dataclass(slots=True, frozen=True)
class GroupView:
    """A view of a consumer group, with its policy, queue positions, filters, and missed messages."""

    name: str
    policy: GroupPolicy
    queues: list[QueueView]
    filters: tuple[FilterView, ...] = ()
    missed: tuple[MissedView, ...] = ()


@dataclass(slots=True, frozen=True)
class Move:
    """The position of a group in a queue before and after a reset."""

    topic: str
    queue_id: int
    before: int
    after: int
    min_offset: int
    end_offset: int


@dataclass(slots=True, frozen=True)
class Reset:
    """The position changes made by a reset. In a dry run, `durable_at` is 0."""

    moves: list[Move]
    durable_at: int


@dataclass(slots=True, frozen=True)
class ReceivedMessages:
    """The messages leased by a receive, which may be delivered once the log is durable up to `durable_at`.

    The messages may be delivered once the log is durable up to `durable_at`. If `is_unfinished` is set, the
    receive has reached a limit, and more messages may be available. If `has_set_aside` is set, the receive
    has set messages aside for other filters of the group. If `has_read_damage` is set, the receive has read a
    damaged queue file. An immediate retry makes progress, because the file is not read again.
    """

    deliveries: list[Delivery]
    durable_at: int
    is_unfinished: bool
    work: int
    """The amount of work done, in units of `limits.WORK_NS`."""
    has_set_aside: bool = False
    has_read_damage: bool = False


@dataclass(slots=True, frozen=True)
class DeadLetter:
    """A message that a group has failed to process.

    Each error has the form "<ms since 1970> <description>", or is empty if the error is unknown.
    """

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
    """The number of open dead letters of a group, and the end offset of the dead-letter topic."""

    group: str
    count: int
    end_offset: int


@dataclass(slots=True, frozen=True)
class DeadLetterPage:
    """A page of dead letters, ordered from oldest to newest.

    `after` is the cursor for the next page, or None if this page is the last page.
    """

    dead_letters: list[DeadLetter]
    after: int | None
