"""Values of the client's calls: messages to send, receipts, verdicts, deliveries."""

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
    """The truth about a timer, as the broker's log has it.

    TOO_LATE: it was delivered before. ALREADY: it was cancelled, or replaced by a newer one, before.
    FORGOTTEN: it ended before the kept history. PENDING is said by `get` alone.
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
    """Verdict on a timer; true if the timer is now as the call asked, and of `get` while it is pending.

    A cancel that finds the timer cancelled before (ALREADY) is true, too. `due` is the due time before the
    call, `at` when the timer ended, or of MOVED its new due time. Unknown values are None.
    """

    verdict: Verdict
    is_done: bool
    message_id: str
    due: datetime | None = None
    at: datetime | None = None
    offset: int | None = None
    """Log offset of the timer's end."""
    body: bytes | None = None
    """Body of a pending timer."""

    def __bool__(self) -> bool:
        return self.is_done


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that is on the broker's disk. `handle` recalls a delayed one, and is empty otherwise."""

    id: str
    topic: str
    offset: int
    handle: str = ""
    verdict: TimerResult | None = None
    """Of the verb that the message carries, if it does."""
    replaced: int | None = None
    """Log offset of the pending timer with the same key whose place this one took, if it took one."""


class SendOptions(TypedDict, total=False):
    """Keywords of `send`; `NewMessage` has their meanings."""

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
    """A message to send: at once, after `delay`, or `at` a moment."""

    topic: str
    body: Body
    delay: Span | None = None
    at: datetime | None = None
    key: str = ""
    """Names a delayed message in its topic: a later one with this key replaces it."""
    unique: bool = False
    """A pending message with the same key is not replaced: this one is refused."""
    group: str = ""
    """Message group: the messages of a group are consumed in order."""
    tag: str = ""
    keys: Iterable[str] = ()
    """Message keys, by which the message is found."""
    properties: Mapping[str, str] = field(default_factory=dict)
    idempotency_key: str = ""
    """Becomes the message's id: the same content under it is stored once within 30 s, delayed within ten
    minutes."""
    cancel: Timer[Any] | None = None
    """A timer to cancel in the same record of the log; `Sent.verdict` is the result."""
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
        """Begin; `results` has a receipt or an error for each message, in order."""
        super().__init__(detail)
        self.results = list(results)

    @classmethod
    def of(cls, results: Sequence[Sent | TidewheelError]) -> SomeRefused:
        """Return the error for results of which one at least is an error."""
        refused = [(number, one) for number, one in enumerate(results) if isinstance(one, TidewheelError)]
        number, first = refused[0]
        detail = (
            f"{len(refused)} of {len(results)}, the first is number {number}: {first} "
            "The attribute `results` has a receipt or an error for each."
        )
        return cls(detail, results)


@dataclass(frozen=True, slots=True)
class Delivery:
    """A leased message as the broker gives it out."""

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
