"""The list of consumers for the operators' interfaces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from services.live.clients.consumers import ConsumerView
from services.rpc.clients.session import Session
from services.rpc.clients.sessions import Sessions
from services.rpc.generated.definition_pb2 import ClientType


def consumers(sessions: Sessions, group: str = "") -> list[ConsumerView]:
    """Return the consumers of one group or of all groups, sorted by group and client id."""
    return sorted(filter(None, each_consumer(sessions, group)), key=lambda one: (one.group, one.client_id))


def each_consumer(sessions: Iterable[Session], group: str = "") -> Iterator[ConsumerView | None]:
    """Yield the consumers of one group or of all groups, unsorted, and None for each other client."""
    for one in list(sessions):
        is_wanted = one.group and not one.is_producer and group in ("", one.group)
        yield view(one) if is_wanted else None


def view(session: Session) -> ConsumerView:
    """Return the current state of a consumer. An unknown client type is shown as its number."""
    known = ClientType.DESCRIPTOR.values_by_number.get(session.client_type)
    return ConsumerView(
        client_id=session.client_id,
        group=session.group,
        kind=known.name if known else str(session.client_type),
        language=session.language,
        version=session.version,
        is_connected=bool(session.streams),
        receives=session.receives,
        seen_ms=session.seen_ms,
    )
