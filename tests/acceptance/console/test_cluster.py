"""A cluster of two nodes as the console shows it; its leader is moved, and a node forgotten."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command import tidewheel
from tests.console_process import Browser, ConsoleProcess
from tests.two_nodes import two_nodes
from tidewheel.testing.process import BrokerProcess


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[BrokerProcess]]:
    with two_nodes(tmp_path) as both:
        yield both


def test_a_single_broker_is_said_to_be_one(browser: Browser) -> None:
    assert browser.model("/cluster")["cluster"] is None
    page = browser.open("/cluster").text
    assert "This is a single broker" in page
    assert "tidewheel cluster create" in page
    assert browser.post("/cluster/move", node="b").status == 404


def test_roles_and_copies_are_shown_and_the_leader_is_moved(nodes: list[BrokerProcess]) -> None:
    addresses = ",".join(node.http for node in nodes)
    console = ConsoleProcess(os.environ, addresses)
    try:
        browser = Browser(console.link)
        while len((shown := browser.model("/cluster"))["nodes"]) < 2 or not shown["cluster"]["leader"]:
            pass
        leader = shown["cluster"]["leader"]["node"]
        (other,) = shown["others"]
        assert {leader, other} == {"a", "b"}
        assert [row[0] for row in shown["nodes"]] == ["a", "b"]
        names = [row["name"] for row in shown["rows"]]
        assert names[:4] == ["node", "leader", "epoch", "log end"]
        said = tidewheel("cluster", "status", "--http", nodes[0].http).stdout
        assert f"{leader} at" in said
        refused = browser.post("/cluster/forget", node=other, typed="c")
        assert (refused.status, "it is not forgotten" in refused.text) == (400, True)
        unknown = browser.post("/cluster/move", node="<c>")
        assert unknown.status in (404, 409)
        assert "<c>" not in unknown.text
        moved = browser.post("/cluster/move", node=other)
        assert f"Node {other} leads, at" in moved.text, moved.text
        while browser.model("/cluster")["cluster"]["leader"]["node"] != other:
            pass
    finally:
        assert console.stop() == 0
