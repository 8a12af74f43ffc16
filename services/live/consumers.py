"""Describes connected consumers, which the client port reports to the other interfaces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class ConsumerView:
    """A client of a consumer group.

    `kind` is the client type, such as PUSH_CONSUMER. `language` is the programming language of the client
    library. If `is_connected` is true, the client has an open Telemetry stream. `receives` is the number of
    open receive calls of the client, including long polls. `seen_ms` is the wall-clock time of the client's
    last call.
    """

    client_id: str
    group: str
    kind: str
    language: str
    version: str
    is_connected: bool
    receives: int
    seen_ms: int


ConsumersOf = Callable[[str], Iterator[ConsumerView | None]]
"""A function that yields the consumers of a group, or of all groups if the name is empty, in any order.

For each client that does not match, the function yields None, so that the caller can pause.
"""


def no_consumers(group: str) -> Iterator[ConsumerView | None]:
    """Yield nothing, because a broker without a client port has no consumers."""
    return iter(())
