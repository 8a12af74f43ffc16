"""Values of the client API: messages, receipts, verdicts, and deliveries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypedDict

from tidewheel.client.names import text
from tidewheel.errors import ClientMistake, TidewheelError

if TYPE_CHECKING:
    from tidewheel.client.bodies import Body
    from tidewheel.client.handles import Timer
    from tidewheel.client.spans import Span


class Verdict(StrEnum):
    """The state of a timer, according to the broker's log.

    TOO_LATE: the timer had already been delivered. ALREADY: the timer had already been cancelled or replaced.
    FORGOTTEN: the timer ended before the retained history. Only `get` returns PENDING.
    """

    PENDING = "PENDING"
    CANCELLED = "CANCELLED"
    MOVED = "MOVED"
    FIRED = "FIRED"
    TOO_LATE = "TOO_LATE"
    ALREADY = "ALREADY"
    NEVER_SET = "NEVER_SET"
    FORGOTTEN = "FORGOTTEN"


@dataclass(frozen=True, slots=True)
class TimerResult:
    """The result of a timer operation. It is true if the timer is in the requested state.

    For `get`, it is true if the timer is pending.

    Cancelling a timer that is already cancelled (ALREADY) is also true. `due` is the due time before the
    call. `at` is the time when the timer ended; for MOVED, it is the new due time. Unknown values are None.
    """

    verdict: Verdict
    is_done: bool
    message_id: str
    due: datetime | None = None
    at: datetime | None = None
    offset: int | None = None
    """Log offset of the record that ended the timer."""
    body: bytes | None = None
    """Body of a pending timer."""

    def __bool__(self) -> bool:
        return self.is_done


@dataclass(frozen=True, slots=True)
class Sent:
    """Receipt for a message that has been written to the broker's disk.

    For a delayed message, `handle` is the handle to recall it; otherwise it is empty.
    """

    id: str
    topic: str
    offset: int
    handle: str = ""
    verdict: TimerResult | None = None
    """The verdict on the attached timer operation, if there is one."""
    replaced: int | None = None
    """Log offset of the pending timer that this message replaced, or None."""


class SendOptions(TypedDict, total=False):
    """Keyword arguments of `send`, as described in `NewMessage`."""

    delay: Span | None
    at: datetime | None
    key: str
    unique: bool
    group: str
    tag: str
    keys: Iterable[str]
    properties: Mapping[str, str]
    idempotency_key: str
    cancel: Timer[Any] | None
    move: tuple[Timer[Any], Span | datetime] | None
    fire: Timer[Any] | None


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to send immediately, after `delay`, or `at` a datetime."""

    topic: str
    body: Body
    delay: Span | None = None
    at: datetime | None = None
    key: str = ""
    """Identifies a delayed message in its topic. A later message with the same key replaces it."""
    unique: bool = False
    """If set, the message is refused when a message with the same key is pending."""
    group: str = ""
    """Message group. Messages of the same group are consumed in order."""
    tag: str = ""
    keys: Iterable[str] = ()
    """Message keys, which can be used to look up the message."""
    properties: Mapping[str, str] = field(default_factory=dict)
    idempotency_key: str = ""
    """Used as the message id.

    A message with the same key and content is stored only once within 30 s, or within 10 minutes if it is
    delayed.
    """
    cancel: Timer[Any] | None = None
    """A timer to cancel in the same log record. The result is in `Sent.verdict`."""
    move: tuple[Timer[Any], Span | datetime] | None = None
    fire: Timer[Any] | None = None

    def __post_init__(self) -> None:
        for name in ("topic", "key", "group", "tag", "idempotency_key"):
            text(getattr(self, name), name)
        if sum(verb is not None for verb in (self.cancel, self.move, self.fire)) > 1:
            raise ClientMistake("A message carries one of cancel, move and fire.")


class SomeRefused(TidewheelError):
    """Some of the messages were not sent."""

    code = "TW-281"

    def __init__(self, detail: str, results: Sequence[Sent | TidewheelError] = ()) -> None:
        """Create the error. `results` contains a receipt or an error for each message, in order."""
        super().__init__(detail)
        self.results = list(results)

    @classmethod
    def of(cls, results: Sequence[Sent | TidewheelError]) -> SomeRefused:
        """Return the error for results that contain at least one error."""
        refused = [(number, one) for number, one in enumerate(results) if isinstance(one, TidewheelError)]
        number, first = refused[0]
        detail = (
            f"{len(refused)} of {len(results)}, the first is number {number}: {first} "
            "The attribute `results` has a receipt or an error for each."
        )
        return cls(detail, results)


@dataclass(frozen=True, slots=True)
class Delivery:
    """A leased message as delivered by the broker."""

    id: str
    topic: str
    bytes: bytes
    attempt: int
    handle: str
    place: tuple[int, int]
    """Queue id and queue offset."""
    leased_until: datetime
    tag: str
    keys: tuple[str, ...]
    group: str
    key: str
    properties: Mapping[str, str]
    born: datetime
