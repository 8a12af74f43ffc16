"""Two nodes over a real PostgreSQL or Kafka, killed, paused, told to leave under load: no promise is broken.

    .venv/bin/python -m pytest tests/endurance/test_cluster_kill.py --rounds 50 -s [--engine postgresql2]

`postgresql2` waits with each commit for any one of two standbys. The engine's servers, too, are killed and
paused: the primary or a standby, any server of Kafka.
Nodes take checkpoints and trim the log all the time. In every tenth round the leader's disk is lost: it must
get the other one's copy. Clients talk to both nodes, whoever leads, and note what they are told
(`sick_load`); `histories` judges it at the end, and the checker by the engine's raw log, which is kept as it
comes. Prints JSON: its seed, and how long none was acknowledged after each fault.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from shutil import rmtree
from statistics import median
from typing import Any, Protocol
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from sharedlog import postgres
from tests.checker_process import judged_by_log, kept_log
from tests.command import tidewheel
from tests.endurance.conftest import BrokerProcess
from tests.endurance.sick_load import GROUP, Load
from tests.endurance.test_sick_disk import TOPICS
from tests.kafka_cluster import running_kafka
from tests.postgresql import running_servers

FAULTS = ("kill -9", "kill -9 of a follower", "pause", "SIGTERM", "kill -9 of both", "move")
LOST = "kill -9, and the disk is lost"
LOST_EACH = 10
"""In every round of so many the leader's disk is lost."""
KILL_OF_SERVER, PAUSE_OF_SERVER = "kill -9 of a server of the engine", "pause of a server of the engine"
JSON = {"Content-Type": "application/json"}
LEAD_SECONDS = 30.0
SETTLE_SECONDS = 60.0
OPTIONS = ("--invisible-ms-min", "500", "--attempts-max", "1000", "--housekeeping-ms", "500")


