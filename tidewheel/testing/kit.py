"""What a test holds: the broker of its session, a namespace of its own, and the clock."""

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
    """A delayed message that waits. `topic` is the test's name for it, `due_ms` is real time since 1970."""

    message_id: str
    topic: str
    keys: tuple[str, ...]
    due_ms: int

    @property
    def due_in(self) -> timedelta:
        """How far the clock must be advanced until the message is due."""
        return timedelta(milliseconds=self.due_ms - time.time_ns() // 1_000_000)


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of the broker's metrics, of all namespaces."""

    name: str
    labels: dict[str, str]
    value: float


class Tidewheel:
    """A real broker with a virtual clock, as one test sees it.

    `client` sends and receives over HTTP. The official client takes `endpoint` and `namespace`:
    `ClientConfiguration(endpoint, Credentials(), namespace)`. Topics and groups of other tests are out of
    sight; all tests share the clock and the process.
    """

    def __init__(self, process: BrokerProcess, namespace: str) -> None:
        self._process, self.namespace = process, namespace
        self._client: Client | None = None

    @property
    def endpoint(self) -> str:
        """HOST:PORT for clients; it stays the same over a restart."""
        return self._process.listen

    @property
    def http(self) -> str:
        """HOST:PORT of the HTTP interface."""
        return self._process.http

    @property
    def client(self) -> Client:
        """A client over HTTP, in this test's namespace; it needs httpx2 or httpx."""
        if self._client is None:
            from tidewheel.client.clients import Client

            self._client = Client(f"http://{self.http}", token="", authorities="", namespace=self.namespace)
        return self._client

    def advance(self, by: str | timedelta) -> None:
        """Let time pass, such as "30m" or "1h30m"; return when everything due on the way is stored.

        Consumers get it as they would: wait for what they do with it.
        """
        span = f"{-(-by // MILLISECOND)}ms" if isinstance(by, timedelta) else by
        self._process.post("/api/clock/advance", {"by": span})

    def pending(self) -> list[Pending]:
        """Return the delayed messages of this test that wait, the first due first, 1,000 at most."""
        prefix = f"{self.namespace}%"
        query = {"topic-prefix": prefix, "limit": str(TIMERS_MAX)}
        return [
            Pending(
                one["message_id"], one["topic"].removeprefix(prefix), tuple(one["keys"]), int(one["due_ms"])
            )
            for one in self._process.get("/api/timers", **query)["timers"]
        ]

    def metrics(self) -> list[Sample]:
        """Return everything the broker measures, for all tests together."""
        from prometheus_client.parser import text_string_to_metric_families

        families = text_string_to_metric_families(self._process.scrape())
        return [Sample(one.name, one.labels, one.value) for family in families for one in family.samples]

    def crash(self) -> None:
        """Kill the broker where it stands, as `kill -9` does."""
        self._process.kill()

    def close(self) -> None:
        """Close the connections of the client."""
        if self._client is not None:
            self._client.close()

    def restart(self) -> None:
        """Start the broker again on the same store and address; one that still runs is stopped first."""
        if self._process.is_running:
            self._process.stop()
        self._process.start()
