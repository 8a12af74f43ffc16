"""What every official client can be asked to do, in words that all of ours share.

A scenario (`scenarios`) is written once against these verbs; `python_client` carries them out with the
official Python client, `process_client` with those of other languages, each in a process of its own. What a
client says is turned into the values below, and a refusal, be it the broker's or the client's own, into
`Refused`.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol


class Refused(Exception):
    """The client or the broker refused; the text is what the client's user sees."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A receipt; `recall_handle` is empty for what is not delayed."""

    message_id: str
    recall_handle: str = ""


@dataclass(frozen=True, slots=True)
class Got:
    """A message that a simple consumer received. `native` is the client's own name for it."""

    native: Any
    handle: str
    message_id: str
    body: str
    attempt: int
    tag: str = ""
    keys: tuple[str, ...] = ()
    properties: dict[str, str] = field(default_factory=dict)
    message_group: str = ""
    lite_topic: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """One call of a push consumer's listener; times are wall milliseconds, `ended_ms` 0 while it runs."""

    body: str
    attempt: int
    message_group: str
    began_ms: float
    ended_ms: float
    lite_topic: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a listener does: sleeps, fails a message's first calls, and the message `poison` always."""

    seconds: float = 0.0
    failures: int = 0
    poison: str = ""


class SimpleConsumer(Protocol):
    """A simple consumer that has started."""

    def receive(self, count: int = 32, lease_seconds: int = 30) -> list[Got]:
        """Receive once; waits for as long as the consumer was made to."""

    def receiving(self, count: int = 32, lease_seconds: int = 30) -> Future[list[Got]]:
        """Begin to receive."""

    def ack(self, got: Got) -> None:
        """Acknowledge by `got.handle`."""

    def change_invisible(self, got: Got, seconds: int) -> Got:
        """Lease `got` anew; returns it with its new handle."""


class PushConsumer(Protocol):
    """A push consumer that has started."""

    def seen(self) -> Sequence[Seen]:
        """What its listener was called with so far, in the order of the calls."""


class LiteConsumer(Protocol):
    """What consumers of lite topics can be told."""

    def subscribe_lite(self, lite_topic: str) -> None:
        """Subscribe to a lite topic, too."""

    def unsubscribe_lite(self, lite_topic: str) -> None:
        """Subscribe to it no longer."""


class LiteSimpleConsumer(SimpleConsumer, LiteConsumer, Protocol):
    """A simple consumer of lite topics that has started."""


class LitePushConsumer(PushConsumer, LiteConsumer, Protocol):
    """A push consumer of lite topics that has started."""


class OfficialClient(Protocol):
    """One library; what it starts is shut down by `close`."""

    name: str

    def send(self, topic: str, body: str, **attributes: Any) -> Sent:
        """Send; attributes are tag, keys, message_group, lite_topic, priority, properties, deliver_at_s."""

    def recall(self, topic: str, recall_handle: str) -> str:
        """Recall a delayed message; returns its id."""

    def send_half(self, topic: str, name: str) -> None:
        """Send a half whose body and key are `name`."""

    def end_half(self, name: str, how: str) -> None:
        """End it: "commit" or "rollback"."""

    def answer_checks(self, name: str, *how: str) -> None:
        """Say what checks about it are told, one after the other, the last for ever; or "unknown"."""

    def simple(
        self, topic: str, group: str, filter_: str = "*", *, is_sql: bool = False, await_seconds: int = 5
    ) -> SimpleConsumer:
        """Start a simple consumer."""

    def push(
        self, topic: str, group: str, plan: Plan | None = None, filter_: str = "*", *, is_sql: bool = False
    ) -> PushConsumer:
        """Start a push consumer."""

    def lite_simple(self, topic: str, group: str, *, await_seconds: int = 5) -> LiteSimpleConsumer:
        """Start a simple consumer of lite topics of a topic."""

    def lite_push(self, topic: str, group: str, plan: Plan | None = None) -> LitePushConsumer:
        """Start a push consumer of lite topics of a topic."""

    def close(self) -> None:
        """Shut down what a scenario has started."""
