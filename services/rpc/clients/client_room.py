"""Room for client sessions: how many one connection, one address and the broker hold, and which make room.

    a call under a new client id --> its connection, its address, the broker: is one of them full?
                                       no  --> a new session
                                       yes --> forget the idle sessions there, oldest first; none: refuse

1. Client ids are named by callers, so each bound has a caller: a connection that invents ids displaces its
   own idle sessions first, then those of its address; sessions of others only when the broker is full.
2. Idle: no Telemetry stream, no open receive, no answer whose leases may stand. Sessions without settings go
   first, then those not heard of for the longest time. A forgotten client loses nothing that lasts: its
   leases stand until they run out, and its next call makes a new session.
3. A session counts where its last call came from. A call that a node of a cluster forwards counts by the
   address and connection at that node (`services.cluster.forwarding.origin_signatures`), never by the node's
   own.
4. Per look one sixteenth of a full set is forgotten; a look that found none is not repeated for LOOK_EACH_MS.

Numbers (`commitlog.limits`): CLIENTS_PER_CONNECTION_MAX is the number of streams that a connection may have
open, as each connected client has one; an official client opens a connection for itself or shares few.
CLIENTS_PER_ADDRESS_MAX is half of CLIENTS_MAX: all clients behind a proxy or NAT have one address.

Cost: one comparison a call; a look at 50,000 sessions takes about 10 ms, once per 3,125 newcomers. Weak spot:
two addresses with open streams for all their clients can fill the broker; IPv6 addresses count singly.
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

LOOK_EACH_MS: Final = 1_000
LOG_EACH_MS: Final = 10_000
FORGOTTEN_PART: Final = 16
BROKER, ADDRESS, CONNECTION = "broker", "address", "connection"

REASON: Final = "too many clients"

NoteRefused = Callable[[str, str, str, str], None]

log = structlog.get_logger()


def ignore_refused(reason: str, host: str, detail: str, who: str) -> None:
    """Take no notice."""


class Bound(NamedTuple):
    """How many sessions a place may have, and what to do about it."""

    clients_max: int
    advice: str


class Place(NamedTuple):
    """What has a bound: a connection, an address, or the broker (with an empty name)."""

    kind: str
    name: str | int

    def __str__(self) -> str:
        return self.kind if self.kind == BROKER else f"{self.kind} {self.name}"


@dataclass(slots=True)
class Population:
    """The sessions of a place, by client id. `looked_ms`: when nothing idle was found there last."""

    sessions: dict[str, Session] = field(default_factory=dict)
    looked_ms: int = -LOOK_EACH_MS


class ClientRoom:
    """The sessions by place. `forget` drops a session that makes room for another."""

    def __init__(self, forget: Callable[[Session], None]) -> None:
        self._forget = forget
        self._populations: dict[Place, Population] = {}
        self.forgotten: Counter[str] = Counter()
        """Sessions that made room for others, by the kind of place that was full."""
        self.refused: Counter[str] = Counter()
        """Calls that were refused for want of room, likewise."""
        self._logged_ms = -LOG_EACH_MS
        self._note_refused: NoteRefused = ignore_refused

    def refuse_with(self, note: NoteRefused) -> None:
        """Pass each refusal to `note`: reason, address, sentence, client id."""
        self._note_refused = note

    def make(self, caller: Caller, now_ms: int) -> None:
        """Make room for a session of a caller; raise `TooManyClients`."""
        for place in places_of(caller.host, caller.connection):
            population = self._populations.get(place)
            if population is not None and len(population.sessions) >= bound_of(place).clients_max:
                self._make_in(place, population, caller, now_ms)

    def add(self, session: Session) -> None:
        """Count a session in."""
        for place in places_of(session.host, session.connection):
            self._populations.setdefault(place, Population()).sessions[session.client_id] = session

    def remove(self, session: Session) -> None:
        """Count a session out that was counted in."""
        for place in places_of(session.host, session.connection):
            population = self._populations[place]
            del population.sessions[session.client_id]
            if not population.sessions:
                del self._populations[place]

    def move(self, session: Session, caller: Caller) -> None:
        """Count a session where its client calls from now."""
        self.remove(session)
        session.host, session.connection = caller.host, caller.connection
        self.add(session)

    def _make_in(self, place: Place, population: Population, caller: Caller, now_ms: int) -> None:
        if now_ms - population.looked_ms >= LOOK_EACH_MS:
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


def places_of(host: str, connection: int | str) -> Iterator[Place]:
    """Yield the places that a session counts in, the narrowest first; no connection where it is unknown."""
    if connection:
        yield Place(CONNECTION, connection)
    yield Place(ADDRESS, host)
    yield Place(BROKER, "")


def bound_of(place: Place) -> Bound:
    """Return the bound of a place."""
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
    """Return up to `count` idle sessions: those without settings first, then by when they were heard of."""
    found: list[Session] = []
    idle = [one for one in sessions.values() if one.is_idle]
    for is_settled in (False, True):
        some = [one for one in idle if (one.described is not None) == is_settled]
        some.sort(key=attrgetter("heard_ms"))
        found += some[: count - len(found)]
    return found
