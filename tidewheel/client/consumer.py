"""A consumer of a worker: a function and the messages that it processes."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidewheel.client.handles import Message
from tidewheel.client.spans import span_ms
from tidewheel.errors import ClientMistake, RefusedByState

if TYPE_CHECKING:
    from tidewheel.client.endings import Backoff
    from tidewheel.client.exchange import Steps
    from tidewheel.client.spans import Span

Received = Message[Awaitable[None]]


class Unfit(Exception):
    """A body does not fit its consumer's model."""


@dataclass(frozen=True, slots=True)
class Consumer:
    """A function and the messages that it processes."""

    function: Callable[..., Any]
    topic: str
    group: str
    model: type[Any] | None
    concurrency: int
    lease: Span
    longest_s: float
    retry: Backoff | None
    dead_on: tuple[type[Exception], ...]
    filter: str
    sql: str

    @property
    def lease_s(self) -> float:
        """The lease duration in seconds."""
        return span_ms(self.lease, "lease") / 1000

    def arguments(self, message: Received) -> tuple[Any, ...]:
        """Return the arguments of the function. Raises `Unfit`, or an exception from the model's code."""
        handed = message.bound(owned)
        if self.model is None:
            return (handed,)
        try:
            value = handed.json(self.model)
        except ClientMistake as error:
            raise Unfit(error.detail) from None
        takes_both = len(inspect.signature(self.function).parameters) > 1
        return (value, handed) if takes_both else (value,)


def owned(steps: Steps[None]) -> None:
    """Raise an error, because a function must not end its own message."""
    steps.close()
    raise RefusedByState("The worker ends this message: return, or raise Retry or Reject.")
