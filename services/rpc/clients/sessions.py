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
from dataclasses import dataclass, field

from commitlog import limits
from commitlog.limits import LONG_POLL_MS
from services.live.errors import TooManyPolls
from services.rpc.clients.client_room import ClientRoom
from services.rpc.clients.handover import Lent
from services.rpc.generated.definition_pb2 import ClientType, Endpoints, Settings
from services.rpc.generated.service_pb2 import TelemetryCommand
from services.rpc.wire.caller import Caller
from services.rpc.wire.endpoints import DECODES_PERCENT
from services.rpc.wire.messages import span_ms
from services.rpc.wire.names import stored_name
from tidewheel.errors import ClientMistake

DESCRIBED_BYTES_MAX = 4 * 1024
FORGET_EACH_MS = 1_000
PRESENT_MS = 30_000
REDIAL_AFTER_MS = 15_000
FORGET_AFTER_MS = 120_000
DEPARTED_MAX = 1_024
ROUTES_NOTED_MAX = 64
"""How many topics are kept that a client asked for before it said what it is."""
MUST_REDIAL = frozenset(("PYTHON", "RUST", "DOTNET"))
"""Languages whose libraries open an ended Telemetry stream again only minutes later, or (.NET) never."""


def nobody_watches(session: Session) -> None:
    """Do nothing: no client of a group is watched."""


def nobody_misses(session: Session) -> None:
    """Do nothing: no client is missed."""


class Backlog:
    """What waits in all Telemetry streams together, and the streams that had no room for a command."""

    def __init__(self, room: Callable[[Session], None]) -> None:
        self.waiting_bytes = 0
        self._room = room
        self._refused: dict[Stream, None] = {}

    @property
    def is_full(self) -> bool:
        """Whether no stream takes another command."""
        return self.waiting_bytes >= limits.COMMANDS_WAITING_ALL_BYTES_MAX

    def refused(self, stream: Stream) -> None:
        """Count a stream that had no room."""
        self._refused[stream] = None

    def left(self, stream: Stream, left_bytes: int) -> None:
        """So much waits no longer: tell of those that have room again."""
        was_full = self.is_full
        self.waiting_bytes -= left_bytes
        if self._refused and (was_full or stream in self._refused):
            for one in [one for one in self._refused if one.has_room or one.is_over]:
                del self._refused[one]
                if not one.is_over:
                    self._room(one.session)


class Stream:
    """One Telemetry stream: what waits to be written to its client. None ends it.

    It takes a command while it has room: fewer than `COMMANDS_WAITING_MAX` wait, with less than
    `COMMANDS_WAITING_BYTES_MAX`, and in all streams less than `COMMANDS_WAITING_ALL_BYTES_MAX`. So at most
    one command more waits. Who asked when there was no room is told when there is (`Sessions.room_with`).

    `is_over`: its client is not heard any more; `ended`: all that waited is written, or nobody reads it.
    """

    def __init__(self, session: Session, backlog: Backlog) -> None:
        self.session, self._backlog = session, backlog
        self._commands: list[
            TelemetryCommand | None
        ] = []  # mostly empty: a deque has 700 bytes to begin with
        self._waiting_bytes = 0
        self._arrived: asyncio.Future[None] | None = None
        self.is_over = False
        self.ended = asyncio.Event()

    @property
    def has_room(self) -> bool:
        """Whether it takes another command."""
        is_full = (
            self._waiting_bytes >= limits.COMMANDS_WAITING_BYTES_MAX
            or len(self._commands) >= limits.COMMANDS_WAITING_MAX
        )
        return not (self.is_over or is_full or self._backlog.is_full)

    def may_write(self) -> bool:
        """Tell whether it takes another command; if not, whoever asked is told when it does."""
        has_room = self.has_room
        if not has_room and not self.is_over:
            self._backlog.refused(self)
        return has_room

    def write(self, command: TelemetryCommand | None) -> bool:
        """Leave a command to be written; False when the client has stopped reading."""
        if command is None:
            self.is_over = True
        elif not self.may_write():
            return False
        else:
            self._count(command.ByteSize())
        self._commands.append(command)
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)
        return True

    async def next(self) -> TelemetryCommand | None:
        """Return the next command to write, when there is one."""
        while not self._commands:
            self._arrived = asyncio.get_running_loop().create_future()
            await self._arrived
        command = self._commands.pop(0)
        if command is not None:
            self._count(-command.ByteSize())
        return command

    def drop(self) -> None:
        """Nobody reads it any more: what waits is gone."""
        self.is_over = True
        self._commands.clear()
        self._count(-self._waiting_bytes)
        self.ended.set()

    def _count(self, more_bytes: int) -> None:
        self._waiting_bytes += more_bytes
        if more_bytes > 0:
            self._backlog.waiting_bytes += more_bytes
        else:
            self._backlog.left(self, -more_bytes)


