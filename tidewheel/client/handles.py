"""Handles for a received message and for a timer.

Both clients use these classes. A method returns a value with `Client`, and an awaitable with `AsyncClient`.
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

    # allows the annotation Message without a type argument
    Done = typing_extensions.TypeVar("Done", default=Any)
else:
    Done = TypeVar("Done")
Other = TypeVar("Other")
Result = TypeVar("Result")
Model = TypeVar("Model")


class Message(Generic[Done]):
    """A leased message. The message is not delivered to other consumers before `leased_until`.

    When the lease expires, the message is delivered again.

    End the lease with `ack`, `retry` or `reject`. Each method raises `InvalidReceiptHandle` if the lease has
    ended.
    """

    def __init__(
        self, delivery: Delivery, topic: str, group: str, run: Callable[[Steps[None]], Done]
    ) -> None:
        """`topic` is the topic name without the namespace; `group` is the group name with the namespace
        prefix.
        """
        self._delivery, self._consumer_group, self._run = delivery, group, run
        self._handle = delivery.handle
        self.topic = topic
        self.id: str = delivery.id
        self.attempt: int = delivery.attempt
        """Number of the delivery attempt. The first attempt is 1."""
        self.key: str = delivery.key
        """The timer key, if the message was a delayed message with a key."""
        self.keys: tuple[str, ...] = delivery.keys
        self.tag: str = delivery.tag
        self.group: str = delivery.group
        """The message group."""
        self.properties: Mapping[str, str] = delivery.properties
        self.born: datetime = delivery.born
        self.leased_until: datetime = delivery.leased_until
        """The end of the lease at the time of delivery. `extend` does not update this attribute."""

    def __repr__(self) -> str:
        return f"<Message {self.id} of {self.topic}, attempt {self.attempt}, {len(self.bytes)} bytes>"

    @property
    def bytes(self) -> bytes:
        """The body."""
        return self._delivery.bytes

    @property
    def text(self) -> str:
        """The body as text. Raises `ClientMistake` if the body is not valid UTF-8."""
        return text_of(self._delivery.bytes)

    @overload
    def json(self) -> Any: ...
    @overload
    def json(self, model: type[Model]) -> Model: ...
    def json(self, model: type[Any] | None = None) -> Any:
        """Parse the body as JSON.

        With a `model`, validate the value with pydantic and return it as that type.

        Raises:
            ClientMistake: If the body is not valid JSON or does not match the model.
        """
        return json_of(self._delivery.bytes, model)

    @property
    def handle(self) -> str:
        """The receipt handle of the lease. `extend` replaces it."""
        return self._handle

    @property
    def place(self) -> tuple[int, int]:
        """The queue id and queue offset, which identify the message in its topic."""
        return self._delivery.place

    def take_over(self, later: Message[Done]) -> None:
        """Continue with the lease of a later delivery of the same message."""
        self._handle = later.handle

    def bound(self, run: Callable[[Steps[None]], Other]) -> Message[Other]:
        """Return the same message with operations that are run by `run`."""
        return Message(self._delivery, self.topic, self._consumer_group, run)

    def ack(self) -> Done:
        """Acknowledge the message."""
        return self._run(calls.ack_one(self._consumer_group, self._handle))

    def retry(self, after: Span | None = None) -> Done:
        """Return the message to the broker for redelivery after a delay.

        The default delay is set by the group's retry policy.
        """
        return self._run(calls.retry(self._consumer_group, self._handle, after))

    def reject(self, reason: str = "") -> Done:
        """Make the message a dead letter.

        The reason is stored with the message and truncated to one line of 200 characters.
        """
        return self._run(calls.reject(self._consumer_group, self._handle, reason))

    def extend(self, lease: Span) -> Done:
        """Extend the lease to a time span from now."""
        return self._run(self._extended(lease))

    def _extended(self, lease: Span) -> Steps[None]:
        self._handle = yield from calls.extend(self._consumer_group, self._handle, lease)


class Timer(Generic[Result]):
    """Handle for a delayed message, identified by topic and key. The message need not exist."""

    def __init__(
        self, topic: str, key: str, wire_topic: str, run: Callable[[Steps[TimerResult]], Result]
    ) -> None:
        self.topic, self.key, self.wire_topic = topic, key, wire_topic
        self._run = run

    def __repr__(self) -> str:
        return f"<Timer {self.key!r} of {self.topic}>"

    def cancel(self, reason: str = "") -> Result:
        """Cancel the timer. The broker writes the reason to its log, as it does for all timer operations."""
        return self._run(calls.cancel(self.wire_topic, self.key, reason))

    def move(self, to: Span | datetime, reason: str = "") -> Result:
        """Change the due time to a datetime, or to a time span from now."""
        return self._run(calls.move(self.wire_topic, self.key, to, reason))

    def fire(self, reason: str = "") -> Result:
        """Deliver the message immediately."""
        return self._run(calls.fire(self.wire_topic, self.key, reason))

    def get(self) -> Result:
        """Return the state of the timer. The result is true as long as the timer is pending."""
        return self._run(calls.get(self.wire_topic, self.key))
