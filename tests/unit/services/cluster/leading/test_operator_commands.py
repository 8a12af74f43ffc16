"""What an operator tells a leader is done once the shared log has it, or refused with a sentence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from threading import Event
from typing import Any

import pytest

from services.cluster.election import candidacy_timer
from services.cluster.election.table import Role
from services.cluster.errors import CommandRefused
from services.cluster.identity import Member
from services.cluster.leading import operator_commands
from services.cluster.node import ClusterNode
from sharedlog import versions
from sharedlog.engines import Beginning
from sharedlog.holdings import Holding
from sharedlog.record import CHAIN_AT_GENESIS, NOBODY, Kind, SharedRecord, encode, encode_facts
from sharedlog.versions import OLDEST, SUPPORTED
from tests.memory_disk import MemoryDisk
from tests.unit.services.cluster.test_node import (
    CLUSTER,
    SETTINGS,
    WAIT_SECONDS,
    Served,
    engine_with_messages,
)

NEWER = SUPPORTED + 1


def leading(
    scenario: Callable[[ClusterNode], Awaitable[None]], *held: tuple[str, int], me: int = SUPPORTED
) -> None:
    """Play a scenario at a leader `a`; each of `held` is a node and up to which version it supports.

    `me`: up to which version `a` supports.
    """

    @asynccontextmanager
    async def serve(*_: Any) -> AsyncIterator[Any]:
        yield Served()

    async def run() -> None:
        engine, _ = engine_with_messages()
        for name, supports in held:
            facts = Holding(1, supports=supports).facts(name)
            engine.append_unchecked(
                encode(SharedRecord(CLUSTER, Kind.HOLD, 0, NOBODY, 0, CHAIN_AT_GENESIS, encode_facts(facts)))
            )
        began = Beginning(CLUSTER, {"segment_bytes": SETTINGS.segment_bytes})
        with ThreadPoolExecutor(4) as executor:
            member = Member("a", "h:3", "http://h:4", supports=me)
            node = ClusterNode(member, began, engine, MemoryDisk(), SETTINGS, lambda: 0, executor, serve)
            running = asyncio.create_task(node.run())
            async with asyncio.timeout(WAIT_SECONDS):
                while node.role is not Role.LEADING:
                    await asyncio.wait({running}, timeout=0.005)
                    assert not running.done(), running
                await scenario(node)
                node.leave()
                await running

    asyncio.run(run())


@pytest.fixture(autouse=True)
def _stands_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidacy_timer, "LEADER_TIMEOUT_MS", 0)


async def refused(order: Awaitable[Any]) -> str:
    """What an order is refused with."""
    with pytest.raises(CommandRefused) as raised:
        await order
    return str(raised.value)


def test_a_node_is_forgotten_once_and_the_leader_is_not() -> None:
    async def scenario(node: ClusterNode) -> None:
        assert "leads: stop it first" in await refused(operator_commands.forget_node(node, "a"))
        assert "Nodes that hold a copy: a, c." in await refused(operator_commands.forget_node(node, "nobody"))
        await operator_commands.forget_node(node, "c")
        assert "c" not in operator_commands.node_names(node)
        fold = operator_commands._require_leader(node)
        assert fold.holdings.of("c") is None
        assert "Nothing is kept for a node 'c'" in await refused(operator_commands.forget_node(node, "c"))

    leading(scenario, ("a", SUPPORTED), ("c", SUPPORTED))


def test_a_version_is_finalized_as_far_as_all_support_it_and_never_goes_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(node: ClusterNode) -> None:
        assert f"c supports up to {SUPPORTED}" in await refused(operator_commands.set_version(node, NEWER))
        assert await operator_commands.set_version(node) == SUPPORTED
        await operator_commands.forget_node(node, "c")
        assert await operator_commands.set_version(node) == NEWER
        fold = operator_commands._require_leader(node)
        assert fold.finalized == NEWER
        assert "it never goes down" in await refused(operator_commands.set_version(node, OLDEST))

    with monkeypatch.context() as patch:
        patch.setattr(versions, "SUPPORTED", NEWER)
        leading(scenario, ("c", SUPPORTED), me=NEWER)


def test_of_an_order_that_is_not_confirmed_in_time_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(node: ClusterNode) -> None:
        engine, answers = node.actions.engine, Event()
        append = engine.append_if

        def waits(*values: Any) -> int | None:
            answers.wait(WAIT_SECONDS)
            return append(*values)

        monkeypatch.setattr(operator_commands, "MOVE_SECONDS", 0.05)
        monkeypatch.setattr(engine, "append_if", waits)
        said = await refused(operator_commands.forget_node(node, "c"))
        assert "nobody knows whether it is written" in said
        assert "leads no more" not in said
        assert node.role is Role.LEADING
        answers.set()
        async with asyncio.timeout(WAIT_SECONDS):
            while (
                operator_commands._require_leader(node).holdings.of("c") is not None
            ):  # it is written all the same
                await asyncio.sleep(0.005)

    leading(scenario, ("c", SUPPORTED))


def test_the_lead_is_moved_to_a_node_that_is_known_and_is_another() -> None:
    async def scenario(node: ClusterNode) -> None:
        assert "leads already" in await refused(operator_commands.transfer_leadership(node, "a"))
        assert "There is no node x to lead: known are b" in await refused(
            operator_commands.transfer_leadership(node, "x")
        )

    leading(scenario)


def test_a_move_for_which_nobody_stands_says_who_leads() -> None:
    async def scenario(node: ClusterNode) -> None:
        epoch = node.epoch
        said = await refused(operator_commands.transfer_leadership(node))
        assert said.endswith("No other node stood in time: a leads again. See the others' logs."), said
        assert node.epoch > epoch

    leading(scenario)


def test_who_does_not_lead_takes_no_orders() -> None:
    async def scenario(node: ClusterNode) -> None:
        node.leave()
        while node.role is Role.LEADING:
            await asyncio.sleep(0)
        for order in (
            operator_commands.transfer_leadership(node),
            operator_commands.forget_node(node, "b"),
            operator_commands.set_version(node),
        ):
            assert "does not lead" in await refused(order)

    leading(scenario)
