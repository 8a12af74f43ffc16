"""Define the results of broker operations, and the effects that a tick requests from the server.

A result that depends on a record has the attribute `durable_at`. The log must be durable up to this offset
before the result is sent to the client.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

from commitlog.disk.disk import Disk
from commitlog.log.retention import Retirement
from commitlog.records import properties
from commitlog.records.kinds import End
from commitlog.records.message import Message, MessageType
from commitlog.records.record import Record
from txn.checkback import CheckBackPolicy
from txn.states import State


@dataclass(slots=True, frozen=True)
class TimerHold:
    """The latest hold of a topic's timers.

    `since_ms` is the store time of the hold record, in milliseconds since the Unix epoch. `per_second` is the
    release rate: None while the timers are held, and 0 if there is no limit.
    """

    since_ms: int
    reason: str
    per_second: int | None = None


@dataclass(slots=True, frozen=True)
class Topic:
    """A topic and its settings."""

    name: str
    message_type: MessageType
    queue_count: int
    durable_at: int = 0
    check_back: CheckBackPolicy | None = None
    """The check-back policy for half messages, or None for the default."""
    retention_ms: int = 0
    """The age in milliseconds at which messages are discarded, or 0 if the retention of the log applies."""
    hold: TimerHold | None = None
    """The latest hold of the timers, which is kept after the release, or None if there was no hold."""

    @property
    def is_held(self) -> bool:
        """Whether the due timers of the topic are held."""
        return self.hold is not None and self.hold.per_second is None


class SendReceipt(NamedTuple):
    """The receipt for a stored message.

    `queue_offset` is the offset of the record in its queue. Timers and half messages are stored in an
    internal queue. `replaced_offset` is the log offset of the replaced timer, or -1.
    """

    message_id: str
    queue_offset: int
    physical_offset: int
    transaction_id: str
    recall_handle: str
    durable_at: int
    replaced_offset: int = -1


class StartPosition(Enum):
    """The start or reset position of a group. TIME and OFFSET require an argument."""

    EARLIEST = "earliest"
    LATEST = "latest"
    TIME = "time"
    OFFSET = "offset"


class Verdict(Enum):
    """The result of a timer operation.

    TOO_LATE means that the timer was already delivered or fired, or that its record was lost. ALREADY means
    that the timer was already cancelled or moved, or replaced by a newer timer with the same key. FORGOTTEN
    means that the timer may have ended before the start of the retained history.
    """

    CANCELLED = "CANCELLED"
    MOVED = "MOVED"
    FIRED = "FIRED"
    TOO_LATE = "TOO_LATE"
    ALREADY = "ALREADY"
    NEVER_SET = "NEVER_SET"
    FORGOTTEN = "FORGOTTEN"


class TimerName(NamedTuple):
    """The name of a timer: a topic, and either a message id or a timer key (`TW_TIMER_KEY`)."""

    topic: str
    message_id: str = ""
    key: str = ""


@dataclass(slots=True, frozen=True)
class TimerVerdict:
    """The result of a timer operation, with the time and the log offset at which the timer ended.

    If the timer has not ended or if the outcome is unknown, `ended_ms` is 0 and `ended_offset` is -1.
    `due_ms` is the due time before the operation, or 0 if unknown. If the verdict is MOVED, `ended_ms` is the
    new due time. Times are in milliseconds since the Unix epoch.
    """

    verdict: Verdict
    message_id: str
    ended_ms: int
    ended_offset: int
    durable_at: int
    due_ms: int = 0
    end: End | None = field(default=None, compare=False)
    """The outcome of a timer that had already ended, or None if the timer was pending or unknown."""


@dataclass(slots=True, frozen=True)
class PendingTimer:
    """A delayed message that is due for delivery to `topic` at `due_ms`.

    If the timer record is unreadable, only `due_ms` and `timer_offset` are set.
    """

    message_id: str
    topic: str
    keys: tuple[str, ...]
    due_ms: int
    timer_offset: int = -1
    timer_key: str = ""
    tag: str = ""
    stored_ms: int = 0
    message: Message | None = None
    move_reason: str | None = None
    """The reason for the last move, which may be empty, or None if the timer was not moved."""
    is_held: bool = False
    """Whether the timer is past its due time and held."""


class LostTimer(NamedTuple):
    """A timer that ended as UNREADABLE, because no node has a readable copy of the timer record.

    If the topic and the due time are unknown, `topic` is empty and `due_ms` is the time of the timing wheel
    slot.
    """

    timer_offset: int
    topic: str
    due_ms: int
    ended_ms: int


@dataclass(slots=True, frozen=True)
class TimerFilter:
    """A filter for timers with `from_ms` <= due time < `until_ms` that match all given fields.

    `key` matches the timer key, a message key, or the message id. `message_key` matches only a message key.
    `properties` contains (name, required value) pairs. `is_held` selects held timers if true, other timers if
    false, and all timers if None.
    """

    topic: str = ""
    topic_prefix: str = ""
    key: str = ""
    tag: str = ""
    from_ms: int = 0
    until_ms: int = 1 << 62
    message_key: str = ""
    properties: tuple[tuple[str, str], ...] = ()
    is_held: bool | None = None

    @property
    def reads_records(self) -> bool:
        """Whether the filter requires the timer records in addition to the partition rows."""
        return bool(self.key or self.tag or self.message_key or self.properties)

    def texts(self) -> list[bytes]:
        """Return the encoded strings that are contained in the record of every matching timer."""
        given = (self.key, self.message_key, self.tag, *(value for _, value in self.properties))
        return [text.encode() for text in given if text]


@dataclass(slots=True, frozen=True)
class TimerPage:
    """A page of timers, sorted by due time. `after` is the cursor of the next page, or None."""

    timers: list[PendingTimer]
    after: tuple[int, int] | None


@dataclass(slots=True, frozen=True)
class HalfFilter:
    """A filter for half messages. If `state` is None, both open and expired half messages match."""

    topic: str = ""
    state: State | None = None
    stored_before_ms: int = 1 << 62


@dataclass(slots=True, frozen=True)
class HalfView:
    """A half message and its transaction.

    `next_check_ms` is the time of the next check-back of an open half message, or 0. If the half message is
    open or if its outcome is unknown, `ended_ms` is 0 and `ended_offset` is -1. `reason` is the reason that
    an operator gave for the outcome. `verdict` is the result of the timer operation in the half message.
    `replaced_offset` is the log offset of the timer that the commit replaced, or -1. `late` lists the
    outcomes that producers requested after the transaction had expired, with times in milliseconds since the
    Unix epoch.
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
    """A page of half messages, oldest first. `after` is the cursor of the next page, or None."""

    halves: list[HalfView]
    after: int | None


