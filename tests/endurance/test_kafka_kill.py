"""Three servers of Kafka, killed and paused while two write and one reads a shared log: nothing is lost.

    TIDEWHEEL_LONG=1 .venv/bin/python -m pytest tests/endurance/test_kafka_kill.py --rounds 20 -s

What was told is there, at the offset that was told; a record that was given up lands before the writer's
next, or never, and none lands twice. Prints JSON: how long none was told after each fault.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from statistics import median
from threading import Event, Thread

import pytest

from sharedlog.engine import Head
from sharedlog.errors import EngineUnavailable, Halted
from sharedlog.fold import Position
from sharedlog.kafka import KafkaLog
from sharedlog.record import CHAIN_AT_GENESIS, NOBODY
from tests.kafka_cluster import KafkaCluster, KafkaNode, running_kafka

pytestmark = pytest.mark.skipif(
    "TIDEWHEEL_LONG" not in os.environ, reason="three servers of Kafka: make endurance"
)
BEGIN = Head(0, NOBODY, Position(0, CHAIN_AT_GENESIS))
FAULTS = ("kill -9", "pause", "kill -9 of another", "pause of another")
BACK_SECONDS = 60.0
ALL = 1 << 24


@pytest.fixture
def cluster() -> Iterator[KafkaCluster]:
    with running_kafka(3) as cluster:
        yield cluster


class Writer(Thread):
    """Appends numbered records, one append at a time, until it is over."""

    def __init__(self, log: KafkaLog, name: str) -> None:
        super().__init__()
        self.log, self.prefix = log, name
        self.told: dict[int, bytes] = {}
        self.count = self.told_count = self.unknown_count = 0
        self.over = Event()

    def run(self) -> None:
        """Append until it is over."""
        while not self.over.is_set():
            parts = [self._next() for _ in range(1 + self.count % 3)]
            try:
                offset = self.log.append_if(BEGIN, parts, BEGIN)
            except EngineUnavailable:
                self.unknown_count += 1
                continue
            self.told_count += 1
            if offset is not None:
                self.told |= {offset - len(parts) + n: one for n, one in enumerate(parts, 1)}

    def _next(self) -> bytes:
        self.count += 1
        return b"%s-%d" % (self.prefix.encode(), self.count)


class Reader(Thread):
    """Reads all there is, and what comes, until it is over."""

    def __init__(self, log: KafkaLog) -> None:
        super().__init__()
        self.log = log
        self.seen: list[tuple[int, bytes]] = []
        self.over, self.failed = Event(), ""

    def run(self) -> None:
        """Read until it is over and nothing is left."""
        while True:
            try:
                some = self.log.read(len(self.seen), ALL)
            except EngineUnavailable:
                continue
            except Halted as error:
                self.failed = str(error)
                return
            self.seen += [(one.offset, one.stored) for one in some]
            if not some and self.over.is_set():
                return
            time.sleep(0.02)


def leader_of(log: KafkaLog, cluster: KafkaCluster) -> KafkaNode:
    """Return the server that leads the log's partition, once one does."""
    admin = log._make_admin()
    while True:
        with suppress(Exception):
            number = admin.list_topics(log._topic, timeout=2).topics[log._topic].partitions[0].leader
            if number > 0:
                return cluster.nodes[number - 1]


def strike(fault: str, log: KafkaLog, cluster: KafkaCluster, chance: random.Random, one: Writer) -> float:
    """Let a fault happen, and end; return how long none was told."""
    struck = leader_of(log, cluster)
    if fault.endswith("another"):
        struck = chance.choice([node for node in cluster.nodes if node is not struck])
    began, before, silent = time.monotonic(), one.told_count, 0.0
    ends = began + chance.uniform(1, 14)
    struck.pause() if fault.startswith("pause") else struck.kill()
    while time.monotonic() < ends or not silent:
        if not silent and one.told_count > before + 2:
            silent = time.monotonic() - began
        if time.monotonic() > ends + BACK_SECONDS:
            raise AssertionError(f"none is told after {fault}")
        time.sleep(0.02)
    if fault.startswith("pause"):
        struck.go_on()
    else:
        struck.start()
        struck.wait()
    while not is_whole(log):  # one fault at a time: of three servers one may be away
        time.sleep(0.1)
    return silent


def is_whole(log: KafkaLog) -> bool:
    """Return whether every replica of the log is in sync."""
    with suppress(Exception):
        found = log._make_admin().list_topics(log._topic, timeout=2).topics[log._topic].partitions[0]
        return len(found.isrs) == len(found.replicas)
    return False


