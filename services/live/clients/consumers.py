"""Connected consumers, as reported by the client port."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class ConsumerView:
    """A client of a consumer group.

    `kind` is the client type, such as PUSH_CONSUMER. `language` is the programming language of the client
    library. `is_connected` is true if the client has an open Telemetry stream. `receives` is the number of
    open receive calls, including long polls. `seen_ms` is the wall-clock time of the last call from the
    client.
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
"""Yields the consumers of a group, or of all groups if the group name is empty, in any order.

For each client that does not match, None is yielded, so that the caller can pause.
"""


def no_consumers(group: str) -> Iterator[ConsumerView | None]:
    """Yield nothing, because a broker without a client port has no consumers."""
    return iter(())
