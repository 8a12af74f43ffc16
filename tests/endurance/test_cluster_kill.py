"""Nodes over a real PostgreSQL or Kafka, under load and all of `cluster_faults`: no promise is broken.

    .venv/bin/python -m pytest tests/endurance/test_cluster_kill.py --rounds 200 -s [--engine postgresql2]

    --nodes 3            so many nodes; one more comes and is forgotten as a fault
    --clients 2          so many processes of clients, each with hash and map seeds of its own
    --checkpoints both   small: nodes take checkpoints all the time; plain: they are what an operator starts,
                         with production's intervals; both: they are started as the one or the other in turn

`postgresql2` waits with each commit for any one of two standbys. With `--hosts`, as root, each node and each
of the engine's servers runs on a host of its own, and these are cut off from each other and from clients,
also one way (`hosts`). `--fault cut` lets only those faults happen that have it in their names.

Nodes, the engine's servers and clients are killed and paused, disks fail and drop what was not synced, clocks
step, the lead is moved; in every tenth round the leader's disk is lost: it must get the other one's copy.
Clients (`client_process`) talk to all nodes, whoever leads; each message has up to 6 properties, whose order
changes when it is sent again. An official client (`official_process`) leaves halves to check-backs, and has
message groups of its own. All note what they are told in one file (`reading`); `histories` judges it at the
end, and the checker by the engine's raw log, which is kept as it comes.

Between two faults there is calm: it lasts until everything that waited when it began has gone on
(`checker/progress`: check-backs, message groups, sends), 48 s at most; the checker finds what took over 45 s.

Prints a line of JSON for each round as it ends, and for the run: its seed, faults, how long none was
acknowledged after each fault, how long things waited in calms, and how much came twice.

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from math import ceil
from pathlib import Path
from subprocess import Popen
from typing import Any
from urllib.request import Request, urlopen

import pytest

from sharedlog import postgres
from tests.checker.progress import CLIENTS, LATE_MS
from tests.checker_process import KEEPER, judged, kept_log
from tests.command import tidewheel
from tests.endurance import sick_clock, sick_disk
from tests.endurance.carrier import Carrier
from tests.endurance.client_process import OFFICIAL, ended, started, started_module
from tests.endurance.cluster_faults import EXTRA, FAULTS, LOST, Before, Scene, Server, chosen, is_caught_up
from tests.endurance.cluster_node import JSON, PLAIN_CHECKPOINTS, SMALL_CHECKPOINTS, Node
from tests.endurance.histories import History
from tests.endurance.hosts import Hosts, running_hosts
from tests.endurance.reading import Reading
from tests.endurance.sick_disk import NoCompiler
from tests.endurance.sick_load import GROUP, INVISIBLE_MS, PLAIN, Load
from tests.endurance.test_sick_disk import TOPICS
from tests.endurance.watching import Watcher
from tests.kafka_cluster import name_of_host, running_kafka
from tests.postgresql import names_of_servers, running_servers

NAMES = "abcde"
PROGRAMS = {
    "small": [SMALL_CHECKPOINTS],
    "plain": [PLAIN_CHECKPOINTS],
    "both": [PLAIN_CHECKPOINTS, SMALL_CHECKPOINTS],
}
SERVERS_OF_KAFKA = {"kafka": 1, "kafka3": 3}
ROUNDS_MIN = 4
LOST_EACH = 10
"""In every round of so many the leader's disk is lost."""
LEAD_SECONDS = 45.0
"""How long it may take at most until a node leads, and sends are acknowledged, once a fault has ended."""
SETTLE_SECONDS = 60.0
MARGIN_MS = 3_000
"""How much longer than that may be a calm goes on before what waits is given up."""
QUIET_SECONDS = 6.0
"""How long nothing may come until all that is due has come: longer than a lease of what got lost."""
ACKNOWLEDGED_MIN = 20
"""A round ends with so many sends that were acknowledged after its fault."""


async def leader_of(nodes: Sequence[Node]) -> Node:
    """The node that leads, once one does."""
    ends = time.monotonic() + LEAD_SECONDS
    while time.monotonic() < ends:
        for node in nodes:
            if await asyncio.to_thread(node.role) == "leading":
                return node
        await asyncio.sleep(0.1)
    raise AssertionError("no node leads:\n" + "\n".join(node.log()[-3_000:] for node in nodes))


