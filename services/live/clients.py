"""The clients that are connected, and what they can be asked, as the interfaces for operators see them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from services.broker.values import Delivery
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

    def views(self) -> list[ClientView]:
        """Everybody who is there, by id."""

    def view(self, client_id: str) -> ClientView:
        """One who is there."""

    async def stack(self, client_id: str) -> str:
        """What its threads do."""

    async def verify(self, client_id: str, delivery: Delivery) -> str:
        """Has a push consumer consume a message once more, outside of its group; returns the code it says."""

    def reconnect(self, client_id: str) -> None:
        """Has it connect again."""


class Nobody:
    """What a broker without a front for clients knows."""

    def views(self) -> list[ClientView]:
        """Nobody."""
        return []

    def view(self, client_id: str) -> ClientView:
        """Not there."""
        raise unknown(client_id)

    async def stack(self, client_id: str) -> str:
        """Not there."""
        raise unknown(client_id)

    async def verify(self, client_id: str, delivery: Delivery) -> str:
        """Not there."""
        raise unknown(client_id)

    def reconnect(self, client_id: str) -> None:
        """Not there."""
        raise unknown(client_id)


def unknown(client_id: str) -> ClientNotFound:
    """Return the error for a client that is not there."""
    return ClientNotFound(f"{client_id[:255]!r} is not connected. See who is: tidewheel client ls")
