"""`Client` for threads, and `AsyncClient` for asyncio: the same names, awaited.

    client = Client()
    client.send("deadlines", {"order": 7}, delay="30m", key="order:7")
    if client.timer("deadlines", "order:7").cancel():
        ...
    for message in client.receive("orders", "shop"):
        ...
        message.ack()

Both only run the operations of `tidewheel.client.calls`, each in its shell. Threads may share a Client.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Iterable
from socket import gethostname
from typing import TYPE_CHECKING, Final, TypeVar, Unpack
from uuid import uuid4

from tidewheel.client import calls
from tidewheel.client.address import Broker, broker
from tidewheel.client.calls import spaced
from tidewheel.client.handles import Message, Timer
from tidewheel.client.http import LoopShell, ThreadShell
from tidewheel.client.names import namespace_of
from tidewheel.client.values import Delivery, NewMessage, SendOptions, Sent, TimerResult

if TYPE_CHECKING:
    from tidewheel.client.bodies import Body
    from tidewheel.client.exchange import Steps
    from tidewheel.client.spans import Span

T = TypeVar("T")

TIMEOUT_S: Final = 30.0
COUNT: Final = 16
WAIT: Final = "20s"
LEASE: Final = "60s"
_HOST_CHARACTERS_MAX: Final = 64


def new_id() -> str:
    """Return a new message id."""
    return uuid4().hex.upper()


def own_name() -> str:
    """Return the name that this process receives under, for the broker's lists."""
    return f"{gethostname()[:_HOST_CHARACTERS_MAX]}@{os.getpid()}"


class Calls:
    """The operations of one client, in its namespace."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace_of(namespace)

    def send(self, message: NewMessage) -> Steps[Sent]:
        """Store one message."""
        return calls.send(message, self.namespace, new_id())

    def send_many(self, messages: Iterable[NewMessage]) -> Steps[list[Sent]]:
        """Store messages."""
        return calls.send_many(messages, self.namespace, new_id)

    def receive(
        self, topic: str, group: str, count: int, wait: Span, lease: Span, tags: str, sql: str
    ) -> Steps[list[Delivery]]:
        """Lease messages; `group` is the wire's name."""
        wire_topic = spaced(self.namespace, topic)
        return calls.receive(
            wire_topic, group, count=count, wait=wait, lease=lease, tags=tags, sql=sql, name=own_name()
        )


class Client:
    """A broker, over HTTP, for threads.

    `url` is [http[s]://]HOST:PORT, of the nodes of a cluster with commas; missing arguments are taken from
    TIDEWHEEL_HTTP, TIDEWHEEL_HTTP_TOKEN and TIDEWHEEL_HTTP_CA (`tidewheel.client.address`). `timeout` is in
    seconds, for an answer; a receive may take its wait longer. Calls raise errors of `tidewheel.errors`:
    `BrokerUnreachable`, `AnswerLate`, `AnswerLost`, or a refusal of the broker.

    Raises:
        ConfigurationError: for an address, a token or a file that cannot be used.
        LibraryMissing: when neither httpx2 nor httpx is installed.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        authorities: str | None = None,
        namespace: str = "",
        timeout: float = TIMEOUT_S,
    ) -> None:
        self.broker: Broker = broker(url, token, authorities)
        self.namespace, self.timeout = namespace, timeout
        self._calls = Calls(namespace)
        self._shell = ThreadShell(self.broker, timeout)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._shell.close()

    def run(self, steps: Steps[T]) -> T:
        """Run an operation of `tidewheel.client.calls`."""
        return self._shell.run(steps)

    def send(self, topic: str, body: Body, **options: Unpack[SendOptions]) -> Sent:
        """Send a message: at once, after a `delay` ("30m", a timedelta), or `at` a datetime with a zone.

        Options are those of `NewMessage`: delay, at, key, unique, group, tag, keys, properties,
        idempotency_key. The message is on the broker's disk when this returns.
        """
        return self._shell.run(self._calls.send(NewMessage(topic, body, **options)))

    def send_many(self, messages: Iterable[NewMessage]) -> list[Sent]:
        """Send messages, some in a request; raise `SomeRefused` unless all were sent."""
        return self._shell.run(self._calls.send_many(messages))

    def timer(self, topic: str, key: str) -> Timer[TimerResult]:
        """Return the delayed message of a topic by its key, to look at, cancel, move or fire."""
        return Timer(topic, key, spaced(self._calls.namespace, topic), self._shell.run)

    def receive(
        self,
        topic: str,
        group: str,
        *,
        count: int = COUNT,
        wait: Span = WAIT,
        lease: Span = LEASE,
        filter: str = "",  # noqa: A002 # the word of the HTTP interface
        sql: str = "",
    ) -> list[Message[None]]:
        """Lease up to `count` messages (1 to 32) for a group, waiting up to 20 s for the first.

        `filter` is tags ("new || paid"), `sql` an expression over properties.
        """
        wire_group = spaced(self._calls.namespace, group)
        found = self._shell.run(self._calls.receive(topic, wire_group, count, wait, lease, filter, sql))
        return [Message(one, topic, wire_group, self._shell.run) for one in found]


class AsyncClient:
    """A broker, over HTTP, for asyncio: `Client`, with each call awaited."""

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        authorities: str | None = None,
        namespace: str = "",
        timeout: float = TIMEOUT_S,
    ) -> None:
        self.broker: Broker = broker(url, token, authorities)
        self.namespace, self.timeout = namespace, timeout
        self._calls = Calls(namespace)
        self._shell = LoopShell(self.broker, timeout)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._shell.close()

    async def run(self, steps: Steps[T]) -> T:
        """Run an operation of `tidewheel.client.calls`."""
        return await self._shell.run(steps)

    async def wait_for_room(self) -> None:
        """Wait until there is a connection for one more call, behind the calls that wait for one."""
        await self._shell.wait_for_room()

    async def send(self, topic: str, body: Body, **options: Unpack[SendOptions]) -> Sent:
        """Send a message, as `Client.send` does."""
        return await self._shell.run(self._calls.send(NewMessage(topic, body, **options)))

    async def send_many(self, messages: Iterable[NewMessage]) -> list[Sent]:
        """Send messages, as `Client.send_many` does."""
        return await self._shell.run(self._calls.send_many(messages))

    def timer(self, topic: str, key: str) -> Timer[Awaitable[TimerResult]]:
        """Return the delayed message of a topic by its key; its verbs are awaited."""
        return Timer(topic, key, spaced(self._calls.namespace, topic), self._shell.run)

    async def receive(
        self,
        topic: str,
        group: str,
        *,
        count: int = COUNT,
        wait: Span = WAIT,
        lease: Span = LEASE,
        filter: str = "",  # noqa: A002 # the word of the HTTP interface
        sql: str = "",
    ) -> list[Message[Awaitable[None]]]:
        """Lease messages, as `Client.receive` does."""
        wire_group = spaced(self._calls.namespace, group)
        found = await self._shell.run(self._calls.receive(topic, wire_group, count, wait, lease, filter, sql))
        return [Message(one, topic, wire_group, self._shell.run) for one in found]


def for_another_loop(client: Client | AsyncClient) -> AsyncClient:
    """Return a client of the same broker, with connections of its own."""
    broker = client.broker
    return AsyncClient(
        ",".join(broker.urls),
        token=broker.token,
        authorities=broker.authorities,
        namespace=client.namespace,
        timeout=client.timeout,
    )
