"""The results of broker operations, and the effects that a tick requests from the server.

A result that depends on a record has the attribute `durable_at`. The log must be durable up to this offset
before the result is returned to the client.
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
class Hold:
    """The last hold of a topic's timers, with its time in milliseconds, its reason, and its release rate.

    `per_second` is None as long as the timers are held, and 0 if the release rate is not limited.
    """

    since_ms: int
    reason: str
    per_second: int | None = None


@dataclass(slots=True, frozen=True)
class Topic:
    """A topic with its name, message type, and number of queues."""

    name: str
    message_type: MessageType
    queue_count: int
    durable_at: int = 0
    check_back: CheckBackPolicy | None = None
    """The check-back policy of the topic's half messages, or None for the policy of the settings."""
    retention_ms: int = 0
    """The age at which messages are discarded, or 0 if only the retention of the log applies."""
    hold: Hold | None = None
    """The last hold of the topic's timers, even after its release, or None if the timers were never held."""

    @property
    def is_held(self) -> bool:
        """Whether the topic's due timers are held."""
        return self.hold is not None and self.hold.per_second is None


class SendReceipt(NamedTuple):
    """The receipt of a stored message.

    `queue_offset` is the offset of the record in its queue. Timers and half messages are stored in an
    internal queue instead of a queue of the message's topic. `replaced_offset` is the log offset of the timer
    that the message replaced, or -1 if no timer was replaced.
    """

    message_id: str
    queue_offset: int
    physical_offset: int
    transaction_id: str
    recall_handle: str
    durable_at: int
    replaced_offset: int = -1


class StartPosition(Enum):
    """The position at which a group starts or to which it is reset. TIME and OFFSET require an argument."""

    EARLIEST = "earliest"
    LATEST = "latest"
    TIME = "time"
    OFFSET = "offset"


class Verdict(Enum):
    """The result of an operation on a timer.

    ALREADY means that the timer had already been cancelled, or replaced by a newer timer with the same key.
    FORGOTTEN means that the timer ended before the retained history begins, or that its outcome is no longer
    available.
    """

    CANCELLED = "CANCELLED"
    MOVED = "MOVED"
    FIRED = "FIRED"
    TOO_LATE = "TOO_LATE"
    ALREADY = "ALREADY"
    NEVER_SET = "NEVER_SET"
    FORGOTTEN = "FORGOTTEN"


class TimerName(NamedTuple):
    """The name of a timer, which consists of its topic and either its message id or its `TW_TIMER_KEY`."""

    topic: str
    message_id: str = ""
    key: str = ""


@dataclass(slots=True, frozen=True)
class TimerVerdict:
    """The result of a timer operation, with the time and the log offset at which the timer ended.

    If the timer has not ended, or if its outcome is unknown, `ended_ms` is 0 and `ended_offset` is -1.
    `due_ms` is the due time of the timer before the operation, or 0 if the due time is unknown. If the
    verdict is MOVED, `ended_ms` is the new due time.
    """

    verdict: Verdict
    message_id: str
    ended_ms: int
    ended_offset: int
    durable_at: int
    due_ms: int = 0
    end: End | None = field(default=None, compare=False)
    """The outcome of the timer before the operation, or None if it was pending or the outcome is unknown.
    """


@dataclass(slots=True, frozen=True)
class PendingTimer:
    """A delayed message that is to be delivered to `topic` at `due_ms`.

    Fields that cannot be read are empty.
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
    """The reason given for the last move, empty if no reason was given, or None without a move."""
    is_held: bool = False
    """Whether the timer is past its due time and held until its topic is released."""


class LostTimer(NamedTuple):
    """A timer with the outcome UNREADABLE, because its record has been lost on all nodes.

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

    `key` matches the timer key, a message key, or the message id, whereas `message_key` matches only a
    message key. Each pair in `properties` consists of a property name and the required value. If `is_held` is
    true, only held timers match, and if it is false, only timers that are not held match.
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
        """Whether the filter requires the timer records to be read in addition to the partition rows."""
        return bool(self.key or self.tag or self.message_key or self.properties)

    def texts(self) -> list[bytes]:
        """Return the texts that must occur in the record of every matching timer."""
        given = (self.key, self.message_key, self.tag, *(value for _, value in self.properties))
        return [text.encode() for text in given if text]


