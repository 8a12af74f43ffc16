"""The clients that are there: what they said about themselves, and the streams to reach them by.

Nothing here is durable. After a restart every client is unknown until it calls, and any call is enough to
be known again; settings are never demanded (reference/wire-protocol.md 4.7).

- A client may have several streams for a while; it is written to on the newest.
- A client without a stream whose library opens none again by itself (`MUST_REDIAL`) is made to *redial*: the
  next refresh of its routes names another spelling of our address, which makes it open one
  (`services.rpc.wire.endpoints`). Not while it has one, nor for `REDIAL_AFTER_MS` after it was told another
  spelling (the topics of one refresh agree) or has said goodbye: what opens a stream while it shuts down may
  never end (Java's `close()` did not). All other clients are told one address always.
- A client is forgotten when it says goodbye, when it does not come back after a connection of it broke off
  (`services.rpc.clients.clients` sees to that), or after `FORGET_AFTER_MS` without stream and without call;
  sooner where its connection, its address or the broker has no room for others
  (`services.rpc.clients.client_room`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from commitlog import limits
from services.live.errors import TooManyPolls
from services.rpc.clients.client_room import ClientRoom
from services.rpc.clients.session import Backlog, Session, Stream
from services.rpc.generated.definition_pb2 import Endpoints
from services.rpc.wire.caller import Caller
from services.rpc.wire.endpoints import DECODES_PERCENT

FORGET_EACH_MS = 1_000
PRESENT_MS = 30_000
REDIAL_AFTER_MS = 15_000
FORGET_AFTER_MS = 120_000
DEPARTED_MAX = 1_024
MUST_REDIAL = frozenset(("PYTHON", "RUST", "DOTNET"))
"""Languages whose libraries open an ended Telemetry stream again only minutes later, or (.NET) never."""


def nobody_watches(session: Session) -> None:
    """Do nothing: no client of a group is watched."""


def nobody_misses(session: Session) -> None:
    """Do nothing: no client is missed."""


class Sessions:
    """All clients by their ids."""

    def __init__(self, clock: Callable[[], int], counted_ms: Callable[[], float] | None = None) -> None:
        """`counted_ms` is a clock that is never set, for how long a client is silent; else `clock` is."""
        self._clock = clock
        self.counted_ms: Callable[[], float] = counted_ms or clock
        self._sessions: dict[str, Session] = {}
        self._departed: dict[str, tuple[int, int]] = {}
        self._receives: Counter[str] = Counter()
        """Open receives by address."""
        self._receive_count = 0
        self._forgot_ms = float("-inf")
        self.room = ClientRoom(self._displace)
        self._watch: Callable[[Session], None] = nobody_watches
        self._forget: Callable[[Session], None] = nobody_misses
        self._room: Callable[[Session], None] = nobody_misses
        self.backlog = Backlog(lambda session: self._room(session))

    def room_with(self, room: Callable[[Session], None]) -> None:
        """Let `room` know of every client that had no room for a command, and has again."""
        self._room = room

    def watch_with(self, watch: Callable[[Session], None]) -> None:
        """Let `watch` know of every client one of whose connections broke off."""
        self._watch = watch

    def forget_with(self, forget: Callable[[Session], None]) -> None:
        """Let `forget` know of every client that is forgotten."""
        self._forget = forget

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def find(self, client_id: str) -> Session | None:
        """Return a client that is there."""
        return self._sessions.get(client_id)

    def present(self) -> list[str]:
        """Return the ids of the clients that are there: connected, or heard from just now."""
        since_ms = self.counted_ms() - PRESENT_MS
        return [one.client_id for one in self if not one.absent_since(since_ms)]

    def seen(self, caller: Caller) -> Session:
        """Return the session of somebody who calls, made if need be.

        Raise `TooManyClients` if there is no room for another one.
        """
        now_ms = self._clock()
        session = self._sessions.get(caller.client_id)
        if session is None:
            self._forget_absent()
            self.room.make(caller, now_ms)
            session = Session(caller.client_id, caller.language, caller.version, now_ms, user=caller.user)
            session.namespace, session.host = caller.namespace, caller.host
            session.connection = caller.connection
            if (left := self._departed.pop(caller.client_id, None)) is not None:
                session.redials, session.redialled_ms = left
            self._sessions[caller.client_id] = session
            self.room.add(session)
        elif session.connection != caller.connection:
            self.room.move(session, caller)
        session.seen_ms, session.heard_ms = now_ms, self.counted_ms()
        return session

    def redials(self, caller: Caller) -> int | None:
        """Return how often the client was made to redial, for an answer about routes; None: it never is.

        The first answer never asks for that: it has the boot's own spelling, which is news to a client that
        knew the boots before. Answers within `REDIAL_AFTER_MS` agree: they belong to one refresh of several
        topics.
        """
        session = self.seen(caller)
        if caller.language not in MUST_REDIAL:
            return None
        if session.redialled_ms is None:
            session.redialled_ms = session.seen_ms
        elif not session.streams and session.seen_ms - session.redialled_ms >= REDIAL_AFTER_MS:
            session.redials += 1
            session.redialled_ms = session.seen_ms
        return session.redials

    def dialled(self, caller: Caller) -> Endpoints | None:
        """Return the endpoints for which a client says that it has opened its stream; None without one.

        Only libraries that open a stream for each endpoint set of their routes name it.
        """
        session = self.seen(caller)
        if caller.language not in DECODES_PERCENT or not session.streams or session.described is None:
            return None
        return session.described.access_point

    def open_stream(self, caller: Caller) -> Stream:
        """Return a new stream to the client."""
        session = self.seen(caller)
        session.is_encrypted = caller.is_encrypted
        standing = [one for one in session.streams if not one.is_over]
        for one in standing[: max(0, len(standing) + 1 - limits.STREAMS_PER_CLIENT_MAX)]:
            one.write(None)
        stream = Stream(session, self.backlog)
        session.streams.append(stream)
        return stream

    def close_stream(self, stream: Stream) -> None:
        """Forget a stream that has ended."""
        stream.session.streams.remove(stream)
        stream.drop()
        self._watch(stream.session)

    @contextmanager
    def receiving(self, session: Session) -> Iterator[None]:
        """Count an open receive of the client; one that breaks off may mean that the client is gone.

        Raise `TooManyPolls` when the client, its address, or all clients have as many open as may be.
        """
        host = session.host
        if (
            session.receives >= limits.POLLS_PER_CLIENT_MAX
            or self._receives[host] >= limits.POLLS_PER_ADDRESS_MAX
            or self._receive_count >= limits.POLLS_MAX
        ):
            raise TooManyPolls(
                f"{session.client_id} has {session.receives} receives open, its address {host} "
                f"{self._receives[host]}, all clients {self._receive_count}; the limits are "
                f"{limits.POLLS_PER_CLIENT_MAX}, {limits.POLLS_PER_ADDRESS_MAX} and {limits.POLLS_MAX}. "
                "Wait for their answers, or poll with fewer.",
                "polling full",
            )
        session.receives += 1
        self._receives[host] += 1
        self._receive_count += 1
        try:
            yield
        except asyncio.CancelledError:
            self._watch(session)
            raise
        finally:
            session.receives -= 1
            self._receive_count -= 1
            self._receives[host] -= 1
            if not self._receives[host]:
                del self._receives[host]

    def gone(self, client_id: str, *, said_goodbye: bool = False) -> None:
        """Forget a client and end its streams."""
        session = self._sessions.get(client_id)
        if session is None and said_goodbye and client_id in self._departed:
            self._departed[client_id] = self._departed[client_id][0], self._clock()
        if session is not None:
            if said_goodbye and session.redialled_ms is not None:
                session.redialled_ms = self._clock()
            self._displace(session)
            for stream in session.streams:
                stream.write(None)

    def close(self) -> None:
        """End every stream."""
        for session in self._sessions.values():
            for stream in session.streams:
                stream.write(None)

    def _displace(self, session: Session) -> None:
        """Forget a client that may come again."""
        self._remember(session)
        self._drop(session)

    def _drop(self, session: Session) -> None:
        del self._sessions[session.client_id]
        self.room.remove(session)
        self._forget(session)

    def _remember(self, session: Session) -> None:
        """Keep which address a client that leaves was told: it may ask for routes until its process ends."""
        if session.language in MUST_REDIAL and session.redialled_ms is not None:
            self._departed[session.client_id] = session.redials, session.redialled_ms
            if len(self._departed) > DEPARTED_MAX:
                del self._departed[next(iter(self._departed))]

    def _forget_absent(self) -> None:
        """Forget the clients that are not there any more, each FORGET_EACH_MS at most."""
        now_ms = self.counted_ms()
        if now_ms - self._forgot_ms < FORGET_EACH_MS:
            return
        self._forgot_ms = now_ms
        for session in [one for one in self if one.absent_since(now_ms - FORGET_AFTER_MS)]:
            self._drop(session)
