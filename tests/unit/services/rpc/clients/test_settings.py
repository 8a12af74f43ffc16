"""What consumers are told of their group: its policy, and whether a topic of theirs keeps an order."""

from __future__ import annotations

from typing import Any

import pytest

from commitlog.records.message import MessageType
from services.broker.groups.group_values import GroupPolicy, GroupStart
from services.rpc.clients import settings
from services.rpc.clients.consumers import consumers
from services.rpc.clients.sessions import Sessions
from services.rpc.generated import definition_pb2 as wire
from services.rpc.wire.caller import Caller


def said(group: str, *topics: str) -> wire.Settings:
    """Return what a push consumer of a group and topics says about itself."""
    subscriptions = [wire.SubscriptionEntry(topic=wire.Resource(name=topic)) for topic in topics]
    return wire.Settings(
        client_type="PUSH_CONSUMER",
        subscription=wire.Subscription(group=wire.Resource(name=group), subscriptions=subscriptions),
    )


def test_a_consumer_is_told_its_groups_attempts_and_pauses(play: Any) -> None:
    async def scenario(front: Any) -> None:
        await front.live.call(front.live.core.topics.create, "t", MessageType.NORMAL, 1)
        await front.live.call(front.live.core.group_views.create, "g", "t", GroupStart())
        await front.live.groups.set("g", GroupPolicy(attempts_max=3, retry_after_ms=(1_000, 90_000)))
        told = settings.answer(said("g", "t"), front.live).settings.backoff_policy
        assert told.max_attempts == 3
        assert [one.seconds for one in told.customized_backoff.next] == [1, 90]
        of_new = settings.answer(said("new", "t"), front.live).settings.backoff_policy
        assert (of_new.max_attempts, len(of_new.customized_backoff.next)) == (5, 18)

    play(scenario, attempts_max=5)


def test_node_is_told_its_attempts_in_the_only_way_that_it_knows(play: Any) -> None:
    async def scenario(front: Any) -> None:
        await front.live.groups.set("g", GroupPolicy(attempts_max=3, retry_after_ms=(1_000, 90_000)))
        of_node = said("g", "t")
        of_node.user_agent.language = wire.Language.NODE_JS
        told = settings.answer(of_node, front.live).settings.backoff_policy
        assert (told.max_attempts, told.WhichOneof("strategy")) == (3, "exponential_backoff")
        assert (told.exponential_backoff.initial.seconds, told.exponential_backoff.max.seconds) == (1, 90)

    play(scenario)


@pytest.mark.parametrize(
    ("topics", "is_fifo"), [(("n",), False), (("n", "f"), True), (("none",), False), ((), False)]
)
def test_a_consumer_keeps_the_order_if_one_of_its_topics_is_fifo(
    play: Any, topics: tuple[str, ...], is_fifo: bool
) -> None:
    async def scenario(front: Any) -> None:
        await front.live.call(front.live.core.topics.create, "n", MessageType.NORMAL, 1)
        await front.live.call(front.live.core.topics.create, "f", MessageType.FIFO, 1)
        assert settings.answer(said("g", *topics), front.live).settings.subscription.fifo is is_fifo

    play(scenario)


def test_consumers_are_seen_by_group_with_what_is_known_of_them(play: Any) -> None:
    async def scenario(front: Any) -> None:
        sessions: Sessions = front.sessions
        for client_id, group in (("b", "g"), ("a", "g"), ("c", "h")):
            sessions.seen(Caller(client_id, language="PYTHON", version="5.1.2")).describe(said(group, "t"))
        sessions.seen(Caller("somebody"))
        found = consumers(sessions, "g")
        assert [(one.client_id, one.kind, one.language) for one in found] == [
            ("a", "PUSH_CONSUMER", "PYTHON"),
            ("b", "PUSH_CONSUMER", "PYTHON"),
        ]
        assert not found[0].is_connected
        assert [one.group for one in consumers(sessions)] == ["g", "g", "h"]

    play(scenario)
