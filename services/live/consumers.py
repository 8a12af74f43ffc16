"""Connected consumers, as the client port reports them to the interfaces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class ConsumerView:
    """A client of a consumer group. `kind` is PUSH_CONSUMER, SIMPLE_CONSUMER ..., `language` its library's.

    `is_connected`: the client has an open Telemetry stream. `receives` counts its open receives, such as long
    polls; `seen_ms` is the wall time of its last call.
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
"""Yield the consumers of a group, or of all groups with "", unordered, one at a time.

Yield None for every other client, where the caller may pause, too."""


def no_consumers(group: str) -> Iterator[ConsumerView | None]:
    """Yield no consumer, for a broker without a client port."""
    return iter(())
