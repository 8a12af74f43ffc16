"""A node that waits for its engine: what it answers, and which error the commands make of that."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from services.cli.terminal.api import error_class
from services.cluster.errors import NoLeader
from services.server.waiting import Waiting
from sharedlog.errors import EngineUnavailable


@pytest.mark.parametrize("path", ["/api/cluster", "/api/messages", "/readyz", "/"])
def test_a_node_that_waits_says_for_what(path: str) -> None:
    waiting = Waiting()
    waiting.told(EngineUnavailable("connection refused"))
    answer = asked(waiting, path)
    assert answer.status_code == 503
    assert "waits for the shared log" in answer.text
    assert "connection refused" in answer.text
    assert "tidewheel cluster doctor" in answer.text
    if path.startswith("/api/"):
        assert error_class(answer.json()["code"]) is NoLeader


def test_a_node_that_waits_is_alive() -> None:
    assert asked(Waiting(), "/livez").text == "alive\n"


def asked(waiting: Waiting, path: str) -> httpx.Response:
    """What a node that waits answers."""

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(waiting), base_url="http://node"
        ) as client:
            return await client.get(path)

    return asyncio.run(ask())
