"""Ten thousand sends, each repeated by its client while leaders are killed: stored once, and answered alike.

    .venv/bin/python -m pytest tests/endurance/test_repeated_sends.py -s

Two nodes over a real PostgreSQL. Wave by wave messages of all kinds are sent, the leader is killed amid the
wave, each call is repeated until it is answered, and then once more, all of it, through the other node. Two
producers that draw the same ids, as forked ones do, send in the same waves: both are kept. At the end a
node's log is read: what lies there how often.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import grpc
import pytest

from commitlog.records import properties
from commitlog.records.kinds import HALF_TOPIC, TIMER_TOPIC
from services.live.errors import ResultUnknown
from services.rpc.generated import definition_pb2, service_pb2
from services.store.read_only.opening import open_store
from tests.command import tidewheel
from tests.endurance.cluster_node import Node
from tests.endurance.conftest import METADATA, OK, SERVICE, logs_shown
from tests.endurance.test_cluster_kill import create_topics, leader_of, shared_log
from tests.endurance.test_sick_disk import TOPICS
from tidewheel import property_names

WAVES, WAVE_MESSAGES, FORKED = 5, 2_000, 200
"""How many waves there are, how many messages each has, and how many of them share their id with another."""
IN_FLIGHT = 64
KILL_AFTER = 0.4
"""When the leader is killed: as a share of the wave's messages."""
CALL_SECONDS, TRY_SECONDS = 5.0, 60.0
Place = tuple[int, str]
"""What a send is told: the offset in its queue, and the message's transaction or recall handle."""


class SendAgain(Exception):
    """A leader that another one has followed does not know what became of a send."""


class Producer:
    """Sends messages to whichever node it is told to."""

    def __init__(self, nodes: list[Node]) -> None:
        self._channels = [grpc.aio.insecure_channel(node.listen) for node in nodes]
        self.told: dict[tuple[str, bytes], Place] = {}
        self.seconds: list[float] = []
        self.repeated = 0

    async def close(self) -> None:
        """Close its connections."""
        for channel in self._channels:
            await channel.close(None)

    async def send(self, message: definition_pb2.Message, node: int) -> None:
        """Send a message, again and again until that is answered; each answer must be the first one."""
        ends, began = time.monotonic() + TRY_SECONDS, time.monotonic()
        while True:
            try:
                place = await self._sent(message, node)
                break
            except (grpc.aio.AioRpcError, SendAgain):
                assert time.monotonic() < ends, "a send is not answered"
                self.repeated += 1
                await asyncio.sleep(0.05)
                node = 1 - node
        self.seconds.append(time.monotonic() - began)
        key = message.system_properties.message_id, message.body
        assert self.told.setdefault(key, place) == place, f"{key[0]} is told two places"

    async def _sent(self, message: definition_pb2.Message, node: int) -> Place:
        call = self._channels[node].unary_unary(
            SERVICE + "SendMessage",
            request_serializer=service_pb2.SendMessageRequest.SerializeToString,
            response_deserializer=service_pb2.SendMessageResponse.FromString,
        )
        request = service_pb2.SendMessageRequest(messages=[message])
        reply = await call(request, metadata=METADATA, timeout=CALL_SECONDS)
        said = reply.status.message
        if said.startswith(f"{ResultUnknown.code} ") and "a bug" not in said:
            raise SendAgain(said)
        assert reply.status.code == OK, said
        return reply.entries[0].offset, reply.entries[0].recall_handle


def messages_of(wave: int) -> list[definition_pb2.Message]:
    """Return a wave's messages: of each kind, some of them with an id that another has, too."""
    due_s = int(time.time()) + 86_400
    made = []
    for number in range(WAVE_MESSAGES):
        kind = list(TOPICS)[number % len(TOPICS)]
        same = number - len(TOPICS) if number % 10 == 9 and number > WAVE_MESSAGES - 10 * FORKED else number
        system = definition_pb2.SystemProperties(message_id=f"{wave:02d}{same:030X}")
        match TOPICS[kind]:
            case "FIFO":
                system.message_group = f"g{number % 7}"
            case "DELAY":
                system.delivery_timestamp.FromSeconds(due_s)
                system.message_type = definition_pb2.DELAY
            case "TRANSACTION":
                system.message_type = definition_pb2.TRANSACTION
        body = f"{wave} {number}".encode()
        topic = definition_pb2.Resource(name=kind)
        made.append(definition_pb2.Message(topic=topic, body=body, system_properties=system))
    return made


async def play(nodes: list[Node], seed: int) -> Producer:
    """Send all waves, with a leader killed in each."""
    chance, producer = random.Random(seed), Producer(nodes)
    create_topics(await leader_of(nodes))
    for wave in range(WAVES):
        leader = await leader_of(nodes)
        messages = messages_of(wave)
        told = asyncio.create_task(kill_amid(leader, producer, len(producer.told)))
        await in_flight(producer, messages, lambda: chance.randrange(2))
        await told
        chance.shuffle(messages)
        other = nodes.index(await leader_of(nodes))
        await in_flight(producer, messages, lambda other=other: 1 - other)  # type: ignore[misc]  # a lambda with a default
        leader.start()
    await producer.close()
    return producer


async def kill_amid(leader: Node, producer: Producer, before: int) -> None:
    """Kill the leader once a share of the wave is told."""
    while len(producer.told) < before + KILL_AFTER * WAVE_MESSAGES:
        await asyncio.sleep(0.005)
    await asyncio.to_thread(leader.kill)


async def in_flight(producer: Producer, messages: list[Any], node: Any) -> None:
    """Send messages, so many at a time."""
    waiting = iter(messages)

    async def go_on() -> None:
        for message in waiting:
            await producer.send(message, node())

    await asyncio.gather(*(go_on() for _ in range(IN_FLIGHT)))


def test_what_is_sent_again_is_stored_once_and_what_collides_twice(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    seed = request.config.getoption("--disk-seed")
    with shared_log(request.config.getoption("--engine")) as (url, _):
        assert tidewheel("cluster", "create", url, "--segment-bytes", 8 << 20).returncode == 0
        nodes = [Node(tmp_path, name, url) for name in "ab"]
        for node in nodes:
            node.start()
        with logs_shown(*nodes):
            producer = asyncio.run(play(nodes, seed))
            assert [node.stop() for node in nodes] == [0, 0]
    stored: Counter[tuple[str, bytes]] = Counter()
    newest = max((open_store(node.store) for node in nodes), key=lambda store: store.durable_offset)
    for found in newest.scan():
        if found.record.topic in (*TOPICS, HALF_TOPIC, TIMER_TOPIC):
            message_id = properties.value_of(found.record.properties, property_names.MESSAGE_ID)
            stored[message_id, found.record.body] += 1
    ids = Counter(message_id for message_id, _ in stored)
    shown = {
        "seed": seed,
        "sent": len(producer.told),
        "calls": len(producer.seconds),
        "repeated for want of an answer": producer.repeated,
        "slowest_seconds": round(max(producer.seconds), 2),
        "p50_ms": round(median(producer.seconds) * 1000, 1),
        "stored once": sum(count == 1 for count in stored.values()),
        "stored more than once": sum(count > 1 for count in stored.values()),
        "ids of two messages": sum(count == 2 for count in ids.values()),
        "lost": len(producer.told.keys() - stored.keys()),
    }
    print(json.dumps(shown, indent=2))
    assert stored == dict.fromkeys(producer.told, 1)
    assert len(producer.told) == WAVES * WAVE_MESSAGES
    assert shown["ids of two messages"]
