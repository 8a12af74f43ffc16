"""How a message ends after its function: a decision, without I/O."""

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
"""Longest pause of a message that the broker accepts."""


@dataclass(frozen=True, slots=True)
class Ack:
    """It is done."""

    def __str__(self) -> str:
        return "it is acknowledged"


@dataclass(frozen=True, slots=True)
class Retried:
    """It comes again after so many milliseconds; with None as the group's policy says."""

    after_ms: int | None

    @property
    def after(self) -> timedelta | None:
        """The pause as a span."""
        return None if self.after_ms is None else timedelta(milliseconds=self.after_ms)

    def __str__(self) -> str:
        return "it comes again" + ("" if self.after_ms is None else f" after {self.after_ms} ms")


@dataclass(frozen=True, slots=True)
class Dead:
    """It is a dead letter, with a reason."""

    reason: str

    def __str__(self) -> str:
        return "it is a dead letter"


End = Ack | Retried | Dead


class Retry(Exception):
    """Raised by a function: the message comes again after a span; without one as its consumer has it."""

    def __init__(self, after: Span | None = None) -> None:
        super().__init__("the function wants the message again")
        self.after_ms = None if after is None else span_ms(after, "after")
        if self.after_ms is not None and self.after_ms > PAUSE_MS_MAX:
            raise ClientMistake(f"after is {after}: a pause has 12h at most.")


class Reject(Exception):
    """Raised by a function: the message is a dead letter now, with the exception's text as its reason."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses between attempts: `first`, then each `factor` times the one before, `longest` at most.

    After `attempts` of them the message is a dead letter; without it as the group's policy says.

    Raises:
        ConfigurationError: for a factor below 1, no attempts, or a longest pause above 12 hours.
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
        """Return the pause after an attempt, which counts from 1."""
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
    """Return the end of a message after an exception of its function."""
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
    """Return an exception's text; None if the application's own code cannot make it."""
    try:
        return str(error)
    except Exception:
        return None
