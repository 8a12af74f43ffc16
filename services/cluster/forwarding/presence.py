"""What a node keeps of the clients that talk to it, so that the next leader knows them without their help.

    a client's Telemetry stream stands at this node --> a new leader's EPOCH
        --> a stream to that leader, which begins with the client's settings (`Heard`)
        --> its subscriptions to lite topics, as one SyncLiteSubscription each (`Kept`)

Rules
1. A client is present while its Telemetry stream stands at a node, be that the leader or not; what is kept
   of it ends with its last stream. So nobody who has hung up is told of.
2. Of what it said on the stream its last settings are said again. Its answers are not: who asked is gone,
   and another question may bear the same nonce.
3. Topics that it has sent to are said as if it had declared them: Python's client declares none of those,
   and only who produces to a topic is asked how its transactions ended. Then the settings follow as they
   were: those are what the leader keeps.
4. Subscriptions to lite topics are said as the whole set that was accepted, less what the client was told
   that it lost: COMPLETE_ADD takes nothing from others. Places (`OffsetOption`) are not said again: the
   group's offsets are in the log.
5. What was not taken is said again after `REPEAT_SECONDS`, as long as the stream stands.

Nothing else is said again. A stream that stands is all that the leader needs to renew leases, whatever
heartbeats do (`services.rpc.clients.clients`), so nothing is repeated every few seconds while a leader stays.
A heartbeat tells nothing that settings do not, but of Java's client before 5.0.4, which sends it each 10 s.
Receives that wait are asked again of the next leader (`services.cluster.forwarding.calls`).

Cost: a look at the first bytes of each SendMessage, and of each client its settings, `TOPICS_MAX` names and
its lite topics: `KEPT_BYTES_MAX` of them on a node. Weak spot: a client without a Telemetry stream is known
to the next leader when it calls; lite topics beyond the bound are known when it says them again, within 30 s.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final

from google.protobuf.message import DecodeError

from services.front.connection import Connection
from services.rpc.generated.definition_pb2 import Code, LiteSubscriptionAction, Resource
from services.rpc.generated.service_pb2 import (
    SyncLiteSubscriptionRequest,
    SyncLiteSubscriptionResponse,
    TelemetryCommand,
)
from services.rpc.handlers.lite_receiving import put_together
from services.rpc.wire.names import stored_name
from tidewheel.errors import IllegalTopic

REPEAT_SECONDS: Final = 5.0
TOPICS_MAX: Final = 64
"""How many topics are kept that a client has sent to."""
TOPIC_BYTES_MAX: Final = 512
KEPT_BYTES_MAX: Final = 64 * 1024 * 1024
LITE_BYTES: Final = 64
"""What a lite topic takes beside its name, about."""
_SAID_MAX: Final = 16
_FIRST_FIELD: Final = 0x0A
"""The tag of a message's field 1, where that is a message."""


class Kept:
    """What is kept of one client, while a Telemetry stream of it stands here."""

    __slots__ = ("lite", "lock", "streams", "topics")

    def __init__(self) -> None:
        self.streams = 0
        self.topics: dict[bytes, None] = {}
        """As the wire has them (`Resource`)."""
        self.lite: dict[tuple[str, bytes, bytes], dict[str, None]] = {}
        """Lite topics by user, group and topic."""
        self.lock = asyncio.Lock()
        """Held while the client's subscriptions are said, by itself or for it: in one order everywhere."""


class Presence:
    """What is kept of all clients of a node."""

    def __init__(self) -> None:
        self._kept: dict[str, Kept] = {}
        self._lite_bytes = 0

    def came(self, client_id: str) -> Kept:
        """Keep what a client says, from the first of its streams on."""
        kept = self._kept.setdefault(client_id, Kept())
        kept.streams += 1
        return kept

    def went(self, client_id: str) -> None:
        """Forget a client whose last stream is over."""
        kept = self._kept[client_id]
        kept.streams -= 1
        if not kept.streams:
            del self._kept[client_id]
            self._lite_bytes -= sum(map(size_of, kept.lite.values()))

    def find(self, client_id: str) -> Kept | None:
        """Return what is kept of a client; None if no stream of it stands here."""
        return self._kept.get(client_id)

    def sent(self, client_id: str, message: bytes) -> None:
        """Take in that a client sends, by the bytes of its SendMessage."""
        kept = self._kept.get(client_id)
        if kept is None or len(kept.topics) >= TOPICS_MAX:
            return
        topic = first_topic(message)
        if topic and topic not in kept.topics and is_topic(topic):
            kept.topics[topic] = None

    def subscribed(self, client_id: str, kept: Kept, user: str, language: str, message: bytes) -> None:
        """Take in a SyncLiteSubscription that was answered with OK."""
        if self._kept.get(client_id) is not kept:
            return  # its last stream ended meanwhile
        request = SyncLiteSubscriptionRequest.FromString(message)
        key = user, request.group.SerializeToString(), request.topic.SerializeToString()
        before = kept.lite.pop(key, {})
        self._lite_bytes -= size_of(before)
        said = dict.fromkeys(request.lite_topic_set)
        match request.action:
            case LiteSubscriptionAction.PARTIAL_ADD:
                added = put_together(list(request.lite_topic_set)) if language == "PYTHON" else said
                after = before | dict.fromkeys(added)
            case LiteSubscriptionAction.PARTIAL_REMOVE:
                after = {one: None for one in before if one not in said}
            case LiteSubscriptionAction.COMPLETE_ADD:
                after = said
            case _:
                return
        if after and self._lite_bytes + size_of(after) <= KEPT_BYTES_MAX:
            kept.lite[key] = after
            self._lite_bytes += size_of(after)

    def told(self, kept: Kept, message: bytes) -> None:
        """Take in what the leader tells a client on its stream: lite topics that it has lost."""
        command = TelemetryCommand.FromString(message) if kept.lite else TelemetryCommand()
        if not command.HasField("notify_unsubscribe_lite_command"):
            return
        lost = command.notify_unsubscribe_lite_command.lite_topic
        for lite_topics in kept.lite.values():
            if lost in lite_topics:
                del lite_topics[lost]
                self._lite_bytes -= size_of((lost,))


