"""One client: what it said about itself, and its Telemetry streams with the commands that wait in them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from commitlog import limits
from commitlog.limits import LONG_POLL_MS
from services.rpc.clients.handover import Lent
from services.rpc.generated.definition_pb2 import ClientType, Settings
from services.rpc.generated.service_pb2 import TelemetryCommand
from services.rpc.wire.messages import span_ms
from services.rpc.wire.names import stored_name
from tidewheel.errors import ClientMistake

DESCRIBED_BYTES_MAX = 4 * 1024
ROUTES_NOTED_MAX = 64
"""How many topics are kept that a client asked for before it said what it is."""


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
