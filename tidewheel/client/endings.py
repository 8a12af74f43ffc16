"""Outcome of a message after its function has run. The decision involves no I/O."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from tidewheel.client.spans import span_ms
from tidewheel.errors import ClientMistake, ConfigurationError

if TYPE_CHECKING:
    from tidewheel.client.spans import Span


PAUSE_MS_MAX: Final = 12 * 3_600_000
"""Maximum retry delay that the broker accepts."""


@dataclass(frozen=True, slots=True)
class Ack:
    """The message is acknowledged."""

    def __str__(self) -> str:
        return "it is acknowledged"


@dataclass(frozen=True, slots=True)
class Retried:
    """The message is redelivered after a delay. If the delay is None, the group's retry policy applies."""

    after_ms: int | None

    @property
    def after(self) -> timedelta | None:
        """The delay as a timedelta."""
        return None if self.after_ms is None else timedelta(milliseconds=self.after_ms)

    def __str__(self) -> str:
        return "it comes again" + ("" if self.after_ms is None else f" after {self.after_ms} ms")


@dataclass(frozen=True, slots=True)
class Dead:
    """The message becomes a dead letter with a reason."""

    reason: str

    def __str__(self) -> str:
        return "it is a dead letter"


End = Ack | Retried | Dead


class Retry(Exception):
    """Raised by a function to have its message redelivered after a delay.

    Without a delay, the consumer's `retry` policy applies.
    """

    def __init__(self, after: Span | None = None) -> None:
        super().__init__("the function wants the message again")
        self.after_ms = None if after is None else span_ms(after, "after")
        if self.after_ms is not None and self.after_ms > PAUSE_MS_MAX:
            raise ClientMistake(f"after is {after}: a pause has 12h at most.")


class Reject(Exception):
    """Raised by a function to make its message a dead letter immediately.

    The text of the exception becomes the reason.
    """


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff between attempts.

    The first delay is `first`; each further delay is `factor` times the previous delay, up to `longest`.

    After `attempts` attempts the message becomes a dead letter. If `attempts` is None, the group's policy
    decides.

    Raises:
        ConfigurationError: If the factor is below 1, `attempts` is below 1, or `longest` exceeds 12 hours.
    """

    first: Span
    factor: float = 2.0
    longest: Span = "10m"
    attempts: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.factor < float("inf"):
            raise ConfigurationError(f"factor is {self.factor}: a pause is no shorter than the one before.")
        if self.attempts is not None and self.attempts < 1:
            raise ConfigurationError(f"attempts is {self.attempts}: give 1 or more.")
        span_ms(self.first, "first")
        if span_ms(self.longest, "longest") > PAUSE_MS_MAX:
            raise ConfigurationError(f"longest is {self.longest}: a pause has 12h at most.")

    def after_ms(self, attempt: int) -> int:
        """Return the delay in milliseconds after an attempt. The first attempt is number 1."""
        longest_ms, pause_ms = span_ms(self.longest, "longest"), float(span_ms(self.first, "first"))
        for _ in range(attempt - 1):
            if pause_ms >= longest_ms or pause_ms == 0 or self.factor == 1:
                break
            pause_ms *= self.factor
        return min(longest_ms, round(pause_ms))

    def is_over(self, attempt: int) -> bool:
        """Return whether an attempt was the last."""
        return self.attempts is not None and attempt >= self.attempts


def end_after(
    error: BaseException, attempt: int, backoff: Backoff | None, dead_on: Collection[type[Exception]]
) -> Retried | Dead:
    """Return the outcome of a message whose function raised an exception."""
    text, name = text_of(error), type(error).__name__
    if isinstance(error, Reject):
        return Dead(f"{name} without a text" if text is None else text)
    said = f"{name}: {text}" if text is not None else f"{name} without a text"
    if isinstance(error, tuple(dead_on)):
        return Dead(said)
    if isinstance(error, Retry) and error.after_ms is not None:
        return Retried(error.after_ms)
    if backoff is None:
        return Retried(None)
    if backoff.is_over(attempt):
        return Dead(f"attempt {attempt} of {backoff.attempts}: {said}")
    return Retried(backoff.after_ms(attempt))


def text_of(error: BaseException) -> str | None:
    """Return the text of an exception, or None if its `__str__` method fails."""
    try:
        return str(error)
    except Exception:
        return None
