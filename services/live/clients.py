"""The clients that are connected, and what they can be asked, as the interfaces for operators see them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from services.broker.spine.values import Delivery
from services.live.errors import ClientNotFound


@dataclass(slots=True, frozen=True)
class ClientView:
    """A client. `kind` is PRODUCER, PUSH_CONSUMER ..., empty until it has said; times are wall milliseconds.

    `can_be_asked`: it has a stream to be written to.
    """

    client_id: str
    kind: str
    group: str
    language: str
    version: str
    can_be_asked: bool
    seen_ms: int


class AskClients(Protocol):
    """Questions to a client; each raises `ClientNotFound`, or `ClientSilent` if it does not answer."""

    def ids(self) -> list[str]:
        """Return the ids of the clients that are connected, in no order."""

    def view(self, client_id: str) -> ClientView:
        """Return a client that is there."""

    async def stack(self, client_id: str) -> str:
        """Return what a client's threads do."""

    async def verify(self, client_id: str, delivery: Delivery) -> str:
        """Have a push consumer consume a message again, outside of its group; return the client's code."""

    def reconnect(self, client_id: str) -> None:
        """Have a client connect again."""


class Nobody:
    """What a broker without a front for clients knows."""

    def ids(self) -> list[str]:
        """Return an empty list: a broker without a transport has no clients."""
        return []

    def view(self, client_id: str) -> ClientView:
        """Raise `ClientNotFound`."""
        raise unknown(client_id)

    async def stack(self, client_id: str) -> str:
        """Raise `ClientNotFound`."""
        raise unknown(client_id)

    async def verify(self, client_id: str, delivery: Delivery) -> str:
        """Raise `ClientNotFound`."""
        raise unknown(client_id)

    def reconnect(self, client_id: str) -> None:
        """Raise `ClientNotFound`."""
        raise unknown(client_id)


def unknown(client_id: str) -> ClientNotFound:
    """Return the error for a client that is not there."""
    return ClientNotFound(f"{client_id[:255]!r} is not connected. See who is: tidewheel client ls")
