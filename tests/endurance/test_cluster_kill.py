"""Two nodes over a real PostgreSQL or Kafka, under load and all of `cluster_faults`: no promise is broken.

    .venv/bin/python -m pytest tests/endurance/test_cluster_kill.py --rounds 200 -s [--engine postgresql2]

`postgresql2` waits with each commit for any one of two standbys. With `--hosts`, as root, each node and each
of the engine's servers runs on a host of its own, and these are cut off from each other and from clients,
also one way (`hosts`). `--fault cut` lets only those faults happen that have it in their names.

Nodes, the engine's servers and clients are killed and paused, disks fail and drop what was not synced, clocks
step, the lead is moved; in every tenth round the leader's disk is lost: it must get the other one's copy.
Nodes take checkpoints and trim the log all the time. Clients talk to both nodes, whoever leads, and note what
they are told (`sick_load`); `histories` judges it at the end, and the checker by the engine's raw log, which
is kept as it comes. Says each round as it ends, and prints JSON: its seed, how long none was acknowledged
after each fault, and how much came twice.

What came early is judged by the clock of the leader that delivered it: who judges is told from when to when
which node's clock was off, and by how much.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import sys
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from sharedlog import postgres
from tests.checker_process import KEEPER, judged_by_log, kept_log
from tests.command import tidewheel
from tests.endurance import sick_clock, sick_disk
from tests.endurance.carrier import Carrier
from tests.endurance.cluster_faults import FAULTS, LOST, Before, Scene, Server, chosen
from tests.endurance.cluster_node import JSON, Node
from tests.endurance.hosts import Hosts, running_hosts
from tests.endurance.sick_disk import NoCompiler
from tests.endurance.sick_load import GROUP, INVISIBLE_MS, PLAIN, Load
from tests.endurance.test_sick_disk import TOPICS
from tests.kafka_cluster import name_of_host, running_kafka
from tests.postgresql import names_of_servers, running_servers

NODES = ("a", "b")
SERVERS_OF_KAFKA = {"kafka": 1, "kafka3": 3}
LOST_EACH = 10
"""In every round of so many the leader's disk is lost."""
LEAD_SECONDS = 45.0
"""How long it may take at most until a node leads, and sends are acknowledged, once a fault has ended."""
SETTLE_SECONDS = 60.0
QUIET_SECONDS = 6.0
"""How long nothing may come until all that is due has come: longer than a lease of what got lost."""
ACKNOWLEDGED_MIN = 20
"""A round ends with so many sends that were acknowledged after its fault."""


