"""Sends repeated to the next process of a broker: its hash seeds differ, and each map comes in another order.

protobuf's maps have an order seeded per process, so a broker that is killed and started again sees the same
properties in another order, whatever order the client wrote them in.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from pathlib import Path

from commitlog.records import properties
from commitlog.records.kinds import HALF_TOPIC, TIMER_TOPIC
from services.rpc.generated import definition_pb2, service_pb2
from services.store.read_only.opening import open_store
from tests.endurance.conftest import OK, BrokerProcess, Client
from tidewheel import property_names

MESSAGES, PROPERTIES = 8, 3
KINDS = {
    "plain": definition_pb2.NORMAL,
    "delayed": definition_pb2.DELAY,
    "half": definition_pb2.TRANSACTION,
}
DUE_S = int(time.time()) + 86_400
Place = tuple[int, str, str, str]


def message_of(kind: str, number: int, *, is_turned: bool) -> definition_pb2.Message:
    """Return a message; turned, its properties are written in the opposite order."""
    system = definition_pb2.SystemProperties(message_id=f"{kind}-{number}", message_type=KINDS[kind])
    system.tag = "a"
    system.keys.append("order 7")
    if kind == "delayed":
        system.delivery_timestamp.FromSeconds(DUE_S)
    names = [f"name-{number}-{one}" for one in range(PROPERTIES)]
    message = definition_pb2.Message(
        topic=definition_pb2.Resource(name="t"), body=b"x", system_properties=system
    )
    for name in reversed(names) if is_turned else names:
        message.user_properties[name] = f"value of {name}"
    return message


async def places(broker: BrokerProcess, *, is_turned: bool) -> list[Place]:
    """Send all messages; return the receipt of each."""
    found = []
    async with Client(broker.listen) as client:
        for kind in KINDS:
            for number in range(MESSAGES):
                message = message_of(kind, number, is_turned=is_turned)
                request = service_pb2.SendMessageRequest(messages=[message])
                reply = await client._call("SendMessage", request, service_pb2.SendMessageResponse)
                assert reply.status.code == OK, reply.status
                one = reply.entries[0]
                found.append((one.offset, one.message_id, one.transaction_id, one.recall_handle))
    return found


def test_a_send_repeated_after_kill_9_gets_the_first_receipt(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "store", "--segment-bytes", str(8 << 20))
    broker.environment = {**os.environ, "PYTHONHASHSEED": "1"}
    broker.start()
    first = asyncio.run(places(broker, is_turned=False))
    for seed in ("2", "3"):
        broker.kill()
        broker.environment = {**os.environ, "PYTHONHASHSEED": seed}
        broker.start()
        assert asyncio.run(places(broker, is_turned=True)) == first
    assert broker.stop() == 0
    stored: Counter[str] = Counter()
    for found in open_store(broker.store).scan():
        if found.record.topic in ("t", TIMER_TOPIC, HALF_TOPIC):
            stored[properties.value_of(found.record.properties, property_names.MESSAGE_ID)] += 1
    assert stored == {f"{kind}-{number}": 1 for kind in KINDS for number in range(MESSAGES)}
