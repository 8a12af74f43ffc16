"""Defines the arguments and results of operations on consumer groups and their dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from commitlog import limits
from commitlog.message import Message
from consumequeue.filter import FilterText
from services.broker.spine.values import Delivery, From


class GroupQueue(NamedTuple):
    """The key of a group's offsets on one queue."""

    group: str
    topic: str
    queue_id: int


@dataclass(slots=True, frozen=True)
class Start:
    """A start position in every queue of a topic; `at` is a store time (ms since 1970) or a queue offset.

    `places` maps (topic, queue id) to the offset for a store time, for the queues that the caller has already
    searched. A search in a queue takes about 20 reads.
    """

    kind: From = From.EARLIEST
    at: int = 0
    places: Mapping[tuple[str, int], int] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class GroupPolicy:
    """The delivery policy of a group.

    `retry_after_ms` contains the pauses between attempts, which are sent to consumers. `fifo_run_max` is the
    maximum number of messages of one message group in a single receive, in order. If `is_lite_exclusive` is
    set, only the client that most recently subscribed to a lite topic receives its messages for the group.
    """

    attempts_max: int = limits.ATTEMPTS_DEFAULT
    retry_after_ms: tuple[int, ...] = limits.RETRY_AFTER_MS
    fifo_run_max: int = 1
    is_paused: bool = False
    is_lite_exclusive: bool = False


@dataclass(slots=True, frozen=True)
class QueueView:
    """The state of a group on one queue.

    All messages below `committed_offset` are done, and no message at or above `next_offset` has been
    delivered. `done_above` is the number of done messages between the two offsets. The queue contains the
    offsets from `min_offset` up to but not including `end_offset`. `waiting` is the number of messages that
    were returned or held back and will be delivered later. `oldest_ms` is the store time of the first
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
        """The number of unfinished messages."""
        return self.end_offset - self.committed_offset - self.done_above


@dataclass(slots=True, frozen=True)
class FilterView:
    """A filter of a group on a topic.

    `clients` contains the most recent known users of the filter, and `waiting` is the number of messages set
    aside for the filter. A message that matches several filters is counted once for each matching filter.
    """

    topic: str
    text: FilterText
    clients: tuple[str, ...]
    waiting: int


@dataclass(slots=True, frozen=True)
class MissedView:
    """The number of messages that retention deleted before a group finished them, with the last loss time."""

    topic: str
    count: int
    last_ms: int


@dataclass(slots=True, frozen=True)
class GroupView:
    """The view of a consumer group, with its policy, queue positions, filters, and missed messages."""

    name: str
    policy: GroupPolicy
    queues: list[QueueView]
    filters: tuple[FilterView, ...] = ()
    missed: tuple[MissedView, ...] = ()


@dataclass(slots=True, frozen=True)
class Move:
    """The offset of the first unfinished message in a queue, `before` and `after` a reset."""

    topic: str
    queue_id: int
    before: int
    after: int
    min_offset: int
    end_offset: int


@dataclass(slots=True, frozen=True)
class Reset:
    """The position changes of a reset; `durable_at` is 0 for a dry run."""

    moves: list[Move]
    durable_at: int


@dataclass(slots=True, frozen=True)
class Received:
    """The messages that a receive leased, to be delivered when the log is durable up to `durable_at`.

    If `is_unfinished` is set, the receive reached a limit, and more messages may be available. If
    `has_set_aside` is set, the receive left messages for receives with other filters of the group. If
    `has_read_damage` is set, the receive spent work on a damaged queue file, which is read only once, so
    repeating the receive immediately makes progress.
    """

    deliveries: list[Delivery]
    durable_at: int
    is_unfinished: bool
    work: int
    """The work done, in units of `limits.WORK_NS`."""
    has_set_aside: bool = False
    has_read_damage: bool = False


@dataclass(slots=True, frozen=True)
class DeadLetter:
    """A message that a group failed to process.

    An error has the form "<ms since 1970> <description>", and is empty if unknown.
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
    """A page of dead letters, oldest first; `after` is the cursor for the next page, or None on the last."""

    dead_letters: list[DeadLetter]
    after: int | None
