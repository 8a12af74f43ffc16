"""What the broker's verbs return and what its tick asks the shell to do.

Every answer that rests on a record names `durable_at`: the shell gives the answer to the caller
only once the log is durable up to that physical offset.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

from commitlog import properties
from commitlog.disk import Disk
from commitlog.kinds import End
from commitlog.message import Message, MessageType
from commitlog.record import Record
from commitlog.retention import Retirement
from txn.checkback import CheckBackPolicy
from txn.states import State


@dataclass(slots=True, frozen=True)
class Topic:
    """A topic: its name, what it takes, and how many queues it has."""

    name: str
    message_type: MessageType
    queue_count: int
    durable_at: int = 0
    check_back: CheckBackPolicy | None = None
    """How the topic's halves are asked about; None: as the broker's settings say."""


class SendReceipt(NamedTuple):
    """A stored message. `queue_offset` counts in the queue that holds it now (timers, halves: their own).

    `replaced_offset` is the log offset of the timer whose place this one took, -1 if it took none.
    """

    message_id: str
    queue_offset: int
    physical_offset: int
    transaction_id: str
    recall_handle: str
    durable_at: int
    replaced_offset: int = -1


class From(Enum):
    """Where a group begins, or is set to; TIME and OFFSET say which."""

    EARLIEST = "earliest"
    LATEST = "latest"
    TIME = "time"
    OFFSET = "offset"


class Verdict(Enum):
    """The truth about a verb on a timer.

    ALREADY: it was cancelled, or replaced by a newer timer with its key, before. FORGOTTEN: it ended before
    the kept history, or in a way that nobody knows any more.
    """

    CANCELLED = "CANCELLED"
    MOVED = "MOVED"
    FIRED = "FIRED"
    TOO_LATE = "TOO_LATE"
    ALREADY = "ALREADY"
    NEVER_SET = "NEVER_SET"
    FORGOTTEN = "FORGOTTEN"


class TimerName(NamedTuple):
    """The name of a timer in a verb: its topic, and its message id or else its `TW_TIMER_KEY`."""

    topic: str
    message_id: str = ""
    key: str = ""


@dataclass(slots=True, frozen=True)
class TimerVerdict:
    """A verdict, and when and at which log offset the timer ended (-1: it did not, or nobody knows).

    `due_ms` is when the timer was due before the verb, 0 if unknown; for MOVED `ended_ms` is its new time.
    """

    verdict: Verdict
    message_id: str
    ended_ms: int
    ended_offset: int
    durable_at: int
    due_ms: int = 0
    end: End | None = field(default=None, compare=False)
    """How it had ended before; None where it had not, or nobody knows."""


@dataclass(slots=True, frozen=True)
class PendingTimer:
    """A delayed message that waits until `due_ms`; `topic` is its real one. Empty where unreadable."""

    message_id: str
    topic: str
    keys: tuple[str, ...]
    due_ms: int
    timer_offset: int = -1
    timer_key: str = ""
    tag: str = ""
    stored_ms: int = 0
    message: Message | None = None
    moved_because: str | None = None
    """Why it was moved to this time, empty if nobody said; None where it was not moved."""


class LostTimer(NamedTuple):
    """A timer that ended as UNREADABLE: nobody has its record any more.

    `topic` is empty, and `due_ms` only the time of its place, where nothing tells them.
    """

    timer_offset: int
    topic: str
    due_ms: int
    ended_ms: int


@dataclass(slots=True, frozen=True)
class TimerFilter:
    """Which timers: those that match everything that is given; due from `from_ms` up to before `until_ms`."""

    topic: str = ""
    topic_prefix: str = ""
    key: str = ""
    tag: str = ""
    from_ms: int = 0
    until_ms: int = 1 << 62


@dataclass(slots=True, frozen=True)
class TimerPage:
    """Timers by due time; `after` asks for the next page, None when there is none."""

    timers: list[PendingTimer]
    after: tuple[int, int] | None


@dataclass(slots=True, frozen=True)
class HalfFilter:
    """Which halves: those open or expired (or only of one `state`), of a topic, stored before a time."""

    topic: str = ""
    state: State | None = None
    stored_before_ms: int = 1 << 62


@dataclass(slots=True, frozen=True)
class HalfView:
    """A half message and what has become of the transaction.

    While the half is open `next_check_ms` says when a producer is asked next, otherwise it is 0. `ended_ms`
    and `ended_offset` are 0 and -1 while the half is open or where nobody knows any more. `reason` is an
    operator's, `verdict` what came of the timer verb that the half carried, `replaced_offset` the log offset
    of the timer that its commit replaced (-1: none).
    `late` are the ends that producers asked for after the half had expired, with their times in ms.
    """

    transaction_id: str
    message_id: str
    topic: str
    keys: tuple[str, ...]
    tag: str
    state: State
    half_offset: int
    stored_ms: int
    due_ms: int | None
    check_count: int
    check_count_max: int
    next_check_ms: int
    ended_ms: int
    ended_offset: int
    reason: str
    verdict: str
    late: tuple[tuple[str, int], ...]
    message: Message | None = None
    replaced_offset: int = -1


@dataclass(slots=True, frozen=True)
class HalfPage:
    """Halves, the oldest first; `after` asks for the next page, None when there is none."""

    halves: list[HalfView]
    after: int | None


class Resolution(Enum):
    """How a producer ends its transaction."""

    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"


class EndReceipt(NamedTuple):
    """A transaction that has ended as asked, now or before (`repeated`)."""

    transaction_id: str
    resolution: Resolution
    repeated: bool
    durable_at: int


class Delivery(NamedTuple):
    """One message leased to a consumer until `visible_ms`; `attempt` counts from 1, 0 when it is looked at.

    The body of `record` is one that clients can read: plain, or gzip.
    """

    record: Record
    attempt: int = 0
    receipt_handle: str = ""
    visible_ms: int = 0

    @property
    def message(self) -> Message:
        """The message, which is made when it is asked for."""
        return properties.to_message(self.record)

    @property
    def queue_id(self) -> int:
        """The queue that the message lies in."""
        return self.record.queue_id

    @property
    def queue_offset(self) -> int:
        """The message's place in its queue."""
        return self.record.queue_offset

    @property
    def physical_offset(self) -> int:
        """The message's place in the log."""
        return self.record.physical_offset

    @property
    def store_ms(self) -> int:
        """When the message was stored, in ms since 1970."""
        return self.record.store_ms

    @property
    def stored_topic(self) -> str:
        """The topic that the message was found in: timers and halves wait in the broker's own."""
        return self.record.topic