class Resolution(Enum):
    """The outcome that a producer or operator requests for a transaction."""

    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"


class TransactionReceipt(NamedTuple):
    """The receipt for an ended transaction.

    If `repeated` is true, an earlier call had already ended the transaction.
    """

    transaction_id: str
    resolution: Resolution
    repeated: bool
    durable_at: int


class Delivery(NamedTuple):
    """A message leased to a consumer until `visible_ms`.

    `attempt` is 1 for the first delivery, and 0 for a view without a lease. The body of `record` is
    uncompressed or gzip-compressed, because clients cannot read other compression formats.
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
        """The id of the queue that contains the message."""
        return self.record.queue_id

    @property
    def queue_offset(self) -> int:
        """The offset of the message in its queue."""
        return self.record.queue_offset

    @property
    def physical_offset(self) -> int:
        """The log offset of the message."""
        return self.record.physical_offset

    @property
    def store_ms(self) -> int:
        """The store time in milliseconds since the Unix epoch."""
        return self.record.store_ms

    @property
    def stored_topic(self) -> str:
        """The topic of the record, which is an internal topic for timers and half messages."""
        return self.record.topic


class Subscriber(NamedTuple):
    """A consumer group client that subscribes to lite topics of a topic."""

    group: str
    topic: str
    client_id: str


WakeUpKey = str | Subscriber
"""The wake-up key of a receiver: a topic or, for a topic of type LITE, a subscriber."""


class WakeReceivers(NamedTuple):
    """A request to wake the receivers of topics or lite topics that have new messages."""

    keys: tuple[WakeUpKey, ...]


@dataclass(slots=True, frozen=True)
class CheckBackRequest:
    """A request to send a check-back for a half message and then call `complete_check_back`.

    `half_offset` is the log offset of the half message. The server must read the half message with
    `transactions.message` only if a producer is connected.
    """

    transaction_id: str
    topic: str
    half_offset: int


class TimersJob(Protocol):
    """A worker job that reads timers ahead, or checks or repairs timer files."""

    def run(self, disk: Disk) -> None:
        """Run the job. Raise OSError if the disk fails."""


@dataclass(slots=True, frozen=True)
class RetireSegments:
    """A request to run one step of a segment deletion in a worker and then call `continue_retirement`.

    Before the step, the log must be durable up to the `durable_at` of the retirement.
    """

    retirement: Retirement


@dataclass(slots=True, frozen=True)
class RunTimersJob:
    """A request to run a timer file job in a worker and then call `complete_timers_job`."""

    job: TimersJob


@dataclass(slots=True, frozen=True)
class LogWarning:
    """A request to log a warning for the operator."""

    text: str


@dataclass(slots=True, frozen=True)
class DamagedPart:
    """A damaged part of the store, or a part that was rebuilt after damage.

    `part` is log, snapshot, queue, index, partition, names, ends, keep, or another file name, as in
    `services.store.findings`. The value "gap" denotes a queue gap caused by log damage before this startup.
    """

    part: str
    path: str
    what: str
    rebuilt_count: int = 0
    lost_count: int = 0


Effect = WakeReceivers | CheckBackRequest | RetireSegments | RunTimersJob | LogWarning
