"""Arguments and results of operations on consumer groups and dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from commitlog import limits
from commitlog.records.message import Message
from consumequeue.filters.filter import FilterText
from services.broker.spine.values import Delivery, StartPosition


class GroupQueue(NamedTuple):
    """The key for the state of a group on a queue."""

    group: str
    topic: str
    queue_id: int


@dataclass(slots=True, frozen=True)
class GroupStart:
    """A start position for every queue in a topic.

    Depending on `kind`, `at` is a store time in milliseconds since the Unix epoch or a queue offset. For
    queues that were already searched, `places` maps (topic, queue id) to the queue offset for the store time.
    A search requires about 20 reads.
    """

    kind: StartPosition = StartPosition.EARLIEST
    at: int = 0
    places: Mapping[tuple[str, int], int] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class GroupPolicy:
    """The delivery policy of a group.

    `retry_after_ms` contains the pauses between attempts in milliseconds, which are also sent to consumers.
    `fifo_run_max` is the maximum number of consecutive messages of a message group in one receive. If
    `is_lite_exclusive` is set, only the client with the latest subscription to a lite topic receives its
    messages.
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
    delivered. `done_above` is the number of finished messages between `committed_offset` and `next_offset`.
    The queue contains the offsets from `min_offset` up to but not including `end_offset`. `in_flight` is the
    number of leased messages, excluding messages that were discarded while leased. `waiting` is the number of
    messages that were released or parked and will be delivered later. `oldest_ms` is the store time of the
    first unfinished message.
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
        """Number of unfinished messages."""
        return self.end_offset - self.committed_offset - self.done_above


@dataclass(slots=True, frozen=True)
class FilterView:
    """A filter that a group uses on a topic.

    `clients` contains the ids of the latest clients that use the filter. `waiting` is the number of messages
    set aside for the filter. A message that matches several filters is counted for each of them.
    """

    topic: str
    text: FilterText
    clients: tuple[str, ...]
    waiting: int


@dataclass(slots=True, frozen=True)
class MissedMessagesView:
    """The number of messages that a group missed because of retention, and the time of the latest loss."""

    topic: str
    count: int
    last_ms: int


@dataclass(slots=True, frozen=True)
class GroupView:
    """The policy, queue states, filters, and missed messages of a consumer group."""

    name: str
    policy: GroupPolicy
    queues: list[QueueView]
    filters: tuple[FilterView, ...] = ()
    missed: tuple[MissedMessagesView, ...] = ()


@dataclass(slots=True, frozen=True)
class PositionChange:
    """The committed offset of a group in a queue before and after a reset."""

    topic: str
    queue_id: int
    before: int
    after: int
    min_offset: int
    end_offset: int


@dataclass(slots=True, frozen=True)
class ResetResult:
    """The position changes made by a reset. In a dry run, `durable_at` is 0."""

    moves: list[PositionChange]
    durable_at: int


@dataclass(slots=True, frozen=True)
class ReceivedMessages:
    """The messages leased by a receive.

    The messages may be delivered once the log is durable up to `durable_at`. If `is_unfinished` is set, the
    receive has reached a limit, and more messages may be available. If `has_set_aside` is set, the receive
    has set messages aside for other filters of the group. If `has_read_damage` is set, the receive has read a
    damaged queue file, and an immediate retry makes progress, because the file is not read again.
    """

    deliveries: list[Delivery]
    durable_at: int
    is_unfinished: bool
    work: int
    """Amount of work done, in units of `limits.WORK_NS`."""
    has_set_aside: bool = False
    has_read_damage: bool = False


@dataclass(slots=True, frozen=True)
class DeadLetter:
    """A message that a group has failed to process.

    Each error has the form "<ms since the Unix epoch> <description>", or is empty if unknown.
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
    """The number of open dead letters of a group, and the end offset of its dead-letter topic."""

    group: str
    count: int
    end_offset: int


@dataclass(slots=True, frozen=True)
class DeadLetterPage:
    """A page of dead letters, oldest first. `after` is the cursor for the next page, or None."""

    dead_letters: list[DeadLetter]
    after: int | None