class Stage:
    """The nodes, what befell them, and how long none was acknowledged."""

    def __init__(
        self,
        nodes: list[Node],
        add: Callable[[], Node],
        servers: Sequence[Server],
        reading: Reading,
        seed: int,
        carriers: Sequence[Carrier] = (),
        hosts: Hosts | None = None,
        wanted: str = "",
        checkpoints: str = "small",
    ) -> None:
        self.nodes, self.servers, self.carriers, self.seed = nodes, servers, carriers, seed
        self._hosts, self._add = hosts, add
        self.chance = random.Random(seed)
        self.reading = reading
        self.wanted = wanted
        """What the name of a fault must have in it."""
        self.modules = PROGRAMS[checkpoints]
        """What nodes are started as, in turn."""
        self.told: dict[str, Any] = {}
        """What a round has to say."""
        self.trimmed_below = 0
        self.counts: Counter[str] = Counter()
        self.silent_seconds: dict[str, list[float]] = {}
        self._round = 0
        self._began = 0.0
        self._said = ""

    async def leader(self) -> Node:
        """The node that leads, once one does."""
        return await leader_of(self.nodes)

    async def _standing(self, before: Before) -> tuple[Node, Node]:
        """Return who leads and the other one, once what a fault needs stands: the lead may still move."""
        ends = time.monotonic() + LEAD_SECONDS
        while True:
            leader = await self.leader()
            other = self.chance.choice([node for node in self.nodes if node is not leader])
            if await asyncio.to_thread(self._is_met, before, leader, other):
                return leader, other
            said = f"{leader.view()}\n{leader.log()[-3_000:]}\n{other.log()[-3_000:]}"
            assert time.monotonic() < ends, f"not so: {before.value}: {said}"
            await asyncio.sleep(0.1)

    def _is_met(self, before: Before, leader: Node, other: Node) -> bool:
        follows = before is Before.LEADER or is_caught_up(other)
        return follows and (before is not Before.COPIES or self._disk_may_be_lost(leader))

    def _disk_may_be_lost(self, leader: Node) -> bool:
        """Whether all nodes have told of a copy, or the log, all of it, is one."""
        view = leader.view()
        ends_of = [one["end_offset"] for name, one in view.get("copies", {}).items() if name != KEEPER]
        self.trimmed_below = max(self.trimmed_below, view.get("trimmed_below", 0))
        is_whole = view.get("trimmed_below") == 0
        return is_whole or (len(ends_of) >= len(self.nodes) and None not in ends_of)

    async def strike(self) -> None:
        """Let one fault happen, and end; it is over when sends are acknowledged again, and all goes on."""
        await self.leader()
        for node in self.nodes:
            assert node.runs(), f"{node.name} has ended by itself:\n{node.log()[-3_000:]}"
        self._round += 1
        for node in self.nodes:
            node.module = self.modules[self._round % len(self.modules)]
        name = LOST if self._round % LOST_EACH == LOST_EACH - 1 else self._chosen()
        fault = FAULTS[name]
        leader, other = await self._standing(fault.before)
        self.be_calm(is_calm=False)
        self.note_silence()
        seconds = fault.seconds(self.chance)
        self._said, said = name, list[str]()
        self.counts[name] += 1
        scene = Scene(
            *(
                leader,
                other,
                self.nodes,
                self.servers,
                self.carriers,
                self.chance,
                said.append,
                self._stepped,
            ),
            *(self._add, self._hosts),
        )
        self._began = time.monotonic()
        mend = await asyncio.to_thread(fault.strike, scene)
        struck = time.monotonic()
        if fault.waits:
            await self._acknowledged(struck, name)
        await asyncio.sleep(max(0.0, self._began + seconds - time.monotonic()))
        await asyncio.to_thread(mend)
        await self._acknowledged(time.monotonic(), name)
        lasted = round(time.monotonic() - self._began, 1)
        self.told = {"seed": self.seed, "round": self._round, "fault": name, "said": said, "seconds": lasted}
        self.told |= {"as": self.modules[self._round % len(self.modules)], "progress": await self._gone_on()}

    def _stepped(self, node: str, offset_ms: int) -> None:
        self.reading.history.stepped(node, offset_ms, now_ms())

    def be_calm(self, *, is_calm: bool) -> None:
        """Note that from here on no fault lasts, or one does."""
        self.reading.history.watcher.file.note("calm", is_calm=is_calm, time_ms=now_ms())
        self.reading.read()

    async def _gone_on(self) -> dict[str, Any]:
        """Wait until all has gone on that waits as a calm begins; return what is to be told of it."""
        leader = await self.leader()
        began_ms, waiting = now_ms(), self.reading.waiting
        self.be_calm(is_calm=True)
        while pending := waiting.pending(now_ms(), began_ms):
            if now_ms() - began_ms > LATE_MS + MARGIN_MS:
                break
            await asyncio.sleep(0.2)
            self.reading.read()
        took = round((now_ms() - began_ms) / 1000, 1)
        late = [f"{' '.join(of)}: {ms} ms" for of, ms in pending.items()]
        view = await asyncio.to_thread(leader.view)
        return {"took_seconds": took, "late": late[:10], "broker": view.get("progress")}

    def _chosen(self) -> str:
        return chosen(self.chance, has_hosts=self._hosts is not None, wanted=self.wanted)

    async def _acknowledged(self, since: float, fault: str) -> None:
        """Wait until sends were acknowledged since a moment."""
        times = self.reading.history.acknowledged_sends_s
        while len(times) < ACKNOWLEDGED_MIN or times[-ACKNOWLEDGED_MIN] < since:
            logs = "\n".join(node.log()[-3_000:] for node in self.nodes)
            assert time.monotonic() < since + LEAD_SECONDS, f"none is acknowledged after {fault}:\n{logs}"
            await asyncio.sleep(0.05)
            self.reading.read()

    def note_silence(self) -> None:
        """Print the round: the time without an acknowledged send is known now."""
        if not self._said:
            return
        times = self.reading.history.acknowledged_sends_s
        since = times[bisect_left(times, self._began) :]
        silent = max(later - before for before, later in pairwise([self._began, *since]))
        self.silent_seconds.setdefault(self._said, []).append(silent)
        round_seconds = round(time.monotonic() - self._began, 1)
        say(self.told | {"silent_seconds": round(silent, 2), "round_seconds": round_seconds})
        self._said = ""


