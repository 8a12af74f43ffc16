"""The connected clients, with their settings and streams.

Sessions are not durable. After a restart, a client is unknown until its first call. Any call creates a
session, and settings are not required (reference/wire-protocol.md 4.7).

- A client may temporarily have several streams. Commands are written to the newest stream.
- Some libraries do not reopen a stream by themselves (`REDIALING_CLIENTS`). Such a client is made to
*redial*: the
  next route answer contains another spelling of the broker's address, which makes the client open a stream
  (`services.rpc.wire.endpoints`). A client is not made to redial while it has a stream, for `REDIAL_AFTER_MS`
  after the last change of the spelling (so that all topics of one refresh get the same address), or after its
  termination, because a client that opens a stream during shutdown may never end (Java's `close()` did not).
  All other clients always get the same address.
- A session is removed when the client terminates, when the client does not return after a broken connection
  (see `services.rpc.clients.clients`), or after `FORGET_AFTER_MS` without a stream or a call. It is removed
  earlier if its connection, its address or the broker is full (`services.rpc.clients.client_room`).
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
REDIALING_CLIENTS = frozenset(("PYTHON", "RUST", "DOTNET"))
"""Languages whose libraries reopen an ended Telemetry stream only after minutes, or never (.NET)."""


def ignore_new_session(session: Session) -> None:
    """Ignore a broken connection."""


def ignore_forgotten_session(session: Session) -> None:
    """Ignore the event."""


class Sessions:
    """All client sessions, by client id."""

    def __init__(self, clock: Callable[[], int], counted_ms: Callable[[], float] | None = None) -> None:
        """`counted_ms` is a monotonic clock for measuring silence. The default is `clock`."""
        self._clock = clock
        self.counted_ms: Callable[[], float] = counted_ms or clock
        self._sessions: dict[str, Session] = {}
        self._departed: dict[str, tuple[int, int]] = {}
        self._receives: Counter[str] = Counter()
        """Open receives by address."""
        self._receive_count = 0
        self._forgot_ms = float("-inf")
        self.room = ClientRoom(self._displace)
        self._watch: Callable[[Session], None] = ignore_new_session
        self._forget: Callable[[Session], None] = ignore_forgotten_session
        self._room: Callable[[Session], None] = ignore_forgotten_session
        self.backlog = Backlog(lambda session: self._room(session))

    def set_room(self, room: Callable[[Session], None]) -> None:
        """Set the function that is called for each client whose streams have room again."""
        self._room = room

    def set_watch_callback(self, watch: Callable[[Session], None]) -> None:
        """Set the function that is called for each client with a broken connection."""
        self._watch = watch

    def set_forget_callback(self, forget: Callable[[Session], None]) -> None:
        """Set the function that is called for each removed client."""
        self._forget = forget

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def find(self, client_id: str) -> Session | None:
        """Return the session of a client, or None."""
        return self._sessions.get(client_id)

    def present(self) -> list[str]:
        """Return the ids of the clients that are connected or have called recently."""
        since_ms = self.counted_ms() - PRESENT_MS
        return [one.client_id for one in self if not one.absent_since(since_ms)]

    def seen(self, caller: Caller) -> Session:
        """Return the session of a caller, and create it if necessary.

        Raises `TooManyClients` if a limit is reached.
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
        """Return the number of redials of a client for a route answer, or None if it never has to redial.

        The first answer never requests a redial, because it contains the spelling of the current boot, which
        is new to clients of earlier boots. Answers within `REDIAL_AFTER_MS` contain the same spelling,
        because they belong to one refresh of several topics.
        """
        session = self.seen(caller)
        if caller.language not in REDIALING_CLIENTS:
            return None
        if session.redialled_ms is None:
            session.redialled_ms = session.seen_ms
        elif not session.streams and session.seen_ms - session.redialled_ms >= REDIAL_AFTER_MS:
            session.redials += 1
            session.redialled_ms = session.seen_ms
        return session.redials

    def dialled(self, caller: Caller) -> Endpoints | None:
        """Return the endpoints for which a client has opened its stream, or None.

        Only libraries that open a stream for each endpoint set specify the endpoints.
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
        """Remove a stream that has ended."""
        stream.session.streams.remove(stream)
        stream.drop()
        self._watch(stream.session)

    @contextmanager
    def receiving(self, session: Session) -> Iterator[None]:
        """Count an open receive of the client. If it breaks, the client is watched.

        Raises `TooManyPolls` if the client, its address, or all clients together have too many open receives.
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
        """Remove a client and end its streams."""
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
        """End all streams."""
        for session in self._sessions.values():
            for stream in session.streams:
                stream.write(None)

    def _displace(self, session: Session) -> None:
        """Remove a client that may return."""
        self._remember(session)
        self._drop(session)

    def _drop(self, session: Session) -> None:
        del self._sessions[session.client_id]
        self.room.remove(session)
        self._forget(session)

    def _remember(self, session: Session) -> None:
        """Store the spelling sent to a removed client, which may request routes until its process ends."""
        if session.language in REDIALING_CLIENTS and session.redialled_ms is not None:
            self._departed[session.client_id] = session.redials, session.redialled_ms
            if len(self._departed) > DEPARTED_MAX:
                del self._departed[next(iter(self._departed))]

    def _forget_absent(self) -> None:
        """Remove clients that have been silent for too long, at most once per `FORGET_EACH_MS`."""
        now_ms = self.counted_ms()
        if now_ms - self._forgot_ms < FORGET_EACH_MS:
            return
        self._forgot_ms = now_ms
        for session in [one for one in self if one.absent_since(now_ms - FORGET_AFTER_MS)]:
            self._drop(session)