class Subscriber(NamedTuple):
    """One client of one group under one topic, as it subscribes to lite topics."""

    group: str
    topic: str
    client_id: str


WakeUpKey = str | Subscriber
"""What a receiver waits for: its topic, or where that is of type LITE, its own subscription there."""


class Notify(NamedTuple):
    """Notify the waiters of topics and of subscribers of lite topics: there is something to receive."""

    keys: tuple[WakeUpKey, ...]


@dataclass(slots=True, frozen=True)
class CheckBack:
    """Ask a producer of a topic about a half that is open too long, then report with `check_asked`.

    `half_offset` is the half's place: read the message (`transactions.message`) only for a producer that is
    there.
    """

    transaction_id: str
    topic: str
    half_offset: int


class TimersJob(Protocol):
    """What a worker does for timers: reads ahead what is due soon, or sees to damaged files."""

    def run(self, disk: Disk) -> None:
        """Read; raise OSError."""


@dataclass(slots=True, frozen=True)
class Retire:
    """Run a step of letting segments go, in a worker once the log is durable so far; then say `retired`."""

    retirement: Retirement


@dataclass(slots=True, frozen=True)
class ReadTimers:
    """Read files of timers: run the job in a worker, then say `read_ahead`."""

    job: TimersJob


@dataclass(slots=True, frozen=True)
class Warn:
    """Tell an operator, in words, of something to see to."""

    text: str


@dataclass(slots=True, frozen=True)
class Damaged:
    """Something of the store is not what was written: an operator must know, whatever could be rebuilt.

    `part` is log, snapshot, queue, index, partition, names, ends, keep or another file's name, as in
    `services.store.findings`, or gap: of a queue, where damage of the log that an earlier start has met was.
    """

    part: str
    path: str
    what: str
    rebuilt_count: int = 0
    lost_count: int = 0


Effect = Notify | CheckBack | Retire | ReadTimers | Warn
