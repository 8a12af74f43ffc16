"""Who consumes: what the front that clients talk to knows of them, as the interfaces show it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class ConsumerView:
    """A client of a consumer group. `kind` is PUSH_CONSUMER, SIMPLE_CONSUMER ..., `language` its library's.

    `is_connected`: it has a stream to be written to. `receives` counts its receives that are open now, such
    as long polls; `seen_ms` is when it called last, in wall time.
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
"""The consumers of a group, or with "" of all, in no order: made one by one, since they may be many.

None for a client that is no such consumer: the caller may pause there, too."""


def no_consumers(group: str) -> Iterator[ConsumerView | None]:
    """Yield no consumer, for a broker without a client port."""
    return iter(())
