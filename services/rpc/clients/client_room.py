"""Limits on the number of client sessions per connection, per address, and in the broker.

    a call with a new client id --> is its connection, its address or the broker full?
                                       no  --> a new session
                                       yes --> remove idle sessions there, oldest first. If none: refuse

1. Client ids are chosen by callers, so each limit is charged to the caller. A connection that invents ids
   first displaces idle sessions of the same connection, then of the same address. Sessions of other addresses
   are displaced only if the broker is full.
2. A session is idle if it has no Telemetry stream, no open receive, and no answer whose leases may be active.
   Sessions without settings are removed first, then sessions in order of their last call. A removed client
   loses no durable state: its leases remain until they expire, and its next call creates a new session.
3. A session is counted for the connection of its last call. A call that a cluster node forwards is counted
   for the address and connection at that node (`services.cluster.forwarding.origin_signatures`), not for the
   node itself.
4. Each search removes up to one sixteenth of the sessions. A search that found no idle session is not
   repeated for `CHECK_INTERVAL_MS`.

Limits (`commitlog.limits`): `CLIENTS_PER_CONNECTION_MAX` equals the maximum number of streams of a
connection, because each connected client has one stream. Official clients use a separate connection or share
it between a few clients. `CLIENTS_PER_ADDRESS_MAX` is half of `CLIENTS_MAX`, because all clients behind a
proxy or NAT have the same address.

Cost: one comparison per call. A search of 50,000 sessions takes about 10 ms and occurs once per 3,125 new
clients. Limitation: two addresses with open streams for all their clients can fill the broker. IPv6 addresses
are counted individually.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, NamedTuple

import structlog

from commitlog import limits
from services.rpc.clients.session import Session
from services.rpc.wire.caller import Caller
from services.rpc.wire.errors import TooManyClients

CHECK_INTERVAL_MS: Final = 1_000
LOG_EACH_MS: Final = 10_000
FORGOTTEN_PART: Final = 16
BROKER, ADDRESS, CONNECTION = "broker", "address", "connection"

REASON: Final = "too many clients"

NoteRefused = Callable[[str, str, str, str], None]

log = structlog.get_logger()


def ignore_refusal_note(reason: str, host: str, detail: str, who: str) -> None:
    """Ignore the refusal."""


class Bound(NamedTuple):
    """The maximum number of sessions of a place, and the advice for a caller that exceeds it."""

    clients_max: int
    advice: str


class Place(NamedTuple):
    """An entity with a limit: a connection, an address, or the broker (with an empty name)."""

    kind: str
    name: str | int

    def __str__(self) -> str:
        return self.kind if self.kind == BROKER else f"{self.kind} {self.name}"


@dataclass(slots=True)
class Population:
    """The sessions of a place, by client id.

    `looked_ms` is the time of the last search that found no idle session.
    """

    sessions: dict[str, Session] = field(default_factory=dict)
    looked_ms: int = -CHECK_INTERVAL_MS


class ClientRoom:
    """The sessions by place. `forget` removes a session to make room for another."""

    def __init__(self, forget: Callable[[Session], None]) -> None:
        self._forget = forget
        self._populations: dict[Place, Population] = {}
        self.forgotten: Counter[str] = Counter()
        """Number of sessions removed to make room, by the kind of place that was full."""
        self.refused: Counter[str] = Counter()
        """Number of calls refused because a place was full, by the kind of place."""
        self._logged_ms = -LOG_EACH_MS
        self._note_refused: NoteRefused = ignore_refusal_note

    def set_refusal_callback(self, note: NoteRefused) -> None:
        """Set the function that receives each refusal: reason, address, message, client id."""
        self._note_refused = note

    def make(self, caller: Caller, now_ms: int) -> None:
        """Make room for a caller's session. Raises `TooManyClients`."""
        for place in limits_of_client(caller.host, caller.connection):
            population = self._populations.get(place)
            if population is not None and len(population.sessions) >= bound_of(place).clients_max:
                self._make_in(place, population, caller, now_ms)

    def add(self, session: Session) -> None:
        """Add a session to the counts."""
        for place in limits_of_client(session.host, session.connection):
            self._populations.setdefault(place, Population()).sessions[session.client_id] = session

    def remove(self, session: Session) -> None:
        """Remove a session from the counts."""
        for place in limits_of_client(session.host, session.connection):
            population = self._populations[place]
            del population.sessions[session.client_id]
            if not population.sessions:
                del self._populations[place]

    def move(self, session: Session, caller: Caller) -> None:
        """Move a session to the connection of its latest call."""
        self.remove(session)
        session.host, session.connection = caller.host, caller.connection
        self.add(session)

    def _make_in(self, place: Place, population: Population, caller: Caller, now_ms: int) -> None:
        if now_ms - population.looked_ms >= CHECK_INTERVAL_MS:
            idle = idle_of(population.sessions, max(1, len(population.sessions) // FORGOTTEN_PART))
            for session in idle:
                self._forget(session)
            self.forgotten[place.kind] += len(idle)
            if idle:
                self._log("idle clients made room for others", place, caller, now_ms)
                return
            population.looked_ms = now_ms
        self.refused[place.kind] += 1
        self._log("too many clients", place, caller, now_ms)
        where = f"its connection ({caller.host})" if place.kind == CONNECTION else f"the {place}"
        count, advice = len(population.sessions), bound_of(place).advice
        error = TooManyClients(
            f"The client id {caller.client_id[:64]!r} is new, and {where} has {count} clients that are "
            f"connected or hold leases, the maximum. {advice}"
        )
        self._note_refused(REASON, caller.host, error.detail, caller.client_id)
        raise error

    def _log(self, what: str, place: Place, caller: Caller, now_ms: int) -> None:
        if now_ms - self._logged_ms >= LOG_EACH_MS:
            self._logged_ms = now_ms
            log.warning(
                what,
                full=place.kind,
                host=caller.host,
                client=caller.client_id[:64],
                clients=len(self._populations[Place(BROKER, "")].sessions),
                forgotten=self.forgotten.total(),
                refused=self.refused.total(),
            )


def limits_of_client(host: str, connection: int | str) -> Iterator[Place]:
    """Yield the places of a session, most specific first. An unknown connection is omitted."""
    if connection:
        yield Place(CONNECTION, connection)
    yield Place(ADDRESS, host)
    yield Place(BROKER, "")


def bound_of(place: Place) -> Bound:
    """Return the limit of a place."""
    match place.kind:
        case "connection":
            advice = "Open a connection for each client, and keep its client id for as long as it lives."
            return Bound(limits.CLIENTS_PER_CONNECTION_MAX, advice)
        case "address":
            advice = (
                "List them with: tidewheel client ls. Behind a proxy all clients have its address: give "
                "it a second one."
            )
            return Bound(limits.CLIENTS_PER_ADDRESS_MAX, advice)
    return Bound(limits.CLIENTS_MAX, "List them with: tidewheel client ls. Stop some, and call again.")


def idle_of(sessions: dict[str, Session], count: int) -> list[Session]:
    """Return up to `count` idle sessions: sessions without settings first, then in order of their
    last call.
    """
    found: list[Session] = []
    idle = [one for one in sessions.values() if one.is_idle]
    for is_settled in (False, True):
        some = [one for one in idle if (one.described is not None) == is_settled]
        some.sort(key=attrgetter("heard_ms"))
        found += some[: count - len(found)]
    return found