class Stage:
    """The nodes, what befell them, and how long none was acknowledged."""

    def __init__(
        self,
        nodes: list[Node],
        servers: Sequence[Server],
        seed: int,
        carriers: Sequence[Carrier] = (),
        hosts: Hosts | None = None,
        wanted: str = "",
    ) -> None:
        self.nodes, self.servers, self.carriers, self.seed = nodes, servers, carriers, seed
        self._hosts = hosts
        self.chance = random.Random(seed)
        self.wanted = wanted
        """What the name of a fault must have in it."""
        self.trimmed_below = 0
        self.counts: Counter[str] = Counter()
        self.silent_seconds: dict[str, list[float]] = {}
        self._round = 0
        self._began = 0.0
        self._said = ""

    async def leader(self) -> Node:
        """The node that leads, once one does."""
        ends = time.monotonic() + LEAD_SECONDS
        while time.monotonic() < ends:
            for node in self.nodes:
                if await asyncio.to_thread(node.role) == "leading":
                    return node
            await asyncio.sleep(0.1)
        raise AssertionError("no node leads:\n" + "\n".join(node.log()[-3_000:] for node in self.nodes))

    async def _standing(self, before: Before) -> tuple[Node, Node]:
        """Return who leads and the other one, once what a fault needs stands: the lead may still move."""
        ends = time.monotonic() + LEAD_SECONDS
        while True:
            leader = await self.leader()
            other = next(node for node in self.nodes if node is not leader)
            if await asyncio.to_thread(self._is_met, before, leader, other):
                return leader, other
            said = f"{leader.view()}\n{leader.log()[-3_000:]}\n{other.log()[-3_000:]}"
            assert time.monotonic() < ends, f"not so: {before.value}: {said}"
            await asyncio.sleep(0.1)

    def _is_met(self, before: Before, leader: Node, other: Node) -> bool:
        follows = before is Before.LEADER or self._follows(other)
        return follows and (before is not Before.COPIES or self._both_have_copies(leader))

    def _follows(self, other: Node) -> bool:
        view = other.view()
        return view.get("role") == "following" and view["lag_records"] == 0

    def _both_have_copies(self, leader: Node) -> bool:
        """Whether both nodes have told of a copy: another disk may be lost then."""
        view = leader.view()
        ends_of = [one["end_offset"] for name, one in view.get("copies", {}).items() if name != KEEPER]
        self.trimmed_below = max(self.trimmed_below, view.get("trimmed_below", 0))
        return len(ends_of) == len(self.nodes) and None not in ends_of

    async def strike(self, load: Load) -> None:
        """Let one fault happen, and end; it is over when sends are acknowledged again."""
        await self.leader()
        self.note_silence(load)
        for node in self.nodes:
            assert node.runs(), f"{node.name} has ended by itself:\n{node.log()[-3_000:]}"
        self._round += 1
        name = LOST if self._round % LOST_EACH == LOST_EACH - 1 else self._chosen()
        fault = FAULTS[name]
        leader, other = await self._standing(fault.before)
        seconds = fault.seconds(self.chance)
        self._said, said = name, list[str]()
        self.counts[name] += 1
        scene = Scene(
            *(leader, other, self.nodes, self.servers, self.carriers, self.chance, said.append, load.stepped),
            self._hosts,
        )
        self._began = time.monotonic()
        mend = await asyncio.to_thread(fault.strike, scene)
        struck = time.monotonic()
        if fault.waits:
            await self._acknowledged(load, struck, name)
        await asyncio.sleep(max(0.0, self._began + seconds - time.monotonic()))
        await asyncio.to_thread(mend)
        await self._acknowledged(load, time.monotonic(), name)
        lasted = f"{time.monotonic() - self._began:.1f} s"
        say(f"seed {self.seed}, round {self._round}: {name} ({', '.join([*said, lasted])})")

    def _chosen(self) -> str:
        return chosen(self.chance, has_hosts=self._hosts is not None, wanted=self.wanted)

    async def _acknowledged(self, load: Load, since: float, fault: str) -> None:
        """Wait until sends were acknowledged since a moment."""
        times = load.history.acknowledged_sends_s
        while len(times) < ACKNOWLEDGED_MIN or times[-ACKNOWLEDGED_MIN] < since:
            logs = "\n".join(node.log()[-3_000:] for node in self.nodes)
            assert time.monotonic() < since + LEAD_SECONDS, f"none is acknowledged after {fault}:\n{logs}"
            await asyncio.sleep(0.02)

    def note_silence(self, load: Load) -> None:
        """Note the longest time from the last fault on in which no send was acknowledged."""
        if not self._said:
            return
        times = load.history.acknowledged_sends_s
        since = times[bisect_left(times, self._began) :]
        silent = max(later - before for before, later in pairwise([self._began, *since]))
        self.silent_seconds.setdefault(self._said, []).append(silent)
        say(f"  none was acknowledged for {silent:.2f} s")
        self._said = ""


def say(line: str) -> None:
    """Tell how far it is, at once: a run that is cut off has said so much."""
    print(line, file=sys.stderr, flush=True)


