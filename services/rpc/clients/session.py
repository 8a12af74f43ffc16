"""A client session: the client's description of itself, and its Telemetry streams with pending commands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from commitlog import limits
from commitlog.limits import LONG_POLL_MS
from services.rpc.clients.handover import PendingLease
from services.rpc.generated.definition_pb2 import ClientType, Settings
from services.rpc.generated.service_pb2 import TelemetryCommand
from services.rpc.wire.messages import span_ms
from services.rpc.wire.names import stored_name
from tidewheel.errors import ClientMistake

DESCRIBED_BYTES_MAX = 4 * 1024
ROUTES_MAX = 64
"""Maximum number of topics that are stored for a client that requested their routes before it sent its
settings.
"""


class Backlog:
    """The pending commands of all Telemetry streams, and the streams that had no room for a command."""

    def __init__(self, room: Callable[[Session], None]) -> None:
        self.waiting_bytes = 0
        self._room = room
        self._refused: dict[Stream, None] = {}

    @property
    def is_full(self) -> bool:
        """Whether all streams refuse further commands."""
        return self.waiting_bytes >= limits.COMMANDS_WAITING_ALL_BYTES_MAX

    def refused(self, stream: Stream) -> None:
        """Record a stream that had no room."""
        self._refused[stream] = None

    def left(self, stream: Stream, left_bytes: int) -> None:
        """Subtract bytes from the pending commands, and notify the streams that have room again."""
        was_full = self.is_full
        self.waiting_bytes -= left_bytes
        if self._refused and (was_full or stream in self._refused):
            for one in [one for one in self._refused if one.has_room or one.is_over]:
                del self._refused[one]
                if not one.is_over:
                    self._room(one.session)


class Stream:
    """A Telemetry stream with the commands that are to be written to its client.

    The command None ends the stream.

    A stream accepts a command as long as it has room: it has fewer than `COMMANDS_WAITING_MAX` pending
    commands with less than `COMMANDS_WAITING_BYTES_MAX` bytes, and all streams together have less than
    `COMMANDS_WAITING_ALL_BYTES_MAX` bytes. The limits are exceeded by at most one command. If a command was
    refused, the stream is reported when it has room again (`Sessions.set_room`).

    `is_over` is set when input from the client is no longer read. `ended` is set when all commands have been
    written or the stream is closed.
    """

    def __init__(self, session: Session, backlog: Backlog) -> None:
        self.session, self._backlog = session, backlog
        self._commands: list[TelemetryCommand | None] = []  # usually empty; an empty deque takes 700 bytes
        self._waiting_bytes = 0
        self._arrived: asyncio.Future[None] | None = None
        self.is_over = False
        self.ended = asyncio.Event()

    @property
    def has_room(self) -> bool:
        """Whether the stream accepts another command."""
        is_full = (
            self._waiting_bytes >= limits.COMMANDS_WAITING_BYTES_MAX
            or len(self._commands) >= limits.COMMANDS_WAITING_MAX
        )
        return not (self.is_over or is_full or self._backlog.is_full)

    def may_write(self) -> bool:
        """Return whether the stream accepts another command.

        If not, it is reported when it has room again.
        """
        has_room = self.has_room
        if not has_room and not self.is_over:
            self._backlog.refused(self)
        return has_room

    def write(self, command: TelemetryCommand | None) -> bool:
        """Add a command. Returns False if the stream has no room."""
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
        """Wait for the next command and return it."""
        while not self._commands:
            self._arrived = asyncio.get_running_loop().create_future()
            await self._arrived
        command = self._commands.pop(0)
        if command is not None:
            self._count(-command.ByteSize())
        return command

    def drop(self) -> None:
        """Discard the pending commands, because the stream has been closed."""
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
    """A client session. Names are stored names.

    Times are wall-clock milliseconds, except `heard_ms`, which is from a monotonic clock.

    `user` is the authenticated user, if access control is enabled. `namespace` is the namespace of its topics
    and groups. `host` and `connection` are those of its last call. `described` contains its last settings,
    unless they were too large. `is_encrypted` shows whether its stream uses TLS. `asked_for` contains the
    topics, with their namespaces, whose routes it requested before it sent its settings. `receives` is the
    number of open receives. `poll_ms` is the wait time of receives without an explicit timeout. `lent`
    contains the last answer for each group and topic.
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
    lent: dict[tuple[str, str], PendingLease] = field(default_factory=dict)
    user: str = ""
    namespace: str = ""
    host: str = ""
    connection: int | str = 0
    described: Settings | None = None
    is_encrypted: bool = False

    @property
    def is_producer(self) -> bool:
        """Whether the client is a producer."""
        return self.client_type == ClientType.PRODUCER

    def asks_for(self, topic: str, namespace: str) -> bool:
        """Record a route request for a topic (stored name). Returns whether the client is a producer."""
        if self.client_type == ClientType.CLIENT_TYPE_UNSPECIFIED and len(self.asked_for) < ROUTES_MAX:
            self.asked_for[topic] = namespace
        return self.is_producer

    def describe(self, settings: Settings) -> None:
        """Store the settings of the client.

        Raises `IllegalTopic`, or `ClientMistake` for too many topics. In this case nothing is stored.
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
            self.described.CopyFrom(settings)  # a submessage would keep the whole message in memory
        self.client_type = settings.client_type
        self.group = group
        if settings.subscription.HasField("long_polling_timeout"):
            self.poll_ms = span_ms(settings.subscription.long_polling_timeout)

    @property
    def is_connected(self) -> bool:
        """Whether a call of the client is open: its stream, or a waiting receive."""
        return bool(self.streams or self.receives)

    @property
    def is_idle(self) -> bool:
        """Whether the client has no open call and no known leases."""
        return not (self.streams or self.receives or self.lent)

    def absent_since(self, since_ms: float) -> bool:
        """Return whether the client has no open call and has made no call after `since_ms` (`heard_ms`)."""
        return not self.is_connected and self.heard_ms <= since_ms
