"""Connected clients, and the requests that operators can send to clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from services.broker.spine.values import Delivery
from services.live.errors import ClientNotFound


@dataclass(slots=True, frozen=True)
class ClientView:
    """A connected client.

    `kind` is the client type, such as PRODUCER, or empty until the client has sent its settings.
    `can_be_asked` is true if the client has an open Telemetry stream. `seen_ms` is the wall-clock time of the
    last call from the client.
    """

    client_id: str
    kind: str
    group: str
    language: str
    version: str
    can_be_asked: bool
    seen_ms: int


class ClientRequests(Protocol):
    """Sends requests of operators to clients.

    The methods raise `ClientNotFound`, or `ClientSilent` if the client does not respond.
    """

    def ids(self) -> list[str]:
        """Return the ids of all connected clients, in any order."""

    def view(self, client_id: str) -> ClientView:
        """Return a view of a connected client."""

    async def stack(self, client_id: str) -> str:
        """Return the thread dump of a client."""

    async def verify(self, client_id: str, delivery: Delivery) -> str:
        """Send a message to a push consumer for reprocessing, and return the result code of the consumer.

        The offsets of the consumer group do not change.
        """

    def reconnect(self, client_id: str) -> None:
        """Instruct a client to reconnect."""


class NoClients:
    """The clients of a broker without a client port. No client is ever connected."""

    def ids(self) -> list[str]:
        """Return an empty list."""
        return []

    def view(self, client_id: str) -> ClientView:
        """Raise `ClientNotFound`, because no client is connected."""
        raise client_not_found(client_id)

    async def stack(self, client_id: str) -> str:
        """Raise `ClientNotFound`, because no client is connected."""
        raise client_not_found(client_id)

    async def verify(self, client_id: str, delivery: Delivery) -> str:
        """Raise `ClientNotFound`, because no client is connected."""
        raise client_not_found(client_id)

    def reconnect(self, client_id: str) -> None:
        """Raise `ClientNotFound`, because no client is connected."""
        raise client_not_found(client_id)


def client_not_found(client_id: str) -> ClientNotFound:
    """Return the error for a client that is not connected."""
    return ClientNotFound(f"{client_id[:255]!r} is not connected. See who is: tidewheel client ls")