class Node(BrokerProcess):
    """A node of a cluster, as a process."""

    module = "tests.endurance.small_checkpoint_node"

    def __init__(self, folder: Path, name: str, cluster: str) -> None:
        super().__init__(folder / name, "--cluster", cluster, "--node", name, *OPTIONS)
        self.name = name

    def signal(self, number: int) -> None:
        """Send it a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def strike(self, fault: str) -> None:
        """Let a fault befall it."""
        if fault == "move":
            try:
                urlopen(Request(f"http://{self.http}/api/cluster/move", b"{}", JSON), timeout=30).close()
            except HTTPError as refused:  # the other one may be down still, or get a copy
                said = refused.read().decode()
                assert "leads again" in said or "no other node is known" in said, said
            return
        self.signal({"pause": signal.SIGSTOP, "SIGTERM": signal.SIGTERM}.get(fault, signal.SIGKILL))

    def mend(self, fault: str) -> None:
        """Let it go on, or start it again."""
        if fault == "pause":
            self.signal(signal.SIGCONT)
            return
        if fault == "move":
            return
        assert self.process is not None
        self.process.wait(20)
        if fault == LOST:
            rmtree(self.store)
        self.start()

    def end(self) -> None:
        """End it, if a failure has left it running."""
        if self.process is not None and self.process.poll() is None:
            self.kill()

    def role(self) -> str:
        """What it says that it does; empty if it does not answer."""
        return str(self.view().get("role", ""))

    def view(self) -> dict[str, Any]:
        """What it says of its cluster; nothing if it does not answer."""
        with suppress(OSError), urlopen(f"http://{self.http}/api/cluster", timeout=2) as answer:
            return dict(json.load(answer))
        return {}


class Server(Protocol):
    """A server of the engine, as a process."""

    def kill(self) -> None:
        """End it as `kill -9` does."""

    def start(self) -> None:
        """Start it again."""

    def pause(self) -> None:
        """Let it stand still."""

    def go_on(self) -> None:
        """Let it go on after a pause."""


class Stage:
    """The nodes, what befell them, and how long none was acknowledged."""

    def __init__(self, nodes: list[Node], servers: Sequence[Server], seed: int) -> None:
        self.nodes, self.servers, self.chance = nodes, servers, random.Random(seed)
        self._faults = (*FAULTS, KILL_OF_SERVER, PAUSE_OF_SERVER) if servers else FAULTS
        self._round = 0
        self.trimmed_below = 0
        self.counts: Counter[str] = Counter()
        self.silent_seconds: dict[str, list[float]] = {}

    async def leader(self) -> Node:
        """The node that leads, once one does."""
        ends = time.monotonic() + LEAD_SECONDS
        while time.monotonic() < ends:
            for node in self.nodes:
                if await asyncio.to_thread(node.role) == "leading":
                    return node
            await asyncio.sleep(0.1)
        raise AssertionError("no node leads:\n" + "\n".join(node.log()[-3_000:] for node in self.nodes))

    async def _both_have_copies(self, leader: Node) -> None:
        """Wait until both nodes have told of one: another disk may be lost then."""
        ends = time.monotonic() + LEAD_SECONDS
        while time.monotonic() < ends:
            view = await asyncio.to_thread(leader.view)
            ends_of = [one["end_offset"] for one in view.get("copies", {}).values()]
            if len(ends_of) == len(self.nodes) and None not in ends_of:
                self.trimmed_below = max(self.trimmed_below, view["trimmed_below"])
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"no second copy: {view}\n{leader.log()[-3_000:]}")

    async def strike(self, load: Load) -> None:
        """Let one fault happen, and end; note how long no send was acknowledged."""
        self._round += 1
        fault = self.chance.choice(self._faults)
        leader = await self.leader()
        if self._round % LOST_EACH == LOST_EACH - 1:
            fault = LOST
            await self._both_have_copies(leader)
        other = next(node for node in self.nodes if node is not leader)
        self.counts[fault] += 1
        began, acknowledged = time.monotonic(), load.history.outcomes["send ok"]
        mends: list[Callable[[], None]]
        if fault in (KILL_OF_SERVER, PAUSE_OF_SERVER):
            server = self.chance.choice(self.servers)
            strike, mend = (
                (server.kill, server.start) if fault == KILL_OF_SERVER else (server.pause, server.go_on)
            )
            await asyncio.to_thread(strike)
            mends = [mend]
        else:
            struck = {"kill -9 of a follower": [other], "kill -9 of both": self.nodes}.get(fault, [leader])
            for one in struck:
                await asyncio.to_thread(one.strike, fault)
            mends = [partial(one.mend, fault) for one in struck]
        await self._until_acknowledged(load, acknowledged, fault, began, mends)

    async def _until_acknowledged(
        self, load: Load, before: int, fault: str, began: float, mends: list[Callable[[], None]]
    ) -> None:
        starts = began + self.chance.uniform(0.1, 6.0)
        is_down, silent = True, 0.0
        while is_down or not silent:
            await asyncio.sleep(0.02)
            if not silent and load.history.outcomes["send ok"] > before + 20:
                silent = time.monotonic() - began
            if is_down and time.monotonic() > starts:
                for mend in mends:
                    await asyncio.to_thread(mend)
                is_down = False
            assert time.monotonic() < began + LEAD_SECONDS, f"none is acknowledged after {fault}"
        self.silent_seconds.setdefault(fault, []).append(silent)


def test_nothing_that_clients_were_told_is_broken_by_a_change_of_leaders(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHECKPOINT_RECORDS", "1000")
    monkeypatch.setattr(postgres, "PARTITION_RECORDS", 500)
    rounds, seed = request.config.getoption("--rounds"), request.config.getoption("--disk-seed")
    with shared_log(request.config.getoption("--engine")) as (url, servers):
        assert tidewheel("cluster", "create", url, "--segment-bytes", 8 << 20).returncode == 0
        nodes, log = [Node(tmp_path, name, url) for name in "ab"], tmp_path / "log.bin"
        try:
            with kept_log(url, log):
                stage, load = asyncio.run(play(nodes, servers, rounds, seed))
        finally:
            for node in nodes:
                node.end()
        code, report = judged_by_log(load.history.watcher.file, log)
        print(json.dumps({"checker": report}, indent=2))
        judge(stage, load, rounds, seed)
        assert code == 0


@contextmanager
def shared_log(engine: str) -> Iterator[tuple[str, Sequence[Server]]]:
    """Run an engine; gives the URL of a shared log in it, and its servers."""
    if engine.startswith("postgresql"):
        with running_servers(standbys=int(engine.removeprefix("postgresql") or 0)) as servers:
            yield servers.url, [servers.primary, *servers.standbys]
        return
    with running_kafka({"kafka": 1, "kafka3": 3}[engine]) as cluster:
        yield cluster.url("tidewheel"), cluster.nodes


async def play(nodes: list[Node], servers: Sequence[Server], rounds: int, seed: int) -> tuple[Stage, Load]:
    for node in nodes:
        node.start()
    stage = Stage(nodes, servers, seed)
    create_topics(await stage.leader())
    loads = [Load(node.listen, seed + number) for number, node in enumerate(nodes)]
    loads[1].history, loads[1]._count = loads[0].history, 1_000_000
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
    await settled(stage, loads[0])
    for load in loads:
        await load.close()
    assert [node.stop() for node in nodes] == [0, 0]
    loads[0].history.watcher.file.note("settled", group=GROUP, topics=list(TOPICS))
    return stage, loads[0]


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


def judge(stage: Stage, load: Load, rounds: int, seed: int) -> None:
    history = load.history
    wrong = history.violations()
    shown: dict[str, Any] = {
        "seed": seed,
        "rounds": rounds,
        "faults": dict(stage.counts),
        "trimmed_below": stage.trimmed_below,
        "copied": sum(node.log().count('"event": "copied"') for node in stage.nodes),
        "outcomes": dict(history.outcomes),
        "silent_seconds": {
            fault: {"p50": round(median(times), 2), "most": round(max(times), 2)}
            for fault, times in sorted(stage.silent_seconds.items())
        },
        "wrong": wrong[:20],
    }
    print(json.dumps(shown, indent=2))
    assert not wrong
    assert rounds < LOST_EACH or (shown["copied"] and shown["trimmed_below"])
    for node in stage.nodes:
        assert "Traceback" not in node.log(), node.log()[-5_000:]
        assert "halted" not in node.log(), node.log()[-5_000:]


def create_topics(node: Node) -> None:
    for name, kind in TOPICS.items():
        body = json.dumps({"name": name, "message_type": kind}).encode()
        urlopen(Request(f"http://{node.http}/api/topics", body, JSON)).close()
