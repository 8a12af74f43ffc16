"""A received message and a timer, with their operations.

Both clients share them: a call returns `Done` or `Result`, a value or an awaitable of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from tidewheel.client import calls
from tidewheel.client.bodies import json_of, text_of

if TYPE_CHECKING:
    from tidewheel.client.exchange import Steps
    from tidewheel.client.spans import Span
    from tidewheel.client.values import Delivery, TimerResult

if TYPE_CHECKING:
    import typing_extensions

    Done = typing_extensions.TypeVar("Done", default=Any)  # so that a bare Message needs no argument
else:
    Done = TypeVar("Done")
Other = TypeVar("Other")
Result = TypeVar("Result")
Model = TypeVar("Model")


class Message(Generic[Done]):
    """A leased message. Others do not get it until `leased_until`; then it comes again.

    Acknowledge it by `ack`, or let it come again by `retry`, or give it up by `reject`. Each raises
    `InvalidReceiptHandle` when the lease has ended.
    """

    def __init__(
        self, delivery: Delivery, topic: str, group: str, run: Callable[[Steps[None]], Done]
    ) -> None:
        """`topic` is the application's name for it, `group` the wire's name of the consumer group."""
        self._delivery, self._consumer_group, self._run = delivery, group, run
        self._handle = delivery.handle
        self.topic = topic
        self.id: str = delivery.id
        self.attempt: int = delivery.attempt
        """Counts from 1."""
        self.key: str = delivery.key
        """The timer key, if the message was delayed under one."""
        self.keys: tuple[str, ...] = delivery.keys
        self.tag: str = delivery.tag
        self.group: str = delivery.group
        """The message group."""
        self.properties: Mapping[str, str] = delivery.properties
        self.born: datetime = delivery.born
        self.leased_until: datetime = delivery.leased_until
        """End of the lease as it was received; `extend` does not change it."""

    def __repr__(self) -> str:
        return f"<Message {self.id} of {self.topic}, attempt {self.attempt}, {len(self.bytes)} bytes>"

    @property
    def bytes(self) -> bytes:
        """The body."""
        return self._delivery.bytes

    @property
    def text(self) -> str:
        """The body as text; raise `ClientMistake` for bytes that are not UTF-8."""
        return text_of(self._delivery.bytes)

    @overload
    def json(self) -> Any: ...
    @overload
    def json(self, model: type[Model]) -> Model: ...
    def json(self, model: type[Any] | None = None) -> Any:
        """Return the body, which is JSON, as plain values, or as a type that pydantic fits it to.

        Raises:
            ClientMistake: for a body that is no JSON, or does not fit.
        """
        return json_of(self._delivery.bytes, model)

    @property
    def handle(self) -> str:
        """The receipt handle of the lease, which `extend` replaces."""
        return self._handle

    @property
    def place(self) -> tuple[int, int]:
        """Queue id and queue offset, which are the message's own in its topic."""
        return self._delivery.place

    def take_over(self, later: Message[Done]) -> None:
        """Go on with the lease of a later delivery of the same message."""
        self._handle = later.handle

    def bound(self, run: Callable[[Steps[None]], Other]) -> Message[Other]:
        """Return the same message with `run` for its operations."""
        return Message(self._delivery, self.topic, self._consumer_group, run)

    def ack(self) -> Done:
        """Acknowledge it: it is done."""
        return self._run(calls.ack_one(self._consumer_group, self._handle))

    def retry(self, after: Span | None = None) -> Done:
        """Let it come again after a span; without one as the group's policy says."""
        return self._run(calls.retry(self._consumer_group, self._handle, after))

    def reject(self, reason: str = "") -> Done:
        """Make it a dead letter now; the reason is kept with it, cut to a line of 200 characters."""
        return self._run(calls.reject(self._consumer_group, self._handle, reason))

    def extend(self, lease: Span) -> Done:
        """Let the lease end that long from now."""
        return self._run(self._extended(lease))

    def _extended(self, lease: Span) -> Steps[None]:
        self._handle = yield from calls.extend(self._consumer_group, self._handle, lease)


class Timer(Generic[Result]):
    """A delayed message by its topic and key, whether there is one or not."""

    def __init__(
        self, topic: str, key: str, wire_topic: str, run: Callable[[Steps[TimerResult]], Result]
    ) -> None:
        self.topic, self.key, self.wire_topic = topic, key, wire_topic
        self._run = run

    def __repr__(self) -> str:
        return f"<Timer {self.key!r} of {self.topic}>"

    def cancel(self, reason: str = "") -> Result:
        """Cancel it; the reason goes to the broker's log, as with all verbs."""
        return self._run(calls.cancel(self.wire_topic, self.key, reason))

    def move(self, to: Span | datetime, reason: str = "") -> Result:
        """Have it due at a moment, or a span from now."""
        return self._run(calls.move(self.wire_topic, self.key, to, reason))

    def fire(self, reason: str = "") -> Result:
        """Deliver its message now."""
        return self._run(calls.fire(self.wire_topic, self.key, reason))

    def get(self) -> Result:
        """Look at it; true while it is pending."""
        return self._run(calls.get(self.wire_topic, self.key))
