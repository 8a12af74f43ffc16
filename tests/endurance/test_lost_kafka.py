"""A cluster over Apache Kafka whose servers lose what they had accepted: what any disk has is recoverable.

    TIDEWHEEL_LONG=1 .venv/bin/python -m pytest tests/endurance/test_lost_kafka.py -s

As `test_lost_engine`, whose rows it prints, with the ways to lose that are Kafka's own.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.acceptance.test_cluster import Node
from tests.endurance.test_cluster_bad_input import (
    QUICK,
    admin_of,
    all_halt,
    doctor,
    leader_of,
    readyz,
    running_nodes,
    send,
    status,
    until,
)
from tests.endurance.test_lost_engine import (
    SEEN,
    SENT,
    acknowledge,
    acknowledge_in_turn,
    halted_at_restart,
    received,
    restore_all,
    say,
    told_followers,
)
from tests.kafka_cluster import KafkaCluster, running_kafka

pytestmark = pytest.mark.skipif(
    "TIDEWHEEL_LONG" not in os.environ, reason="servers that lose their disks, for minutes: make test-cluster"
)
LOG = "orders"
UNREADABLE = "of orders cannot be read: MessageSet"


@pytest.fixture
def kafka(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    with running_kafka(request.param, QUICK) as cluster:
        yield cluster


def acknowledged_again(nodes: list[Node], first: int, count: int) -> set[str]:
    """Send as soon as Kafka serves again; a leader may step down for what it has not answered before."""
    told: set[str] = set()

    def is_told() -> bool:
        with suppress(AssertionError, OSError):
            told.update(acknowledge(leader_of(nodes), first, count))
        return bool(told)

    until(is_told)
    return told


@pytest.mark.parametrize("kafka", [1], indirect=True)
def test_log_folders_that_are_copied_back_while_the_nodes_are_killed_halt_all(
    tmp_path: Path, kafka: KafkaCluster
) -> None:
    (server,) = kafka.nodes
    with running_nodes(tmp_path, kafka.url(LOG)) as nodes:
        told = acknowledge(leader_of(nodes), 0, SENT // 2)
        told_followers(nodes)
        server.stop()
        shutil.copytree(server.data, tmp_path / "backup")
        server.start()
        server.wait()
        told |= acknowledged_again(nodes, SENT // 2, SENT // 2)
        leader, other = told_followers(nodes)
        leader.kill()
        other.kill()
        server.stop()
        shutil.rmtree(server.data)
        (tmp_path / "backup").rename(server.data)
        server.start()
        server.wait()
        began = time.monotonic()
        for node in nodes:
            node.start()
        all_halt(nodes, "lost", SEEN)
        seconds = time.monotonic() - began
        say("Kafka's log folders copied back, nodes killed: all halt", len(told), 0, "-", seconds)
        halted_at_restart(nodes, "lost", SEEN)
        disaster = "Kafka's log folders copied back, nodes killed"
        restore_all(disaster, [leader, other], told, lambda number: kafka.url(f"again{number}"))


def in_step(kafka: KafkaCluster) -> list[int]:
    """The servers that have all of the log; the one that leads it comes first."""
    with suppress(Exception):
        place = admin_of(kafka).list_topics(LOG, timeout=5).topics[LOG].partitions[0]
        if place.leader > 0:
            return [place.leader, *(one for one in place.isrs if one != place.leader)]
    return []


@pytest.mark.parametrize("kafka", [3], indirect=True)
@pytest.mark.parametrize("is_leading", [True, False])
def test_a_server_of_three_that_lost_its_disk_loses_nothing(
    tmp_path: Path, kafka: KafkaCluster, *, is_leading: bool
) -> None:
    with running_nodes(tmp_path, kafka.url(LOG)) as nodes:
        told = acknowledge(leader_of(nodes), 0, SENT // 2)
        told_followers(nodes)
        until(lambda: len(in_step(kafka)) == len(kafka.nodes))
        place = in_step(kafka)
        wiped = next(one for one in kafka.nodes if one.number == place[0 if is_leading else 1])
        began = time.monotonic()
        wiped.kill()
        wiped.wipe()
        wiped.start()
        wiped.wait()
        told |= acknowledged_again(nodes, SENT // 2, SENT // 2)
        seconds = time.monotonic() - began
        until(lambda: len(in_step(kafka)) == len(kafka.nodes))
        others = [one for one in kafka.nodes if one is not wiped]
        others[0].kill()  # so that the one that was wiped counts
        leader, other = told_followers(nodes)
        until(lambda: send(leader_of(nodes), "without another").returncode == 0)
        leader.kill()
        until(lambda: other.role() == "leading")
        found = received(other, told)
        which = "leads" if is_leading else "follows"
        say(f"one of three servers wiped, which {which}", len(told), len(told & found), "none", seconds)
        assert told <= found


@pytest.mark.parametrize("kafka", [1], indirect=True)
def test_a_batch_that_does_not_match_its_crc_is_an_alarm_and_heals(
    tmp_path: Path, kafka: KafkaCluster
) -> None:
    (server,) = kafka.nodes
    with running_nodes(tmp_path, kafka.url(LOG)) as nodes:
        told = acknowledge(leader_of(nodes), 0, SENT // 2)
        leader, other = told_followers(nodes)
        assert other.stop() == 0
        told |= acknowledge_in_turn(leader, SENT // 2, SENT // 2)
        bad = b"id%d" % (SENT // 2 + 10)
        server.spoil(LOG, bad, bad.upper())
        began = time.monotonic()
        other.start()
        until(lambda: readyz(leader)[0] == 503)
        assert UNREADABLE in readyz(leader)[1]
        seconds = time.monotonic() - began
        assert UNREADABLE in status(leader).replace("\n", " ")
        assert UNREADABLE in doctor(kafka.url(LOG)).replace("\n", " ")
        assert "tidewheel_cluster_broken_records 1" in scraped(leader)
        refused = send(leader, "while answers are held")
        say("a batch with a wrong CRC: answers held", len(told), 0, "-", seconds)
        until(lambda: readyz(leader)[0] == 200)
        told_followers(nodes)
        seconds = time.monotonic() - began
        assert send(leader, "after it").returncode == 0
        told_followers(nodes)
        leader.kill()
        until(lambda: other.role() == "leading")
        found = received(other, told)
        say("a batch with a wrong CRC, the leader killed", len(told), len(told & found), "none", seconds)
        assert told <= found
        assert refused.returncode == 0 or "Nothing is acknowledged until another" in refused.stderr, refused


def scraped(node: Node) -> str:
    """What Prometheus is told."""
    with urlopen(f"http://{node.http}/metrics", timeout=5) as answer:
        return str(answer.read().decode())
