"""Results of the broker's verbs, and the effects that its tick requests from the shell.

Every answer that depends on a record has a `durable_at`: the shell sends the answer to the caller only once
the log is durable up to that physical offset.
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
    """A topic: its name, the message type it accepts, and its number of queues."""

    name: str
    message_type: MessageType
    queue_count: int
    durable_at: int = 0
    check_back: CheckBackPolicy | None = None
    """The check-back policy of the topic's halves; None: that of the broker's settings."""


class SendReceipt(NamedTuple):
    """A stored message. `queue_offset` is in the queue that holds it now (timers and halves have their own).

    `replaced_offset` is the log offset of the timer that this timer replaced, or -1.
    """

    message_id: str
    queue_offset: int
    physical_offset: int
    transaction_id: str
    recall_handle: str
    durable_at: int
    replaced_offset: int = -1


class From(Enum):
    """The start position of a group, or the target of a reset; TIME and OFFSET have an argument."""

    EARLIEST = "earliest"
    LATEST = "latest"
    TIME = "time"
    OFFSET = "offset"


class Verdict(Enum):
    """The result of a verb on a timer.

    ALREADY: the timer was cancelled, or replaced by a newer timer with its key, before. FORGOTTEN: it ended
    before the kept history, or its end is not known any more.
    """

    CANCELLED = "CANCELLED"
    MOVED = "MOVED"
    FIRED = "FIRED"
    TOO_LATE = "TOO_LATE"
    ALREADY = "ALREADY"
    NEVER_SET = "NEVER_SET"
    FORGOTTEN = "FORGOTTEN"


class TimerName(NamedTuple):
    """The name of a timer in a verb: its topic, and its message id or its `TW_TIMER_KEY`."""

    topic: str
    message_id: str = ""
    key: str = ""


@dataclass(slots=True, frozen=True)
class TimerVerdict:
    """A verdict, and the time and log offset of the timer's end (-1: it has not ended, or unknown).

    `due_ms` is the timer's due time before the verb, 0 if unknown; for MOVED `ended_ms` is its new due time.
    """

    verdict: Verdict
    message_id: str
    ended_ms: int
    ended_offset: int
    durable_at: int
    due_ms: int = 0
    end: End | None = field(default=None, compare=False)
    """The end of the timer before the verb; None if it had not ended, or if its end is unknown."""


@dataclass(slots=True, frozen=True)
class PendingTimer:
    """A delayed message that waits until `due_ms`; `topic` is the target. Fields are empty if unreadable."""

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
    """The reason given for its last move, empty if none was given; None if it was not moved."""


class LostTimer(NamedTuple):
    """A timer that ended as UNREADABLE: no node has its record any more.

    If no source gives them, `topic` is empty, and `due_ms` is only the time of its slot.
    """

    timer_offset: int
    topic: str
    due_ms: int
    ended_ms: int


@dataclass(slots=True, frozen=True)
class TimerFilter:
    """A filter of timers that must match in every given field; `from_ms` <= due time < `until_ms`."""

    topic: str = ""
    topic_prefix: str = ""
    key: str = ""
    tag: str = ""
    from_ms: int = 0
    until_ms: int = 1 << 62


@dataclass(slots=True, frozen=True)
class TimerPage:
    """Timers sorted by due time; `after` is the cursor of the next page, None on the last."""

    timers: list[PendingTimer]
    after: tuple[int, int] | None


@dataclass(slots=True, frozen=True)
class HalfFilter:
    """A filter of halves: open or expired (or in one `state`), of a topic, stored before a time."""

    topic: str = ""
    state: State | None = None
    stored_before_ms: int = 1 << 62


@dataclass(slots=True, frozen=True)
class HalfView:
    """A half message and the state of its transaction.

    While the half is open, `next_check_ms` is the time of its next check-back, else 0. `ended_ms` and
    `ended_offset` are 0 and -1 while the half is open or if its end is unknown. `reason` is that of an
    operator, `verdict` the result of the timer verb that the half carried, `replaced_offset` the log offset
    of the timer that its commit replaced (-1: none).
    `late` are the resolutions that producers sent after the half had expired, with their times in ms.
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
    """Halves, oldest first; `after` is the cursor of the next page, None on the last."""

    halves: list[HalfView]
    after: int | None


class Resolution(Enum):
    """The resolution of a transaction by its producer."""

    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"


class EndReceipt(NamedTuple):
    """A transaction with the requested end, reached by this call or before (`repeated`)."""

    transaction_id: str
    resolution: Resolution
    repeated: bool
    durable_at: int


class Delivery(NamedTuple):
    """A message leased to a consumer until `visible_ms`; `attempt` counts from 1, and is 0 for a view.

    The body of `record` is readable by clients: plain, or gzip.
    """

    record: Record
    attempt: int = 0
    receipt_handle: str = ""
    visible_ms: int = 0

    @property
    def message(self) -> Message:
        """The message, decoded on each access."""
        return properties.to_message(self.record)

    @property
    def queue_id(self) -> int:
        """The queue of the message."""
        return self.record.queue_id

    @property
    def queue_offset(self) -> int:
        """The offset of the message in its queue."""
        return self.record.queue_offset

    @property
    def physical_offset(self) -> int:
        """The offset of the message in the log."""
        return self.record.physical_offset

    @property
    def store_ms(self) -> int:
        """The store time of the message, in ms since 1970."""
        return self.record.store_ms

    @property
    def stored_topic(self) -> str:
        """The topic that holds the message: timers and halves wait in the broker's own topics."""
        return self.record.topic


class Subscriber(NamedTuple):
    """One client of one group under one topic, as a subscriber of lite topics."""

    group: str
    topic: str
    client_id: str


WakeUpKey = str | Subscriber
"""The key a receiver waits for: its topic, or for a topic of type LITE, its own subscription there."""


class Notify(NamedTuple):
    """Wake the receivers that wait for topics and the subscribers of lite topics: messages have arrived."""

    keys: tuple[WakeUpKey, ...]


@dataclass(slots=True, frozen=True)
class CheckBack:
    """Ask a producer of a topic about a half that is open too long, then report with `check_asked`.

    `half_offset` is the half's log offset: read the message (`transactions.message`) only if a producer is
    connected.
    """

    transaction_id: str
    topic: str
    half_offset: int


class TimersJob(Protocol):
    """A job on timer files for a worker: read ahead the timers due soon, or repair damaged files."""

    def run(self, disk: Disk) -> None:
        """Read; raise OSError."""


@dataclass(slots=True, frozen=True)
class Retire:
    """Run a step of deleting segments in a worker, once the log is durable up to it; then call `retired`."""

    retirement: Retirement


@dataclass(slots=True, frozen=True)
class ReadTimers:
    """Read timer files: run the job in a worker, then call `read_ahead`."""

    job: TimersJob


@dataclass(slots=True, frozen=True)
class Warn:
    """Log a warning for the operator."""

    text: str


@dataclass(slots=True, frozen=True)
class Damaged:
    """A damaged part of the store: an operator must be notified even if it could be rebuilt.

    `part` is log, snapshot, queue, index, partition, names, ends, keep or the name of another file, as in
    `services.store.findings`, or gap: a gap in a queue from damage of the log that an earlier start met.
    """

    part: str
    path: str
    what: str
    rebuilt_count: int = 0
    lost_count: int = 0


Effect = Notify | CheckBack | Retire | ReadTimers | Warn
