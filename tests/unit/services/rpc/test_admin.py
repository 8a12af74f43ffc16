"""Operators' questions with whatever values: each is answered by a status, none by a bug."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from commitlog.message import MessageType
from services.broker.group_values import Start
from services.rpc.admin import METHODS
from services.rpc.admin_clients import Rates
from services.rpc.admin_topics import BODIES_BYTES_MAX
from services.rpc.generated import admin_pb2 as admin
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service
from services.rpc.generated.definition_pb2 import Code
from services.rpc.service import ADMIN
from tests.endurance.hostile import hostile

ROUNDS = 200
ASKED = sorted(set(METHODS) - {"ChangeLogLevel", "DeleteSubscription"})


@pytest.mark.parametrize("name", ASKED)
def test_hostile_values_are_answered(play: Any, name: str) -> None:
    kind, chance = getattr(admin, METHODS[name].input_type.name), Random(name)

    async def scenario(front: Any) -> None:
        await front.live.call(front.live.core.topics.create, "t", MessageType.NORMAL, 2)
        await front.live.call(front.live.core.group_views.create, "g", "t", Start())
        beat = service.HeartbeatRequest(client_type="PUSH_CONSUMER", group=wire.Resource(name="g"))
        await front.call("Heartbeat", beat)
        for body in (b"1", b"2"):
            await front.send("t", body)
        codes = set()
        for _ in range(ROUNDS):
            request = hostile(kind, chance)
            for field, known in (("topic", "t"), ("group", "g")):
                if field in METHODS[name].input_type.fields_by_name:
                    getattr(request, field).CopyFrom(wire.Resource(name=known))
            codes.add((await front.call(f"{ADMIN}/{name}", request)).status.code)
        assert not codes & {Code.CODE_UNSPECIFIED, Code.INTERNAL_SERVER_ERROR}

    play(scenario)


def test_a_reply_is_no_larger_than_a_client_takes(play: Any) -> None:
    async def scenario(front: Any) -> None:
        for number in range(5):
            await front.send("t", bytes(1 << 20), keys=["k"], message_id=f"M{number}")
        request = admin.ListMessageRequest(topic=wire.Resource(name="t"), message_key="k")
        reply = await front.call(f"{ADMIN}/QueryMessage", request)
        assert len(reply.messages) == BODIES_BYTES_MAX >> 20
        await front.send("t", bytes(4 << 20), keys=["large"], message_id="L")
        request.message_key = "large"
        assert len((await front.call(f"{ADMIN}/QueryMessage", request)).messages) == 1

    play(scenario, segment_bytes=1 << 24)


def test_rates_are_those_since_the_question_before() -> None:
    rates = Rates(100.0)
    assert rates.now(110.0, (50, 20)) == (5.0, 2.0)
    assert rates.now(110.5, (80, 20)) == (5.0, 2.0), "it was just asked"
    assert rates.now(112.0, (80, 20)) == (15.0, 0.0)
