"""Requests to both servers, and checks of their replies.

Each message has a body of 256 bytes, a unique key and two properties. Requests are encoded once by protobuf
with placeholders of the final length, which are filled in for each call: a key and an id (which identifies
delayed and half messages), and, where the time from send to receipt is measured, the send time in the body.
Replies are checked by the position of an OK status in them; only fields that are used further are parsed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Final

from peers_http2 import Asked, LoadFailed

from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service

BODY_BYTES, BATCH, STAMP_BYTES = 256, 32, 16
LEASE_SECONDS: Final = 60
SEND, RECEIVE, ACK, END, TELEMETRY = (
    b"SendMessage", b"ReceiveMessage", b"AckMessage", b"EndTransaction", b"Telemetry",
)  # fmt: skip
ID_MARK: Final = b"01" + b"?" * 32
KEY_MARK: Final = b"order-" + b"?" * 12
MARKS: Final = re.compile(b"|".join(map(re.escape, (KEY_MARK, ID_MARK))))
KEYS: Final = 10**12
PROPERTIES: Final = {"tenant": "north", "currency": "EUR"}
STAMP_MARK: Final = b"!" * STAMP_BYTES
OK_CODE: Final = b"\x08\xa0\x9c\x01"
OK_AT: Final = 7
"""Position of the status code (20000) after gRPC's five bytes, the tag of the status and its length."""
_ids: Final = count(time.time_ns() << 24)


def framed(message: Any) -> bytes:
    """Return a message in gRPC's wire format."""
    payload: bytes = message.SerializeToString()
    return b"\0" + len(payload).to_bytes(4, "big") + payload


def sending(
    topic: str, message_type: wire.MessageType, messages: int = 1, due_s: int | None = None
) -> Callable[[], Asked]:
    """Return a function that makes the next SendMessage of `messages`, each with a unique key and id."""
    system = wire.SystemProperties(
        keys=[KEY_MARK.decode()],
        message_id=ID_MARK.decode(),
        message_type=message_type,
        body_encoding=wire.IDENTITY,
        born_host="127.0.0.1",
    )
    system.born_timestamp.GetCurrentTime()
    if due_s is not None:
        system.delivery_timestamp.seconds = due_s
    message = wire.Message(
        topic=wire.Resource(name=topic),
        user_properties=PROPERTIES,
        system_properties=system,
        body=STAMP_MARK.ljust(BODY_BYTES, b"."),
    )
    *parts, last = MARKS.split(framed(service.SendMessageRequest(messages=[message] * messages)))
    pairs = list(zip(parts[::2], parts[1::2], strict=True))  # a key is before the id of its message
    return lambda: (SEND, b"".join([_named(*pair, next(_ids)) for pair in pairs]) + last)


def _named(before_key: bytes, before_id: bytes, number: int) -> bytes:
    """Return a part of a request with the key and the id of one message."""
    return b"%sorder-%012d%s01%032X" % (before_key, number % KEYS, before_id, number)


def stamped(asked: Asked) -> Asked:
    """Return a request with the send time in the body of its message."""
    return asked[0], asked[1].replace(STAMP_MARK, b"%016x" % time.perf_counter_ns())


def stamp_s(body: bytes) -> float:
    """Return the send time in a body, on the clock of `time.perf_counter`."""
    return int(body[:STAMP_BYTES], 16) / 1e9


def receiving(topic: str, group: str, wait_seconds: int = 5, batch: int = BATCH) -> Asked:
    """Return a ReceiveMessage of up to `batch` messages, from any queue."""
    request = service.ReceiveMessageRequest(
        group=wire.Resource(name=group),
        message_queue=wire.MessageQueue(topic=wire.Resource(name=topic), id=-1),
        filter_expression=wire.FilterExpression(type=wire.TAG, expression="*"),
        batch_size=batch,
    )
    request.invisible_duration.seconds = LEASE_SECONDS
    request.long_polling_timeout.seconds = wait_seconds
    return RECEIVE, framed(request)