@dataclass(slots=True)
class Session:
    """One client. Names are the store's; times are wall milliseconds, but `heard_ms`, of a clock never set.

    `user` is whose it is, where callers are asked who they are; `namespace` is of its topics and groups,
    `host` and `connection` are those of its last call, `described` is what it said last of itself, unless
    that was too much; `is_encrypted`: its stream came by TLS.
    `asked_for` are topics whose routes it asked for before it said what it is, with their namespaces.
    `receives` counts its open receives, `poll_ms` is how long one waits that does not say it; `lent` has the
    last answer for each group and topic it receives from.
    """

    client_id: str
    language: str
    version: str
    seen_ms: int
    heard_ms: float = 0
    redialled_ms: int | None = None
    redials: int = 0
    asked_for: dict[str, str] = field(default_factory=dict)
    receives: int = 0
    client_type: int = ClientType.CLIENT_TYPE_UNSPECIFIED
    group: str = ""
    poll_ms: int = LONG_POLL_MS
    streams: list[Stream] = field(default_factory=list)
    lent: dict[tuple[str, str], Lent] = field(default_factory=dict)
    user: str = ""
    namespace: str = ""
    host: str = ""
    connection: int | str = 0
    described: Settings | None = None
    is_encrypted: bool = False

    @property
    def is_producer(self) -> bool:
        """Whether the client sends rather than receives."""
        return self.client_type == ClientType.PRODUCER

    def asks_for(self, topic: str, namespace: str) -> bool:
        """Take in that it asks for the route of a topic (stored name); return whether it produces to it."""
        if self.client_type == ClientType.CLIENT_TYPE_UNSPECIFIED and len(self.asked_for) < ROUTES_NOTED_MAX:
            self.asked_for[topic] = namespace
        return self.is_producer

    def describe(self, settings: Settings) -> None:
        """Take over what the client says about itself.

        Raise `IllegalTopic`, or `ClientMistake` for too many topics, and take nothing then.
        """
        group = stored_name(settings.subscription.group)
        subscriptions, published = settings.subscription.subscriptions, settings.publishing.topics
        if len(published) + len(subscriptions) > limits.ENTRIES_PER_REQUEST_MAX:
            raise ClientMistake(
                f"The settings name {len(published) + len(subscriptions)} topics, at most "
                f"{limits.ENTRIES_PER_REQUEST_MAX} may be: let the client have fewer."
            )
        for topic in (*published, *(one.topic for one in subscriptions)):
            stored_name(topic)
        self.described = None
        if settings.ByteSize() <= DESCRIBED_BYTES_MAX:
            self.described = Settings()
            self.described.CopyFrom(settings)  # a part of a message keeps all of it in memory
        self.client_type = settings.client_type
        self.group = group
        if settings.subscription.HasField("long_polling_timeout"):
            self.poll_ms = span_ms(settings.subscription.long_polling_timeout)

    @property
    def is_connected(self) -> bool:
        """Whether a call of the client is open: its stream, or a receive that waits."""
        return bool(self.streams or self.receives)

    @property
    def is_idle(self) -> bool:
        """Whether nothing of the client is open, and none of its leases is known to stand."""
        return not (self.streams or self.receives or self.lent)

    def absent_since(self, since_ms: float) -> bool:
        """Tell whether nothing was heard of the client after `since_ms` (`heard_ms`), and nothing is open."""
        return not self.is_connected and self.heard_ms <= since_ms


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