def test_what_was_told_is_there_whatever_befalls_a_server(
    cluster: KafkaCluster, pytestconfig: pytest.Config
) -> None:
    rounds, seed = pytestconfig.getoption("--rounds"), pytestconfig.getoption("--disk-seed")
    chance, counts, silent = random.Random(seed), Counter[str](), dict[str, list[float]]()
    logs = [KafkaLog(cluster.bootstrap, "log") for _ in range(4)]
    logs[0].create_log(BEGIN)
    writers, reader = [Writer(logs[0], "a"), Writer(logs[1], "b")], Reader(logs[2])
    for thread in (*writers, reader):
        thread.start()
    try:
        for number in range(rounds):
            time.sleep(chance.uniform(1, 3))
            fault = FAULTS[number % len(FAULTS)]
            counts[fault] += 1
            silent.setdefault(fault, []).append(strike(fault, logs[3], cluster, chance, writers[0]))
    finally:
        for thread in (*writers, reader):
            thread.over.set()
            thread.join()
    facts = {
        "seed": seed,
        "faults": dict(counts),
        "told": sum(one.told_count for one in writers),
        "unknown": sum(one.unknown_count for one in writers),
        "records": len(reader.seen),
        "silent_seconds": {
            fault: {"p50": round(median(times), 2), "most": round(max(times), 2)}
            for fault, times in silent.items()
        },
    }
    print(json.dumps(facts, indent=2))
    assert not reader.failed, reader.failed
    judge(logs[3], writers, reader)
    for log in logs:
        log.close()


def judge(log: KafkaLog, writers: list[Writer], reader: Reader) -> None:
    """Hold what was told and seen against what the log has."""
    again = Reader(log)
    again.over.set()
    again.run()
    assert again.seen == reader.seen
    assert [offset for offset, _ in again.seen] == list(range(len(again.seen)))
    there = dict(again.seen)
    for writer in writers:
        lost = [(offset, one) for offset, one in writer.told.items() if there.get(offset) != one]
        assert not lost
        prefix = writer.prefix.encode() + b"-"
        numbers = [int(one.removeprefix(prefix)) for _, one in again.seen if one.startswith(prefix)]
        assert numbers == sorted(set(numbers)), "a record landed twice, or behind the writer's next"


def test_a_log_whose_end_an_unclean_election_lost_halts_who_had_read_that(cluster: KafkaCluster) -> None:
    from confluent_kafka import ElectionType, TopicPartition
    from confluent_kafka.admin import NewTopic

    log, reader = KafkaLog(cluster.bootstrap, "unsafe"), KafkaLog(cluster.bootstrap, "unsafe")
    admin = log._make_admin()
    config = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    (made,) = admin.create_topics(
        [NewTopic("unsafe", 1, replica_assignment=[[1, 2]], config=config)]
    ).values()
    made.result(60)
    log._wait_for_leader()
    assert [sentence.split()[0] for sentence in log.check_settings()]
    first, second, _ = cluster.nodes
    assert log.append_if(BEGIN, [b"both have"], BEGIN) == 0
    second.kill()
    assert log.append_if(BEGIN, [b"one has", b"one has"], BEGIN) == 2
    assert [one.offset for one in reader.read(0, 1)] == [0]
    while reader.read(reader._next_offset, ALL):
        pass
    first.kill()
    second.start()
    second.wait()
    while leader_of(log, cluster) is not second:
        with suppress(Exception):
            elected = admin.elect_leaders(ElectionType.UNCLEAN, [TopicPartition("unsafe", 0)])
            elected.result(60)
    with pytest.raises(Halted, match="lost its end"):
        append_at_last(log)
    other = KafkaLog(cluster.bootstrap, "unsafe")
    while append_at_last(other) < 4:
        pass
    with pytest.raises(Halted, match="not what was read there before"):
        read_at_last(reader)
    for one in (log, reader, other):
        one.close()


def append_at_last(log: KafkaLog) -> int:
    """Append as soon as Kafka takes it."""
    while True:
        with suppress(EngineUnavailable):
            return log.append_if(BEGIN, [b"after"], BEGIN) or 0


def read_at_last(log: KafkaLog) -> None:
    """Read on as soon as Kafka answers."""
    while True:
        with suppress(EngineUnavailable):
            log.read(3, ALL)
            return