def say(told: dict[str, Any]) -> None:
    """Tell how far it is, at once: a run that is cut off has said so much."""
    print(json.dumps(told, ensure_ascii=False), file=sys.stderr, flush=True)


def now_ms() -> int:
    """Return wall time in ms since 1970."""
    return time.time_ns() // 1_000_000


def test_nothing_that_clients_were_told_is_broken_by_a_change_of_leaders(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHECKPOINT_RECORDS", "1000")
    monkeypatch.setattr(postgres, "PARTITION_RECORDS", 500)
    option = request.config.getoption
    rounds, seed, engine = option("--rounds"), option("--disk-seed"), option("--engine")
    if rounds < ROUNDS_MIN:
        pytest.skip(f"minutes: make test-cluster and make endurance, or --rounds {ROUNDS_MIN}")
    names = NAMES[: option("--nodes")]
    with (
        hosts_of(engine, names, wanted=option("--hosts")) as hosts,
        shared_log(engine, hosts) as (url, servers),
    ):
        assert tidewheel("cluster", "create", url, "--segment-bytes", 8 << 20).returncode == 0
        try:
            libraries = sick_disk.build(tmp_path), sick_clock.build(tmp_path)
        except NoCompiler:
            pytest.skip("sick disks and clocks are C libraries, and there is no compiler")
        made: dict[str, Node] = {}

        def add(name: str = EXTRA) -> Node:
            made[name] = Node(tmp_path, name, url, libraries, seed + len(made), hosts)
            return made[name]

        nodes, log = [add(name) for name in names], tmp_path / "log.bin"
        reading = Reading(tmp_path / "history.jsonl")
        try:
            with kept_log(url, log):
                stage = Stage(
                    *(nodes, add, servers, reading, seed, (), hosts, option("--fault")),
                    checkpoints=option("--checkpoints"),
                )
                asyncio.run(play(stage, rounds, option("--clients")))
        finally:
            for node in made.values():
                node.end()
        reading.read()
        code, report = judged(reading.path, log)
        print(json.dumps({"checker": report}, indent=2))
        judge(stage, rounds, option("--clients"))
        assert code == 0


@contextmanager
def hosts_of(engine: str, nodes: Sequence[str], *, wanted: bool) -> Iterator[Hosts | None]:
    """Make a host for each node and each of the engine's servers, if that is wanted."""
    if not wanted:
        yield None
        return
    if engine.startswith("postgresql"):
        servers = names_of_servers(standbys_of(engine))
    else:
        servers = [name_of_host(number) for number in range(1, SERVERS_OF_KAFKA[engine] + 1)]
    with running_hosts(*nodes, EXTRA, *servers) as hosts:
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


async def play(stage: Stage, rounds: int, clients: int) -> None:
    for node in stage.nodes:
        node.module = stage.modules[0]
        node.start()
    stage.carriers = [Carrier(node.listen) for node in stage.nodes]
    processes: list[Popen[str]] = []
    try:
        for one in stage.carriers:
            one.start()
        create_topics(await stage.leader())
        addresses = [one.listen for one in stage.carriers]
        path = stage.reading.path
        for number in range(1, clients + 1):
            turned = [*addresses[number - 1 :], *addresses[: number - 1]]
            processes.append(started(number, stage.seed, path, turned))
        words = [str(clients + 1), str(path), ";".join(addresses)]
        processes.append(started_module("official_process", words, hash_seed=stage.seed))
        await play_with(stage, rounds, processes)
    finally:
        for process in processes:
            process.kill()
        for one in stage.carriers:
            one.kill()


async def play_with(stage: Stage, rounds: int, processes: Sequence[Popen[str]]) -> None:
    for _ in range(rounds):
        await asyncio.sleep(stage.chance.uniform(0.5, 2.0))
        stage.reading.read()
        assert all(one.poll() is None for one in processes), "a process of clients has ended by itself"
        await stage.strike()
    await stage.leader()
    stage.be_calm(is_calm=False)
    stage.note_silence()
    for process in processes:
        await asyncio.to_thread(ended, process)
    stage.reading.read()
    file = stage.reading.history.watcher.file
    load = Load(stage.carriers[0].listen, stage.seed, History(watcher=Watcher(file)))
    await settled(stage, load)
    await load.close()
    assert [node.stop() for node in stage.nodes] == [0] * len(stage.nodes)
    file.note("settled", group=GROUP, topics=list(TOPICS))


async def settled(stage: Stage, load: Load) -> None:
    """Wait until all that must come has come, or nothing more comes.

    There may be thousands: of a message group one comes at a time, more slowly on a busy machine.
    """
    await stage.leader()
    load.acknowledged_share = 1.0
    load.groups[OFFICIAL] = OFFICIAL  # another group would receive the message groups from their beginning
    fewest, came, history = math.inf, time.monotonic(), stage.reading.history
    while (missing := history.missing()) and time.monotonic() < came + SETTLE_SECONDS:
        if len(missing) < fewest:
            fewest, came = len(missing), time.monotonic()
        for topic in {history.sent[one].topic for one in missing}:
            await load.receive(topic, 0.2)
        stage.reading.read()
    # What nobody was told of may be stored all the same, as late as the fault ended: the log tells.
    due_ms = max((one.due_ms for one in history.sent.values()), default=0)
    came = time.time()
    while time.time() < max(came, due_ms / 1000) + QUIET_SECONDS:
        counts = [await load.receive(topic, 0.2) for topic in TOPICS]
        came = time.time() if any(counts) else came


def judge(stage: Stage, rounds: int, clients: int) -> None:
    history, waiting = stage.reading.history, stage.reading.waiting
    wrong = history.violations()
    shown: dict[str, Any] = {
        "seed": stage.seed,
        "rounds": rounds,
        "nodes": len(stage.nodes),
        "clients": clients,
        "programs": stage.modules,
        "faults": dict(stage.counts),
        "disks": {node.name: node.disk.counters() for node in stage.nodes},
        "trimmed_below": stage.trimmed_below,
        "copied": sum(node.log().count('"event": "copied"') for node in stage.nodes),
        "outcomes": dict(history.outcomes),
        "silent_seconds": {
            "over all": figures([one for times in stage.silent_seconds.values() for one in times]),
            **{fault: figures(times) for fault, times in sorted(stage.silent_seconds.items())},
        },
        "progress": {
            "late": len(waiting.late),
            "longest_ms": waiting.longest_ms,
            "calms": waiting.calm_count,
            "calm_seconds": waiting.calm_ms // 1000,
        },
        "plain": history.came_twice(PLAIN, INVISIBLE_MS),
        "wrong": wrong[:20],
    }
    print(json.dumps(shown, indent=2))
    assert not wrong
    assert waiting.longest_ms.keys() == {"half", "group", CLIENTS}, "in no calm has one of these gone on"
    assert {"check-back", "came to a push consumer"} <= history.outcomes.keys()
    is_small = stage.modules == [SMALL_CHECKPOINTS]
    assert rounds < LOST_EACH or not is_small or (shown["copied"] and shown["trimmed_below"])
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
    for name, kind in {**TOPICS, OFFICIAL: "FIFO"}.items():
        body = json.dumps({"name": name, "message_type": kind}).encode()
        urlopen(Request(f"http://{node.http}/api/topics", body, JSON)).close()
