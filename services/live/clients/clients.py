"""Connected clients, and the requests that operators can send to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from services.broker.spine.values import Delivery
from services.live.errors import ClientNotFound


@dataclass(slots=True, frozen=True)
class ClientView:
    """A connected client.

    `kind` is the client type, such as PRODUCER, or empty until the client has sent its settings.
    `can_be_asked` indicates whether the client has an open Telemetry stream. `seen_ms` is the wall-clock time
    of its last call.
    """

    client_id: str
    kind: str
    group: str
    language: str
    version: str
    can_be_asked: bool
    seen_ms: int


class ClientRequests(Protocol):
    """Sends requests to clients.

    The methods raise `ClientNotFound`, or `ClientSilent` if the client does not respond.
    """

    def ids(self) -> list[str]:
        """Return the ids of all connected clients, in any order."""

    def view(self, client_id: str) -> ClientView:
        """Return a connected client."""

    async def stack(self, client_id: str) -> str:
        """Return a client's thread dump."""

    async def verify(self, client_id: str, delivery: Delivery) -> str:
        """Make a push consumer process a message again, and return the consumer's result code.

        The group's progress does not change.
        """

    def reconnect(self, client_id: str) -> None:
        """Make a client reconnect."""


class NoClients:
    """The empty client list of a broker without a client port."""

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
