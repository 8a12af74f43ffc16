"""The object behind the `tidewheel` fixture: the broker of the session, a namespace, and the clock."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from tidewheel.testing.process import BrokerProcess

if TYPE_CHECKING:
    from tidewheel.client.clients import Client

TIMERS_MAX = 1_000
MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Pending:
    """A pending delayed message.

    `topic` is the topic name without the namespace; `due_ms` is in milliseconds since 1970, in real time.
    """

    message_id: str
    topic: str
    keys: tuple[str, ...]
    due_ms: int

    @property
    def due_in(self) -> timedelta:
        """The time by which the clock must be advanced until the message is due."""
        return timedelta(milliseconds=self.due_ms - time.time_ns() // 1_000_000)


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample of the broker's metrics. Metrics cover all namespaces."""

    name: str
    labels: dict[str, str]
    value: float


class Tidewheel:
    """A real broker with a virtual clock, as used by one test.

    `client` sends and receives over HTTP. The official client takes `endpoint` and `namespace`:
    `ClientConfiguration(endpoint, Credentials(), namespace)`. Topics and groups of other tests are not
    visible. All tests share the clock and the broker process.
    """

    def __init__(self, process: BrokerProcess, namespace: str) -> None:
        self._process, self.namespace = process, namespace
        self._client: Client | None = None

    @property
    def endpoint(self) -> str:
        """HOST:PORT of the broker's gRPC interface. It does not change on a restart."""
        return self._process.listen

    @property
    def http(self) -> str:
        """HOST:PORT of the HTTP interface."""
        return self._process.http

    @property
    def client(self) -> Client:
        """An HTTP client in this test's namespace. It requires httpx2 or httpx."""
        if self._client is None:
            from tidewheel.client.clients import Client

            self._client = Client(f"http://{self.http}", token="", authorities="", namespace=self.namespace)
        return self._client

    def advance(self, by: str | timedelta) -> None:
        """Advance the clock by a time span such as "30m" or "1h30m".

        Returns when all messages that became due are stored.

        Consumers receive these messages asynchronously, so a test must wait for their effects.
        """
        span = f"{-(-by // MILLISECOND)}ms" if isinstance(by, timedelta) else by
        self._process.post("/api/clock/advance", {"by": span})

    def pending(self) -> list[Pending]:
        """Return the pending delayed messages of this test in order of due time, at most 1,000."""
        prefix = f"{self.namespace}%"
        query = {"topic-prefix": prefix, "limit": str(TIMERS_MAX)}
        return [
            Pending(
                one["message_id"], one["topic"].removeprefix(prefix), tuple(one["keys"]), int(one["due_ms"])
            )
            for one in self._process.get("/api/timers", **query)["timers"]
        ]

    def metrics(self) -> list[Sample]:
        """Return all metrics of the broker. They cover all tests."""
        from prometheus_client.parser import text_string_to_metric_families

        families = text_string_to_metric_families(self._process.scrape())
        return [Sample(one.name, one.labels, one.value) for family in families for one in family.samples]

    def crash(self) -> None:
        """Kill the broker as `kill -9` does."""
        self._process.kill()

    def close(self) -> None:
        """Close the connections of the client."""
        if self._client is not None:
            self._client.close()

    def restart(self) -> None:
        """Start the broker again on the same store and address. A running broker is stopped first."""
        if self._process.is_running:
            self._process.stop()
        self._process.start()