class Heard:
    """What a client says on a Telemetry stream, to be said to one leader after the other."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept
        self._said: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=_SAID_MAX)
        self._settings: bytes | None = None
        self._is_over = self._was_told = False

    async def hear(self, connection: Connection, stream_id: int) -> None:
        """Take in what the client says, until it says no more."""
        async for message in connection.messages(stream_id):
            if is_settings(message):
                self._settings = message
            await self._said.put(message)
        self._is_over = True
        await self._said.put(None)

    async def messages(self) -> AsyncIterator[bytes]:
        """Yield what a leader is to be told: what the client says; the next leader, its settings first."""
        if self._was_told:
            while not self._said.empty():
                self._said.get_nowait()
            for introduction in introductions(self._settings, self._kept.topics):
                yield introduction
        self._was_told = True
        while not self._is_over or not self._said.empty():
            message = await self._said.get()
            if message is None:
                return
            yield message


def introductions(settings: bytes | None, topics: dict[bytes, None]) -> list[bytes]:
    """Return the settings of a client, before them the same with topics that it has sent to besides."""
    if settings is None:
        return []
    command = TelemetryCommand.FromString(settings)
    declared = {(one.resource_namespace, one.name) for one in command.settings.publishing.topics}
    sent_to = [
        one for one in map(Resource.FromString, topics) if (one.resource_namespace, one.name) not in declared
    ]
    if not sent_to:
        return [settings]
    command.settings.publishing.topics.extend(sent_to)
    return [command.SerializeToString(), settings]


def whole_set(key: tuple[str, bytes, bytes], lite_topics: dict[str, None]) -> bytes:
    """Return the request by which a client says all that it subscribes to under a topic."""
    _, group, topic = key
    return SyncLiteSubscriptionRequest(
        action=LiteSubscriptionAction.COMPLETE_ADD,
        group=Resource.FromString(group),
        topic=Resource.FromString(topic),
        lite_topic_set=list(lite_topics),
    ).SerializeToString()


def is_taken(reply: bytes) -> bool:
    """Return whether a reply to SyncLiteSubscription says OK."""
    return bool(SyncLiteSubscriptionResponse.FromString(reply).status.code == Code.OK)


def is_settings(message: bytes) -> bool:
    """Return whether a client tells its settings."""
    try:
        return bool(TelemetryCommand.FromString(message).HasField("settings"))
    except DecodeError:
        return False


def is_topic(resource: bytes) -> bool:
    """Return whether these bytes name what can be a topic."""
    try:
        return bool(stored_name(Resource.FromString(resource)))
    except (DecodeError, IllegalTopic):
        return False


def size_of(lite_topics: Iterable[str]) -> int:
    """Return about how many bytes are kept of lite topics."""
    return sum(len(one) + LITE_BYTES for one in lite_topics)


def first_topic(message: bytes) -> bytes:
    """Return the topic of the first message of a SendMessage, which stands before all else in it.

    Empty where it does not: protobuf may order fields otherwise, and no client does.
    """
    try:
        at = 1
        while message[at] & 0x80:  # the length of the first message
            at += 1
        if message[0] != _FIRST_FIELD or message[at + 1] != _FIRST_FIELD:
            return b""
        at, length = at + 3, message[at + 2]
        if length & 0x80:
            at, length = at + 1, length & 0x7F | message[at] << 7
    except IndexError:
        return b""
    return message[at : at + length] if length <= TOPIC_BYTES_MAX else b""
