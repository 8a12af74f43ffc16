"""The client state that a node stores and sends to each new leader.

When a new leader is elected, a node opens one stream to the leader for each Telemetry stream of a client. The
stream begins with the client settings (`ClientMessages`). The node also sends the client's lite topic
subscriptions in SyncLiteSubscription calls (`ClientState`).

Rules
1. A node stores the state of each client that has an open Telemetry stream. When the last stream of a client
   ends, the client state is discarded. Disconnected clients are therefore never reported to a leader.
2. The node resends the last settings of a client. Responses to commands are not resent, because the leader
   that sent these commands has been replaced, and a new command may have the same nonce.
3. The node also declares the topics to which a client has sent messages, because the Python client does not
   declare them. Only producers of declared topics receive transaction check-backs. The node sends the
   original settings after the extended settings, because the leader keeps the settings that arrive last.
4. The node resends all lite topic subscriptions that were accepted and not revoked. The requests use the
   action COMPLETE_ADD, which does not affect other clients. Start positions (`OffsetOption`) are not resent,
   because the log contains the offsets of consumer groups.
5. The node resends a subscription every REPEAT_SECONDS until the leader accepts it or the stream ends.

A node resends no other client state. While a stream is open, the leader renews leases even without heartbeats
(`services.rpc.clients.clients`). A stable leader therefore causes no periodic traffic. Heartbeats contain no
information beyond the settings, except those of Java clients before version 5.0.4. These clients send a
heartbeat every 10 s. Pending receive calls are retried with the next leader
(`services.cluster.forwarding.calls`).

Cost: the node parses the first bytes of each SendMessage request. For each client, the node stores the
settings, the lite topics, and up to TOPICS_MAX topic names in memory. The total size of the lite topics of
all clients is limited to KEPT_BYTES_MAX per node. Limitation: a client without a Telemetry stream is unknown
to the next leader until it makes another call. Lite topics beyond the limit are missing on the next leader
until the client resends its subscriptions, which may take 30 s.
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
from services.rpc.handlers.lite_receiving import merge_lite_topics
from services.rpc.wire.names import stored_name
from tidewheel.errors import IllegalTopic

REPEAT_SECONDS: Final = 5.0
TOPICS_MAX: Final = 64
"""Maximum number of recorded topics per client."""
TOPIC_BYTES_MAX: Final = 512
KEPT_BYTES_MAX: Final = 64 * 1024 * 1024
LITE_BYTES: Final = 64
"""Approximate memory overhead of a lite topic in bytes, without its name."""
_PENDING_MESSAGES_MAX: Final = 16
_FIRST_FIELD: Final = 0x0A
"""The protobuf tag of field 1 with a length-delimited value."""


class ClientState:
    """The state that a node stores for a client that has an open Telemetry stream."""

    __slots__ = ("lite", "lock", "streams", "topics")

    def __init__(self) -> None:
        self.streams = 0
        self.topics: dict[bytes, None] = {}
        """The topics to which the client has sent messages, in wire format (`Resource`)."""
        self.lite: dict[tuple[str, bytes, bytes], dict[str, None]] = {}
        """The lite topics of the client, by user, group and topic."""
        self.lock = asyncio.Lock()
        """A lock that makes this node and the leader apply subscriptions in the same order."""


class ConnectedClients:
    """The state of all clients that are connected to a node."""

    def __init__(self) -> None:
        self._kept: dict[str, ClientState] = {}
        self._lite_bytes = 0

    def add_stream(self, client_id: str) -> ClientState:
        """Record a new stream of a client. Create the client state for the first stream."""
        kept = self._kept.setdefault(client_id, ClientState())
        kept.streams += 1
        return kept

    def remove_stream(self, client_id: str) -> None:
        """Record the end of a stream. Discard the client state after the last stream."""
        kept = self._kept[client_id]
        kept.streams -= 1
        if not kept.streams:
            del self._kept[client_id]
            self._lite_bytes -= sum(map(size_of, kept.lite.values()))

    def find(self, client_id: str) -> ClientState | None:
        """Return the state of a client, or None if the client has no stream on this node."""
        return self._kept.get(client_id)

    def record_topic(self, client_id: str, message: bytes) -> None:
        """Record the topic of a SendMessage request."""
        kept = self._kept.get(client_id)
        if kept is None or len(kept.topics) >= TOPICS_MAX:
            return
        topic = first_topic(message)
        if topic and topic not in kept.topics and is_topic(topic):
            kept.topics[topic] = None

    def record_subscription(
        self, client_id: str, kept: ClientState, user: str, language: str, message: bytes
    ) -> None:
        """Record a SyncLiteSubscription request that the leader has accepted."""
        if self._kept.get(client_id) is not kept:
            return  # the last stream of the client has ended
        request = SyncLiteSubscriptionRequest.FromString(message)
        key = user, request.group.SerializeToString(), request.topic.SerializeToString()
        before = kept.lite.pop(key, {})
        self._lite_bytes -= size_of(before)
        said = dict.fromkeys(request.lite_topic_set)
        match request.action:
            case LiteSubscriptionAction.PARTIAL_ADD:
                added = merge_lite_topics(list(request.lite_topic_set)) if language == "PYTHON" else said
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

    def record_revocation(self, kept: ClientState, message: bytes) -> None:
        """Remove the lite topic that the leader revokes with `message`. Ignore other messages."""
        command = TelemetryCommand.FromString(message) if kept.lite else TelemetryCommand()
        if not command.HasField("notify_unsubscribe_lite_command"):
            return
        lost = command.notify_unsubscribe_lite_command.lite_topic
        for lite_topics in kept.lite.values():
            if lost in lite_topics:
                del lite_topics[lost]
                self._lite_bytes -= size_of((lost,))


class ClientMessages:
    """The Telemetry messages of a client, which are relayed to successive leaders."""

    def __init__(self, kept: ClientState) -> None:
        self._kept = kept
        self._pending: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=_PENDING_MESSAGES_MAX)
        self._settings: bytes | None = None
        self._is_over = self._was_told = False

    async def receive(self, connection: Connection, stream_id: int) -> None:
        """Read messages from the client until the client ends its stream."""
        async for message in connection.messages(stream_id):
            if is_settings(message):
                self._settings = message
            await self._pending.put(message)
        self._is_over = True
        await self._pending.put(None)

    async def messages(self) -> AsyncIterator[bytes]:
        """Yield the messages for a leader. After a leader change, yield the client settings first."""
        if self._was_told:
            while not self._pending.empty():
                self._pending.get_nowait()
            for introduction in settings_to_repeat(self._settings, self._kept.topics):
                yield introduction
        self._was_told = True
        while not self._is_over or not self._pending.empty():
            message = await self._pending.get()
            if message is None:
                return
            yield message


def settings_to_repeat(settings: bytes | None, topics: dict[bytes, None]) -> list[bytes]:
    """Return extended settings that also declare `topics`, followed by the original client settings.

    If the client settings already declare all topics, return only these settings. If `settings` is None,
    return [].
    """
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


def complete_subscription(key: tuple[str, bytes, bytes], lite_topics: dict[str, None]) -> bytes:
    """Return a request that replaces all lite subscriptions of a client for a group and a topic."""
    _, group, topic = key
    return SyncLiteSubscriptionRequest(
        action=LiteSubscriptionAction.COMPLETE_ADD,
        group=Resource.FromString(group),
        topic=Resource.FromString(topic),
        lite_topic_set=list(lite_topics),
    ).SerializeToString()


def is_accepted(reply: bytes) -> bool:
    """Return whether the reply to a SyncLiteSubscription request has the status OK."""
    return bool(SyncLiteSubscriptionResponse.FromString(reply).status.code == Code.OK)


def is_settings(message: bytes) -> bool:
    """Return whether a Telemetry message contains client settings."""
    try:
        return bool(TelemetryCommand.FromString(message).HasField("settings"))
    except DecodeError:
        return False


def is_topic(resource: bytes) -> bool:
    """Return whether an encoded `Resource` contains a valid topic name."""
    try:
        return bool(stored_name(Resource.FromString(resource)))
    except (DecodeError, IllegalTopic):
        return False


def size_of(lite_topics: Iterable[str]) -> int:
    """Return the approximate memory usage of lite topics in bytes."""
    return sum(len(one) + LITE_BYTES for one in lite_topics)


def first_topic(message: bytes) -> bytes:
    """Return the topic of the first message in a SendMessage request.

    Return b"" if the message does not begin with the topic. Protobuf allows other field orders, but no known
    client uses another order.
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