def test_nothing_that_clients_were_told_is_broken_by_a_change_of_leaders(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHECKPOINT_RECORDS", "1000")
    monkeypatch.setattr(postgres, "PARTITION_RECORDS", 500)
    option = request.config.getoption
    rounds, seed, engine = option("--rounds"), option("--disk-seed"), option("--engine")
    with hosts_of(engine, wanted=option("--hosts")) as hosts, shared_log(engine, hosts) as (url, servers):
        assert tidewheel("cluster", "create", url, "--segment-bytes", 8 << 20).returncode == 0
        try:
            libraries = sick_disk.build(tmp_path), sick_clock.build(tmp_path)
        except NoCompiler:
            pytest.skip("sick disks and clocks are C libraries, and there is no compiler")
        nodes = [Node(tmp_path, name, url, libraries, seed + at, hosts) for at, name in enumerate(NODES)]
        log = tmp_path / "log.bin"
        try:
            with kept_log(url, log):
                stage = Stage(nodes, servers, seed, (), hosts, option("--fault"))
                load = asyncio.run(play(stage, rounds))
        finally:
            for node in nodes:
                node.end()
        code, report = judged_by_log(load.history.watcher.file, log)
        print(json.dumps({"checker": report}, indent=2))
        judge(stage, load, rounds, seed)
        assert code == 0


@contextmanager
def hosts_of(engine: str, *, wanted: bool) -> Iterator[Hosts | None]:
    """Make a host for each node and each of the engine's servers, if that is wanted."""
    if not wanted:
        yield None
        return
    if engine.startswith("postgresql"):
        servers = names_of_servers(standbys_of(engine))
    else:
        servers = [name_of_host(number) for number in range(1, SERVERS_OF_KAFKA[engine] + 1)]
    with running_hosts(*NODES, *servers) as hosts:
        yield hosts


@contextmanager
def shared_log(engine: str, hosts: Hosts | None = None) -> Iterator[tuple[str, Sequence[Server]]]:
    """Run an engine; gives the URL of a shared log in it, and its servers."""
    if engine.startswith("postgresql"):
        with running_servers(standbys=standbys_of(engine), hosts=hosts) as servers:
            yield servers.url, [servers.primary, *servers.standbys]
        return
    with running_kafka(SERVERS_OF_KAFKA[engine], hosts=hosts) as cluster:
        yield cluster.url("tidewheel"), cluster.nodes


def standbys_of(engine: str) -> int:
    """Return how many standbys a PostgreSQL has, by the engine's name."""
    return int(engine.removeprefix("postgresql") or 0)


async def play(stage: Stage, rounds: int) -> Load:
    for node in stage.nodes:
        node.start()
    stage.carriers = [Carrier(node.listen) for node in stage.nodes]
    try:
        for one in stage.carriers:
            one.start()
        return await play_with(stage, rounds)
    finally:
        for one in stage.carriers:
            one.kill()


async def play_with(stage: Stage, rounds: int) -> Load:
    create_topics(await stage.leader())
    loads = [Load(one.listen, stage.seed + number) for number, one in enumerate(stage.carriers)]
    loads[1].history, loads[1]._count = loads[0].history, 1_000_000
    for load in loads:
        load.halves_run_out = True
    steps = [loads[0].senders(), loads[1].senders()[:7], *(load.receivers() for load in loads)]
    work = [
        asyncio.create_task(loads[number % 2].go_on(step))
        for number, many in enumerate(steps)
        for step in many
    ]
    for _ in range(rounds):
        await asyncio.sleep(stage.chance.uniform(0.5, 2.0))
        await stage.strike(loads[0])
    for load in loads:
        load.is_late = load.is_over = True
    await asyncio.gather(*work)
    await stage.leader()
    stage.note_silence(loads[0])
    await settled(stage, loads[0])
    for load in loads:
        await load.close()
    assert [node.stop() for node in stage.nodes] == [0, 0]
    loads[0].history.watcher.file.note("settled", group=GROUP, topics=list(TOPICS))
    return loads[0]


async def settled(stage: Stage, load: Load) -> None:
    """Wait until all that must come has come, or nothing more comes.

    There may be thousands: of a message group one comes at a time, more slowly on a busy machine.
    """
    await stage.leader()
    load.acknowledged_share = 1.0
    fewest, came = math.inf, time.monotonic()
    while (missing := load.history.missing()) and time.monotonic() < came + SETTLE_SECONDS:
        if len(missing) < fewest:
            fewest, came = len(missing), time.monotonic()
        for topic in {load.history.sent[one].topic for one in missing}:
            await load.receive(topic, 0.2)
    # What nobody was told of may be stored all the same, as late as the fault ended: the log tells.
    due_ms = max((one.due_ms for one in load.history.sent.values()), default=0)
    came = time.time()
    while time.time() < max(came, due_ms / 1000) + QUIET_SECONDS:
        counts = [await load.receive(topic, 0.2) for topic in TOPICS]
        came = time.time() if any(counts) else came


def judge(stage: Stage, load: Load, rounds: int, seed: int) -> None:
    history = load.history
    wrong = history.violations()
    shown: dict[str, Any] = {
        "seed": seed,
        "rounds": rounds,
        "faults": dict(stage.counts),
        "disks": {node.name: node.disk.counters() for node in stage.nodes},
        "trimmed_below": stage.trimmed_below,
        "copied": sum(node.log().count('"event": "copied"') for node in stage.nodes),
        "outcomes": dict(history.outcomes),
        "silent_seconds": {
            "over all": figures([one for times in stage.silent_seconds.values() for one in times]),
            **{fault: figures(times) for fault, times in sorted(stage.silent_seconds.items())},
        },
        "plain": history.came_twice(PLAIN, INVISIBLE_MS),
        "wrong": wrong[:20],
    }
    print(json.dumps(shown, indent=2))
    assert not wrong
    assert rounds < LOST_EACH or (shown["copied"] and shown["trimmed_below"])
    for node in stage.nodes:
        for sign in ("Traceback", "was never", "generator already", "halted"):
            told = [line for line in node.log().splitlines() if sign in line]
            assert not told, told[:5]


def figures(seconds: Sequence[float]) -> dict[str, float]:
    """Return how many times there are, the one in the middle, the 99th of a hundred and the longest."""
    ordered = sorted(seconds)
    ranks = {"p50": ordered[len(ordered) // 2], "p99": ordered[ceil(0.99 * len(ordered)) - 1]}
    return {"count": len(ordered)} | {
        name: round(one, 2) for name, one in (ranks | {"most": ordered[-1]}).items()
    }


def create_topics(node: Node) -> None:
    for name, kind in TOPICS.items():
        body = json.dumps({"name": name, "message_type": kind}).encode()
        urlopen(Request(f"http://{node.http}/api/topics", body, JSON)).close()
