"""What operators ask about topics and their messages: a part of `services.rpc.admin`."""

from __future__ import annotations

import json
from typing import Any, Final
from uuid import uuid4

from commitlog.message import MessageType
from services.broker.delays import dated
from services.broker.reading import within_bytes
from services.broker.values import Delivery, Topic
from services.live.live_broker import LiveBroker
from services.rpc.caller import Caller
from services.rpc.delivered import Shown
from services.rpc.endpoints import Advertised
from services.rpc.generated import admin_pb2 as wire
from services.rpc.generated import definition_pb2
from services.rpc.generated.definition_pb2 import Endpoints, Message, SystemProperties
from services.rpc.messages import from_wire, timestamp, wall_ms
from services.rpc.names import stored_name
from services.rpc.statuses import OK
from tidewheel.errors import ClientMistake

FOUND_MAX: Final = 64
"""The newest messages of a key that are looked at; a message may have 4 MiB."""
BODIES_BYTES_MAX: Final = 3 * 1024 * 1024
"""A gRPC client takes no reply of more than 4 MiB, if it is not told to."""
READ_AND_WRITE: Final = 6
TYPES: Final[dict[MessageType, str]] = {
    kind: kind.value for kind in MessageType if kind is not MessageType.MIXED
}


class AdminTopics:
    """Answers about topics."""

    def __init__(self, live: LiveBroker, advertised: Advertised) -> None:
        self._live, self._advertised = live, advertised

    async def describe_status(self, request: Any, caller: Caller) -> Any:
        """Say what a topic takes; one that takes every type has none."""
        topic = self._topic(request)
        return wire.DescribeTopicStatusResponse(
            status=OK,
            topic_message_type=TYPES.get(topic.message_type, "MESSAGE_TYPE_UNSPECIFIED"),
            tags={"message_type": topic.message_type.value, "queue_count": str(topic.queue_count)},
        )

    async def route(self, request: Any, caller: Caller) -> Any:
        """Return a topic's route as RocketMQ 4 writes it in JSON; nothing is made by asking."""
        topic, name = self._topic(request), self._live.settings.broker_name
        [address] = self._advertised.steady(Endpoints()).addresses
        count = topic.queue_count
        queues = {"brokerName": name, "readQueueNums": count, "writeQueueNums": count, "perm": READ_AND_WRITE}
        broker = {"brokerName": name, "brokerAddrs": {"0": f"{address.host}:{address.port}"}}
        data = {"queueDatas": [queues], "brokerDatas": [broker], "filterServerTable": {}}
        return wire.GetTopicRouteResponse(status=OK, topic_route_data=json.dumps(data))

    async def query_message(self, request: Any, caller: Caller) -> Any:
        """Return the newest messages with a key or an id that were stored within a time."""
        key = request.message_id or request.message_key
        if not key:
            raise ClientMistake("Give message_id or message_key: messages are found by these.")
        count_max = request.max_message_nums if request.max_message_nums > 0 else FOUND_MAX
        found = self._found(request, key, min(count_max, FOUND_MAX))
        shown = Shown(request.topic.resource_namespace, 0, "")
        messages = list(map(shown.message, within_bytes(found, BODIES_BYTES_MAX)))
        return wire.ListMessageResponse(status=OK, messages=messages)

    async def send_message(self, request: Any, caller: Caller) -> Any:
        """Store a message for an operator; it gets an id if it has none."""
        system = SystemProperties()
        system.CopyFrom(request.system_properties)
        if system.message_type == definition_pb2.MessageType.TRANSACTION:
            raise ClientMistake(
                "A half message needs a producer that is asked how it ended: send another type."
            )
        system.message_id = system.message_id or uuid4().hex.upper()
        system.tag = request.tag or system.tag
        if request.key:
            system.keys.append(request.key)
        if not system.HasField("born_timestamp"):
            system.born_timestamp.CopyFrom(timestamp(self._live.now_ms()))
        sent = Message(
            topic=request.topic,
            user_properties=request.user_properties,
            system_properties=system,
            body=request.body,
        )
        receipt = await self._live.send(dated(from_wire(sent, caller), self._live.now_ms()))
        return wire.AdminSendMessageResponse(status=OK, message_id=receipt.message_id)

    def _topic(self, request: Any) -> Topic:
        return self._live.core.topics.get(stored_name(request.topic))

    def _found(self, request: Any, key: str, count_max: int) -> list[Delivery]:
        topic = self._topic(request).name

        def wanted(one: Delivery) -> bool:
            return one.stored_topic == topic and is_wanted(one, request)

        return self._live.find(topic, key, count_max, wanted).messages


def is_wanted(one: Delivery, request: Any) -> bool:
    """Return whether a message was stored within the time, and in the queue, that a request names."""
    begin_ms, end_ms = wall_ms(request.begin_timestamp), wall_ms(request.end_timestamp)
    is_of_queue = not request.HasField("queue_id") or request.queue_id == one.queue_id
    return is_of_queue and begin_ms <= one.store_ms and (not end_ms or one.store_ms <= end_ms)
