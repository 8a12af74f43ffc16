"""Calls over gRPC by a client with low overhead.

An official client's share of a call is as large as the server's, and both run on one machine here, so the
calls are made by grpc.aio with the protocol's messages: single sends, receives of 32, acks of 32.
"""

from __future__ import annotations

from typing import Any

import grpc

from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service
from services.rpc.serving.service import NAME

GROUP = wire.Resource(name="stopwatch")


def call(channel: grpc.aio.Channel, name: str, shape: str = "unary_unary") -> Any:
    """Return a function that makes one call of the service."""
    codec = service.DESCRIPTOR.services_by_name["MessagingService"].methods_by_name[name]
    request, reply = (getattr(service, one.name) for one in (codec.input_type, codec.output_type))
    made = getattr(channel, shape)(f"/{NAME}/{name}", request.SerializeToString, reply.FromString)
    metadata = (("x-mq-client-id", f"bench-{name}"),)
    return lambda asked, **options: made(asked, metadata=metadata, **options)


def sent(topic: str, number: int) -> wire.Message:
    """Return a message of 256 bytes."""
    system = wire.SystemProperties(message_id=f"P{number:033d}", message_type=wire.MessageType.NORMAL)
    system.born_timestamp.GetCurrentTime()
    return wire.Message(topic=wire.Resource(name=topic), system_properties=system, body=bytes(256))


def receive_request(topic: str) -> service.ReceiveMessageRequest:
    """Return a request for up to 32 messages, with a wait of 2 s."""
    asked = service.ReceiveMessageRequest(
        group=GROUP,
        message_queue=wire.MessageQueue(topic=wire.Resource(name=topic)),
        batch_size=32,
    )
    asked.invisible_duration.seconds = 60
    asked.long_polling_timeout.seconds = 2
    return asked


async def acknowledge(ack: Any, topic: str, got: list[wire.Message]) -> None:
    """Acknowledge a batch in one call."""
    entries = [
        service.AckMessageEntry(
            message_id=message.system_properties.message_id,
            receipt_handle=message.system_properties.receipt_handle,
        )
        for message in got
    ]
    asked = service.AckMessageRequest(group=GROUP, topic=wire.Resource(name=topic), entries=entries)
    answer = await ack(asked)
    assert answer.status.code == wire.Code.OK, answer.status
