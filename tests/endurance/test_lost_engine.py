"""The engine of a cluster loses what it had accepted: what any node's disk still has is recoverable.

    TIDEWHEEL_LONG=1 .venv/bin/python -m pytest tests/endurance/test_lost_engine.py -s

Each test lets SENT messages be acknowledged, plays one disaster with real nodes and a real PostgreSQL, and
follows the page `docs/cluster.md`. It prints a row: the disaster, how many were acknowledged before, how many
are received after, by which command, and in how many seconds from that command to a leader.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from commitlog.disk.real_disk import RealDisk
from services.cluster import evidence_file
from tests.acceptance.test_cluster import Node, SmallNode
from tests.command import tidewheel
from tests.endurance.conftest import OK, Client
from tests.endurance.test_cluster_bad_input import (
    all_halt,
    doctor,
    leader_of,
    readyz,
    running_nodes,
    send,
    status,
    until,
)
from tests.postgresql import PostgresServer, running_servers

pytestmark = pytest.mark.skipif(
    "TIDEWHEEL_LONG" not in os.environ, reason="engines that are lost, for minutes: make test-cluster"
)
SENT = 300
SEEN = "This node has seen the log accepted up to byte "
TOPIC = "orders"
RESTORE, REFETCH = "cluster restore", "cluster refetch --accept-loss-of"


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with running_servers() as servers:
        yield servers.primary


@pytest.fixture
def another() -> Iterator[PostgresServer]:
    """The PostgreSQL in place of the one that is lost."""
    server = PostgresServer("another", ())
    try:
        server.make()
        server.start()
        yield server
    finally:
        server.stop()
        server.forget()


def acknowledge(node: Node, first: int, count: int) -> set[str]:
    """Send messages by a node; return the bodies of those that were acknowledged, which must be all."""
    assert send(node, f"m{first}").returncode == 0  # which makes the topic

    async def send_all() -> list[int]:
        async with Client(node.listen) as client:
            numbers = range(first + 1, first + count)
            calls = (client.send(TOPIC, f"id{one}", f"m{one}".encode()) for one in numbers)
            return await asyncio.gather(*calls)

    assert set(asyncio.run(send_all())) <= {OK}
    return {f"m{one}" for one in range(first, first + count)}


def received(node: Node, wanted: set[str]) -> set[str]:
    """Receive until all that is wanted was, or nothing comes; return the bodies."""
    found: set[str] = set()
    while not wanted <= found:
        before = len(found)
        found |= {body.decode() for _, body in node.receive(TOPIC)}
        if len(found) == before:
            break
    return found


def told_followers(nodes: list[Node]) -> tuple[Node, Node]:
    """Return the leader and its follower, once that has read all."""
    leader = leader_of(nodes)
    (other,) = (node for node in nodes if node is not leader)
    end = accepted_end(leader)  # which a view tells a beat later
    until(lambda: accepted_end(other) >= end)
    return leader, other


def accepted_end(node: Node) -> int:
    """Return up to where a node has seen the log accepted, by its file."""
    disk = RealDisk(node.store)
    try:
        claimed = evidence_file.read(disk)
        return 0 if claimed is None else claimed.end
    finally:
        disk.close()


def say(disaster: str, before: int, after: int, by: str, seconds: float) -> None:
    """Print a row."""
    print(f"\n| {disaster} | {before} | {after} | {by} | {seconds:.1f} |", flush=True)


@contextmanager
def restored(url: str, store: Path, folder: Path) -> Iterator[tuple[Node, str, float]]:
    """Begin anew with a store, as the page says; give the leader, what the store had, and seconds."""
    began = time.monotonic()
    asked = tidewheel("cluster", "restore", url, "--from", store, "--node", "r")
    assert (asked.returncode, "TW-261" in asked.stderr) == (4, True), asked
    offset = asked.stderr.split("--accept-loss-after ")[1].split(".")[0]
    done = tidewheel("cluster", "restore", url, "--from", store, "--node", "r", "--accept-loss-after", offset)
    assert done.returncode == 0, done
    node = Node(folder, "r", url)
    node.store = store
    node.start()
    try:
        leader_of([node])
        yield node, asked.stderr, time.monotonic() - began
        assert node.stop() == 0
    finally:
        if node.process is not None and node.process.poll() is None:
            node.kill()


def restore_all(disaster: str, nodes: list[Node], told: set[str], url: Callable[[int], str]) -> None:
    """Restore from the store of each node, one new log for each: all has all."""
    for number, node in enumerate(nodes):
        folder = node.store.parent / f"restored{number}"
        folder.mkdir()
        with restored(url(number), node.store, folder) as (leads, said, seconds):
            found = received(leads, told)
            say(f"{disaster}: node {node.name}", len(told), len(told & found), RESTORE, seconds)
            assert "nothing is missing of what this node has seen accepted" in said
            assert told <= found


def again(server: PostgresServer) -> Callable[[int], str]:
    """Give the URL of a new log of each number in a server."""
    return lambda number: f"{server.url}&log=again{number}"


@pytest.mark.parametrize("nodes_end", ["killed", "stopped", "restarted, stopped"])
def test_what_was_acknowledged_outlives_the_engine(
    tmp_path: Path, server: PostgresServer, another: PostgresServer, nodes_end: str
) -> None:
    with running_nodes(tmp_path, server.url) as nodes:
        told = acknowledge(leader_of(nodes), 0, SENT)
        leader, other = told_followers(nodes)
        server.stop()
        if nodes_end == "killed":
            leader.kill()
            other.kill()
        else:
            until(lambda: leader.role() != "leading")
            for node in nodes:
                assert node.stop() == 0
        if nodes_end.startswith("restarted"):
            for node in nodes:
                end_start(node)
        restore_all(f"engine lost for good, nodes {nodes_end}", [leader, other], told, again(another))


def test_nodes_that_were_restarted_while_the_engine_was_away_go_on(
    tmp_path: Path, server: PostgresServer
) -> None:
    with running_nodes(tmp_path, server.url) as nodes:
        told = acknowledge(leader_of(nodes), 0, SENT)
        leader, other = told_followers(nodes)
        server.stop()
        assert other.stop() == 0
        leader.kill()
        for node in nodes:
            end_start(node)
        began = time.monotonic()
        server.start()
        for node in nodes:
            node.start()
        leads = leader_of(nodes)
        seconds = time.monotonic() - began
        found = received(leads, told)
        say("engine away, both nodes restarted, engine back", len(told), len(told & found), "none", seconds)
        assert told <= found


def end_start(node: Node) -> None:
    """Start a node while the engine is away, which says so; it may end by itself."""
    said = len(node.log())
    node.launch()
    assert node.process is not None
    until(lambda: "PostgreSQL did not answer" in node.log()[said:])
    node.process.terminate()
    node.process.wait(30)


def halted_at_restart(nodes: list[Node], *said: str) -> None:
    """Start nodes again: they halt as before."""
    for node in nodes:
        assert node.stop() == 0
        node.start()
    all_halt(nodes, *said)
    for node in nodes:
        assert node.stop() == 0


def test_a_backup_that_is_restored_halts_all_and_loses_nothing(
    tmp_path: Path, server: PostgresServer, another: PostgresServer
) -> None:
    with running_nodes(tmp_path, server.url) as nodes:
        told = acknowledge(leader_of(nodes), 0, SENT // 2)
        server.back_up()
        told |= acknowledge(leader_of(nodes), SENT // 2, SENT // 2)
        leader, other = told_followers(nodes)
        began = time.monotonic()
        server.restore_backup()
        all_halt(nodes, "lost", SEEN)
        say("engine restored from a backup: all halt", len(told), 0, "-", time.monotonic() - began)
        halted_at_restart(nodes, "lost", SEEN)
        restore_all("engine restored from a backup", [leader, other], told, again(another))


def test_a_backup_that_has_grown_again_halts_who_has_seen_more(
    tmp_path: Path, server: PostgresServer, another: PostgresServer
) -> None:
    with running_nodes(tmp_path, server.url) as nodes:
        old = acknowledge(leader_of(nodes), 0, SENT // 2)
        told_followers(nodes)
        server.back_up()
        told = old | acknowledge(leader_of(nodes), SENT // 2, SENT // 2)
        leader, other = told_followers(nodes)
        leader.kill()
        assert other.stop() == 0
        server.restore_backup()
        stranger = Node(tmp_path, "c", server.url)
        stranger.start()
        try:
            leader_of([stranger])
            new = acknowledge(stranger, SENT, 2 * SENT)
            for node in nodes:
                node.start()
            began = time.monotonic()
            all_halt(nodes, "lost", SEEN)
            seconds = time.monotonic() - began
            say("engine restored, grown again: nodes that saw more halt", len(told), 0, "-", seconds)
            for node in nodes:
                assert node.stop() == 0
            kept = shutil.copytree(other.store, tmp_path / "kept")
            refetched(other, old | new, len(told | new))
            assert other.stop() == 0
        finally:
            stranger.kill()
        other.store = kept
        restore_all("engine restored, grown again", [leader, other], told, again(another))


def refetched(node: Node, wanted: set[str], before: int) -> None:
    """Give up what only a stopped node has, by the number that it names, and let it follow the others."""
    began = time.monotonic()
    assert tidewheel("cluster", "refetch", "--store", node.store).returncode == 0
    node.start()
    until(lambda: "--accept-loss-of " in status(node))
    offset = status(node).split("--accept-loss-of ")[1].split(".")[0]
    assert node.stop() == 0
    done = tidewheel("cluster", "refetch", "--store", node.store, "--accept-loss-of", offset)
    assert done.returncode == 0, done
    node.start()
    until(lambda: node.role() == "following")
    seconds = time.monotonic() - began
    found = received(node, wanted)
    say("the same, what one node has given up", before, len(wanted & found), REFETCH, seconds)
    assert wanted <= found


def test_a_stale_store_that_is_put_back_reads_what_it_lacks(tmp_path: Path, server: PostgresServer) -> None:
    with running_nodes(tmp_path, server.url) as nodes:
        told = acknowledge(leader_of(nodes), 0, SENT // 2)
        leader, other = told_followers(nodes)
        assert other.stop() == 0
        stale = shutil.copytree(other.store, tmp_path / "stale")
        other.start()
        told |= acknowledge(leader, SENT // 2, SENT // 2)
        told_followers(nodes)
        assert other.stop() == 0
        shutil.rmtree(other.store)
        stale.rename(other.store)
        began = time.monotonic()
        other.start()
        told_followers(nodes)
        seconds = time.monotonic() - began
        leader.kill()
        until(lambda: other.role() == "leading")
        found = received(other, told)
        say("a stale store put back, the leader killed", len(told), len(told & found), "none", seconds)
        assert told <= found


def test_a_stale_store_alone_restores_what_it_has_and_claims_no_more(
    tmp_path: Path, server: PostgresServer, another: PostgresServer
) -> None:
    with running_nodes(tmp_path, server.url) as nodes:
        old = acknowledge(leader_of(nodes), 0, SENT // 2)
        leader, other = told_followers(nodes)
        assert other.stop() == 0
        acknowledge(leader, SENT // 2, SENT // 2)
        leader.kill()
        server.stop()
        with restored(f"{another.url}&log=again", other.store, tmp_path) as (leads, said, seconds):
            found = received(leads, old)
            say("engine and one disk lost, a stale store left", SENT, len(found), RESTORE, seconds)
            assert old <= found
            assert "nothing is missing of what this node has seen accepted" in said


def acknowledge_in_turn(node: Node, first: int, count: int) -> set[str]:
    """Send messages one after the other, each in a record of its own; return the bodies."""

    async def send_all() -> list[int]:
        async with Client(node.listen) as client:
            numbers = range(first, first + count)
            return [await client.send(TOPIC, f"id{one}", f"m{one}".encode()) for one in numbers]

    assert set(asyncio.run(send_all())) <= {OK}
    return {f"m{one}" for one in range(first, first + count)}


def test_a_page_that_postgresql_cannot_read_is_an_alarm_and_heals(
    tmp_path: Path, server: PostgresServer
) -> None:
    with running_nodes(tmp_path, server.url, kind=SmallNode) as nodes:
        told = acknowledge(leader_of(nodes), 0, SENT // 2)
        leader, other = told_followers(nodes)
        assert other.stop() == 0
        read = leader.view()["next_record"]
        told |= acknowledge_in_turn(leader, SENT // 2, SENT // 2)
        until(lambda: leader.view()["copies"][leader.name]["next_record"] > read + SENT // 3)
        checkpoint = leader.view()["copies"][leader.name]["next_record"]
        bad = server.spoil_page_of("tidewheel_record", read + SENT // 6)
        assert read < bad[0] <= bad[-1] < checkpoint
        until(lambda: leader.role() == "leading")
        began = time.monotonic()
        other.start()
        named = f"cannot read record {bad[0]}: invalid page in block"
        until(lambda: named in leader.log())  # for as long as it lasts, /readyz has a 503
        seconds = time.monotonic() - began
        assert named in doctor(server.url).replace("\n", " ")
        say("a page with a wrong checksum: told", len(told), 0, "-", seconds)
        until(lambda: f"record {bad[0]}" in other.log() and "copied" in other.log())
        until(lambda: readyz(leader)[0] == 200 and send(leader, "after it").returncode == 0)
        told_followers(nodes)
        seconds = time.monotonic() - began
        told_followers(nodes)
        leader.kill()
        until(lambda: other.role() == "leading")
        found = received(other, told)
        say("a page with a wrong checksum, the leader killed", len(told), len(told & found), "none", seconds)
        assert told <= found