def received(reply: bytes) -> list[Any]:
    """Return the messages of a reply, possibly none; raise `LoadFailed` for other statuses than OK."""
    found, at, end = [], 0, len(reply)
    parse = service.ReceiveMessageResponse.FromString
    while at < end:
        ends = at + 5 + int.from_bytes(reply[at + 1 : at + 5], "big")
        one = parse(reply[at + 5 : ends])
        at = ends
        which = one.WhichOneof("content")
        if which == "message":
            found.append(one.message)
        elif which == "status" and one.status.code not in (wire.OK, wire.MESSAGE_NOT_FOUND):
            raise LoadFailed(f"ReceiveMessage: {said(one.status)}")
    return found


def acknowledging(topic: str, group: str, messages: Sequence[Any]) -> Asked:
    """Return one call that acknowledges all of these messages."""
    entries = [
        service.AckMessageEntry(message_id=system.message_id, receipt_handle=system.receipt_handle)
        for system in (message.system_properties for message in messages)
    ]
    group_of, topic_of = wire.Resource(name=group), wire.Resource(name=topic)
    return ACK, framed(service.AckMessageRequest(group=group_of, topic=topic_of, entries=entries))


def committing(topic: str, half: Any) -> Asked:
    """Return the commit of a half message, given the entry of its send's reply."""
    request = service.EndTransactionRequest(
        topic=wire.Resource(name=topic),
        message_id=half.message_id,
        transaction_id=half.transaction_id,
        resolution=wire.COMMIT,
        source=wire.SOURCE_CLIENT,
    )
    return END, framed(request)


def sent_entry(reply: bytes) -> Any:
    """Return the first entry of a SendMessage reply."""
    check(reply)
    return service.SendMessageResponse.FromString(reply[5:]).entries[0]


def check(reply: bytes) -> None:
    """Raise `LoadFailed` unless the status in a unary reply is OK."""
    if not reply.startswith(OK_CODE, OK_AT):
        raise LoadFailed(f"A call was answered with {said(status_of(reply))}")


def status_of(reply: bytes) -> Any:
    """Return the status in a unary reply, which has the same position in all replies."""
    return service.HeartbeatResponse.FromString(reply[5:]).status


def said(status: Any) -> str:
    """Return a status as text."""
    name = wire.Code.Name(status.code) if status.code in wire.Code.values() else str(status.code)
    return f"{name}: {status.message}"


def producer_settings(topic: str) -> bytes:
    """Return the first Telemetry command of a producer."""
    settings = _settings(wire.PRODUCER)
    settings.publishing.topics.add(name=topic)
    settings.publishing.max_body_size = 4 << 20
    return framed(service.TelemetryCommand(settings=settings))


def consumer_settings(topic: str, group: str) -> bytes:
    """Return the first Telemetry command of a simple consumer."""
    settings = _settings(wire.SIMPLE_CONSUMER)
    settings.subscription.group.name = group
    entry = settings.subscription.subscriptions.add()
    entry.topic.name = topic
    entry.expression.type, entry.expression.expression = wire.TAG, "*"
    settings.subscription.long_polling_timeout.seconds = 30
    return framed(service.TelemetryCommand(settings=settings))


def _settings(client_type: wire.ClientType) -> Any:
    settings = wire.Settings(client_type=client_type)
    settings.access_point.scheme = wire.IPv4
    settings.access_point.addresses.add(host="127.0.0.1", port=8081)
    settings.request_timeout.seconds = 3
    settings.user_agent.language, settings.user_agent.version = wire.PYTHON, "5.1.2"
    settings.backoff_policy.max_attempts = 3
    settings.backoff_policy.exponential_backoff.initial.nanos = 10_000_000
    settings.backoff_policy.exponential_backoff.max.seconds = 1
    settings.backoff_policy.exponential_backoff.multiplier = 2
    return settings
