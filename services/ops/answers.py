"""What the HTTP interface answers, as types: mypy holds the code to them, OpenAPI is written from them.

64-bit numbers (offsets, times) are strings, because JavaScript's numbers cannot hold them.
"""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict


class ErrorAnswer(TypedDict):
    """What went wrong: `code` is stable, `message` is for people, `detail` says where and what next."""

    code: str
    detail: str
    message: str


class TopicAnswer(TypedDict):
    """A topic."""

    name: str
    message_type: str
    queue_count: int


class TopicsAnswer(TypedDict):
    """Every topic, by name."""

    topics: list[TopicAnswer]


class QueueAnswer(TypedDict):
    """A queue: its first and its next offset, and the first one since a time if that was asked for."""

    queue_id: int
    min_offset: str
    end_offset: str
    since_offset: NotRequired[str]


class OneTopicAnswer(TopicAnswer):
    """A topic and its queues."""

    lite_topics: int
    queues: list[QueueAnswer]


class BodyAnswer(TypedDict):
    """A body: as text if it is UTF-8, else in base64."""

    body: NotRequired[str]
    body_base64: NotRequired[str]


class ContentAnswer(BodyAnswer):
    """What a message says and is called."""

    message_id: str
    topic: str
    tag: str
    keys: list[str]
    message_group: str
    priority: int | None
    lite_topic: str
    properties: dict[str, str]
    born_ms: str
    delivery_ms: str | None


class MessageAnswer(ContentAnswer):
    """A stored message and its place."""

    queue_id: int
    queue_offset: str
    physical_offset: str
    store_ms: str


class MessagesAnswer(TypedDict):
    """Messages of one queue, oldest first."""

    messages: list[MessageAnswer]


class ArrivalsAnswer(MessagesAnswer):
    """Messages that came, oldest first, and the positions to ask for next."""

    after: str


class FoundAnswer(MessageAnswer):
    """A message that was looked up; a waiting timer or an open half lies in a topic of the broker's own."""

    stored_topic: str


class FoundMessagesAnswer(TypedDict):
    """Messages that were looked up, newest first; `cut`: older ones were too large to be shown, too."""

    messages: list[FoundAnswer]
    cut: bool


class ReceiptAnswer(TypedDict):
    """A message that is stored. `recall_handle` is empty unless it is delayed."""

    message_id: str
    queue_offset: str
    physical_offset: str
    recall_handle: str


class ClockAnswer(TypedDict):
    """The broker's time, and how far it is ahead of real time."""

    kind: Literal["real", "virtual"]
    now_ms: str
    offset_ms: str


class TimerAnswer(TypedDict):
    """A delayed message that waits. `keys` are its message keys, `timer_key` the one it is replaced by."""

    message_id: str
    topic: str
    keys: list[str]
    due_ms: str
    timer_key: str
    tag: str
    stored_ms: str
    timer_offset: str


class OneTimerAnswer(TimerAnswer):
    """A delayed message that waits, with what it says; null if its record cannot be read."""

    message: ContentAnswer | None


class TimersAnswer(TypedDict):
    """Delayed messages by due time; `after` asks for the next page, null at the end."""

    timers: list[TimerAnswer]
    after: str | None


class LostTimerAnswer(TypedDict):
    """A timer that ended as UNREADABLE: nobody has its record any more. `topic` is empty if unknown."""

    timer_offset: str
    topic: str
    due_ms: str
    ended_ms: str


class DamagedPartAnswer(TypedDict):
    """Something of the store that is not what was written."""

    part: str
    path: str
    what: str
    rebuilt: int
    lost: int


class DamageAnswer(TypedDict):
    """What was found damaged since the broker's start, and the timers that were lost to damage.

    `unreadable` counts the timers that ended as UNREADABLE and are remembered, `rebuilt` those that were
    rebuilt since the start. Lists have the newest first.
    """

    count: int
    rebuilt: int
    unreadable: int
    damage: list[DamagedPartAnswer]
    timers: list[LostTimerAnswer]


class CountAnswer(TypedDict):
    """How many timers match."""

    count: int


class WindowAnswer(TypedDict):
    """How many timers are due from `start_ms` on, for the width of the window."""

    start_ms: str
    count: int


class HistogramAnswer(TypedDict):
    """How many timers are due when; windows without any are left out."""

    width_ms: str
    count: int
    windows: list[WindowAnswer]


class LatenessAnswer(TypedDict):
    """How late deliveries were stored since the start: each figure is at most what is said, in milliseconds.

    `early_count` is 0: nothing is delivered before its time.
    """

    delivered: int
    p50_ms: int
    p99_ms: int
    max_ms: int
    early_count: int


class DueAnswer(TypedDict):
    """How many timers are due within a span from now that were not within the span before; null: later."""

    within_ms: str | None
    count: int


class SummaryAnswer(TypedDict):
    """The delayed messages of a broker at a glance."""

    now_ms: str
    pending: int
    pending_by_topic: dict[str, int]
    next_due_ms: str | None
    due: list[DueAnswer]
    lateness: LatenessAnswer
    lateness_by_topic: dict[str, LatenessAnswer]


class VerdictAnswer(TypedDict):
    """The truth about a verb on a timer: when and at which log offset it ended ("-1": not, or unknown).

    `due_ms` is when it was due before, "0" if unknown; for MOVED `ended_ms` is its new time.
    """

    verdict: Literal["CANCELLED", "MOVED", "FIRED", "TOO_LATE", "ALREADY", "NEVER_SET", "FORGOTTEN"]
    message_id: str
    ended_ms: str
    ended_offset: str
    due_ms: str


class TimerReceiptAnswer(ReceiptAnswer):
    """A timer that is set."""

    due_ms: str


class SetTimersAnswer(TypedDict):
    """What became of each timer of a batch, in its order."""

    set: int
    refused: int
    timers: list[TimerReceiptAnswer | ErrorAnswer]


class DryRunAnswer(TypedDict):
    """How many timers the task would touch, had it been started."""

    dry_run: bool
    matched: int


class TaskAnswer(TypedDict):
    """A task over many timers. `matched` is null until they are counted.

    `by_verdict` says how the `done` ended, the refused ones under their error's code; `why` why it stopped.
    """

    id: str
    verb: Literal["cancel", "move"]
    state: Literal["running", "done", "stopped"]
    matched: int | None
    done: int
    by_verdict: dict[str, int]
    reason: str
    started_ms: str
    ended_ms: str | None
    why: str


class TasksAnswer(TypedDict):
    """The tasks since the broker's start, the newest first."""

    tasks: list[TaskAnswer]