@dataclass(slots=True, frozen=True)
class TimerPage:
    """A page of timers, sorted by due time.

    `after` is the cursor of the next page, or None on the last page.
    """

    timers: list[PendingTimer]
    after: tuple[int, int] | None


@dataclass(slots=True, frozen=True)
class HalfFilter:
    """A filter for half messages by topic, state, and store time.

    If the state is None, both open and expired half messages match.
    """

    topic: str = ""
    state: State | None = None
    stored_before_ms: int = 1 << 62


@dataclass(slots=True, frozen=True)
class HalfView:
    """A view of a half message and its transaction.

    `next_check_ms` is the time of the next check-back if the half message is open, and 0 otherwise. If the
    half message is open, or if its outcome is unknown, `ended_ms` is 0 and `ended_offset` is -1. `reason` is
    the reason that an operator specified for the outcome. `verdict` is the result of the timer operation in
    the half message. `replaced_offset` is the log offset of the timer that was replaced by the commit, or -1
    if no timer was replaced. `late` lists the outcomes that producers requested after the half message had
    expired, with the times in ms since 1970.
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
    """A page of half messages, oldest first.

    `after` is the cursor of the next page, or None on the last page.
    """

    halves: list[HalfView]
    after: int | None


class Resolution(Enum):
    """The outcome that a producer or an operator requests for a transaction."""

    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"


class EndReceipt(NamedTuple):
    """The receipt for a transaction that has the requested outcome.

    `repeated` is true if the transaction was ended by an earlier call.
    """

    transaction_id: str
    resolution: Resolution
    repeated: bool
    durable_at: int


class Delivery(NamedTuple):
    """A message that is leased to a consumer until `visible_ms`.

    `attempt` is 1 for the first delivery attempt, and 0 if the message is viewed without a lease. Clients can
    read the body of `record`, which is either uncompressed or compressed with gzip.
    """

    record: Record
    attempt: int = 0
    receipt_handle: str = ""
    visible_ms: int = 0

    @property
    def message(self) -> Message:
        """The message, which is decoded on each access."""
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
        """The offset of the message in the log."""
        return self.record.physical_offset

    @property
    def store_ms(self) -> int:
        """The store time of the message in ms since 1970."""
        return self.record.store_ms

    @property
    def stored_topic(self) -> str:
        """The topic of the record, which is an internal topic for timers and half messages."""
        return self.record.topic


class Subscriber(NamedTuple):
    """A client in a consumer group that subscribes to lite topics of a topic."""

    group: str
    topic: str
    client_id: str


WakeUpKey = str | Subscriber
"""The wake-up key of a receiver, which is a topic or, for topics of type LITE, a subscription."""


class Notify(NamedTuple):
    """A request to wake the receivers of topics or lite topics that have new messages."""

    keys: tuple[WakeUpKey, ...]


@dataclass(slots=True, frozen=True)
class CheckBack:
    """A request for a check-back about a half message, followed by a call of `complete_check_back`.

    `half_offset` is the log offset of the half message. The content of the half message should be read with
    `transactions.message` only if a producer is connected.
    """

    transaction_id: str
    topic: str
    half_offset: int


class TimersJob(Protocol):
    """A job that reads timers ahead or repairs damaged timer files in a worker."""

    def run(self, disk: Disk) -> None:
        """Run the job, or raise OSError if a disk operation fails."""


@dataclass(slots=True, frozen=True)
class Retire:
    """A request to run a step of a segment deletion in a worker and then call `continue_retirement`.

    The step must not run before the log is durable up to the `durable_at` offset of the retirement.
    """

    retirement: Retirement


@dataclass(slots=True, frozen=True)
class ReadTimers:
    """A request to run a timer file job in a worker, and to call `complete_timers_job` afterwards."""

    job: TimersJob


@dataclass(slots=True, frozen=True)
class Warn:
    """A request to log a warning for the operator."""

    text: str


@dataclass(slots=True, frozen=True)
class DamagedPart:
    """A damaged part of the store. Damage is reported to the operator even if the damaged part was rebuilt.

    `part` is log, snapshot, queue, index, partition, names, ends, keep, or the name of another file, as in
    `services.store.findings`. The value gap denotes a gap in a queue that was caused by log damage before
    this startup.
    """

    part: str
    path: str
    what: str
    rebuilt_count: int = 0
    lost_count: int = 0


Effect = Notify | CheckBack | Retire | ReadTimers | Warn
