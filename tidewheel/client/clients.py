"""`Client` for threads, and `AsyncClient` for asyncio. Both have the same methods.

    client = Client()
    client.send("deadlines", {"order": 7}, delay="30m", key="order:7")
    if client.timer("deadlines", "order:7").cancel():
        ...
    for message in client.receive("orders", "shop"):
        ...
        message.ack()

Both classes run the operations of `tidewheel.client.calls` with different transports. A `Client` can be
shared between threads.
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
    """Return the client name of this process, which the broker shows in its lists."""
    return f"{gethostname()[:_HOST_CHARACTERS_MAX]}@{os.getpid()}"


class Calls:
    """Operations of one client in its namespace."""

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
        """Lease messages. `group` includes the namespace prefix."""
        wire_topic = spaced(self.namespace, topic)
        return calls.receive(
            wire_topic, group, count=count, wait=wait, lease=lease, tags=tags, sql=sql, name=own_name()
        )


class Client:
    """HTTP client of a broker, for threads.

    `url` is [http[s]://]HOST:PORT, or a comma-separated list of them for the nodes of a cluster. Missing
    arguments are taken from TIDEWHEEL_HTTP, TIDEWHEEL_HTTP_TOKEN and TIDEWHEEL_HTTP_CA
    (`tidewheel.client.address`). `timeout` is the time to wait for an answer, in seconds. The `wait` of a
    receive is added to it. Methods raise the errors of `tidewheel.errors`: `BrokerUnreachable`, `AnswerLate`,
    `AnswerLost`, or an error returned by the broker.

    Raises:
        ConfigurationError: If an address, a token or a file is invalid.
        LibraryMissing: If neither httpx2 nor httpx is installed.
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
        """Send a message immediately, after a `delay` ("30m" or a timedelta), or `at` a timezone-aware
        datetime.

        The options are described in `NewMessage`. The message has been written to the broker's disk when this
        method returns.
        """
        return self._shell.run(self._calls.send(NewMessage(topic, body, **options)))

    def send_many(self, messages: Iterable[NewMessage]) -> list[Sent]:
        """Send messages in batches. Raises `SomeRefused` if a message was not sent."""
        return self._shell.run(self._calls.send_many(messages))

    def timer(self, topic: str, key: str) -> Timer[TimerResult]:
        """Return a handle for a delayed message, to query, cancel, move or fire it."""
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
        """Lease up to `count` messages (1 to 32) for a group.

        The call waits up to `wait` for the first message, at most 20 s.

        `filter` is a tag expression ("new || paid"). `sql` is an SQL expression over message properties.
        """
        wire_group = spaced(self._calls.namespace, group)
        found = self._shell.run(self._calls.receive(topic, wire_group, count, wait, lease, filter, sql))
        return [Message(one, topic, wire_group, self._shell.run) for one in found]


class AsyncClient:
    """HTTP client of a broker, for asyncio. The methods are those of `Client`, as coroutines."""

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
        """Wait until a connection is free for one more call. Calls are served in order of arrival."""
        await self._shell.wait_for_room()

    async def send(self, topic: str, body: Body, **options: Unpack[SendOptions]) -> Sent:
        """Send a message, as `Client.send` does."""
        return await self._shell.run(self._calls.send(NewMessage(topic, body, **options)))

    async def send_many(self, messages: Iterable[NewMessage]) -> list[Sent]:
        """Send messages, as `Client.send_many` does."""
        return await self._shell.run(self._calls.send_many(messages))

    def timer(self, topic: str, key: str) -> Timer[Awaitable[TimerResult]]:
        """Return a handle for a delayed message. Its methods return awaitables."""
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
    """Return a new client of the same broker that has its own connections."""
    broker = client.broker
    return AsyncClient(
        ",".join(broker.urls),
        token=broker.token,
        authorities=broker.authorities,
        namespace=client.namespace,
        timeout=client.timeout,
    )
