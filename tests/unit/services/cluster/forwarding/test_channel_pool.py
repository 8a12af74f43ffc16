"""Channels to nodes that nobody calls any more are closed: gRPC would dial them for good."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import grpc
import pytest

from services.cluster.forwarding import channel_pool
from services.cluster.forwarding.channel_pool import ChannelPool
from services.cluster.peers import Identity

HERE, THERE = "127.0.0.1:9", "127.0.0.1:10"
WAIT_SECONDS = 30


def play(scenario: Callable[[ChannelPool], Awaitable[None]]) -> None:
    async def run() -> None:
        opened = ChannelPool()
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await scenario(opened)
        finally:
            await opened.close()

    asyncio.run(run())


async def until_closed(channel: grpc.aio.Channel) -> None:
    """Wait until a channel is closed."""
    while not is_closed(channel):
        await asyncio.sleep(0)


def is_closed(channel: grpc.aio.Channel) -> bool:
    """Return whether a channel is closed, and so dials no more."""
    return bool(channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN)


def test_a_channel_to_whoever_led_before_is_closed_once_another_is_called() -> None:
    async def scenario(opened: ChannelPool) -> None:
        with opened.acquire(HERE, "", Identity()) as before:
            pass
        with opened.acquire(HERE, "", Identity()) as again:
            assert again is before
        with opened.acquire(THERE, "", Identity()) as channel:
            await until_closed(before)
            assert not is_closed(channel)

    play(scenario)


def test_a_channel_is_closed_only_when_the_last_call_on_it_ends() -> None:
    async def scenario(opened: ChannelPool) -> None:
        with opened.acquire(HERE, "", Identity()) as before:
            with opened.acquire(HERE, "", Identity()), opened.acquire(THERE, "", Identity()):
                pass
            await asyncio.sleep(0)
            assert not is_closed(before)
        await until_closed(before)

    play(scenario)


def test_what_a_node_shows_now_is_shown_by_another_channel_and_the_one_before_is_closed() -> None:
    async def scenario(opened: ChannelPool) -> None:
        with opened.acquire(HERE, "", Identity(chain=b"old")) as before:
            pass
        with opened.acquire(HERE, "", Identity(chain=b"new")) as channel:
            assert channel is not before
            await until_closed(before)

    play(scenario)


def test_who_leads_keeps_no_channel_but_those_with_open_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(opened: ChannelPool) -> None:
        monkeypatch.setattr(channel_pool, "CALLS_MAX", 1)
        with opened.acquire(HERE, "", Identity()) as busy:
            with opened.acquire(HERE, "", Identity()) as idle:
                assert idle is not busy
            opened.close_idle()
            await until_closed(idle)
            assert not is_closed(busy)
        await until_closed(busy)

    play(scenario)
