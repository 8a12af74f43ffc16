"""Kill the leader of a real cluster during every change of a topic, and compare the answers with the outcome.

    TIDEWHEEL_LONG=1 .venv/bin/python -m pytest tests/endurance/test_cluster_topics.py --rounds 20 -s

The nodes (`--nodes 3`) share a log in a real PostgreSQL. In each round the leader is killed (SIGKILL) eight
times: during a hold, while timers become due during the hold, during the release, while the release delivers
at its pace, and during a purge, a deletion, an alteration, and a task that moves messages. The call goes to
any node. The killed node is started again after another node has taken over. Meanwhile timers are set without
interruption.

1. A timer whose setting was confirmed is delivered exactly once. If its setting was not confirmed, it is
   delivered at most once. No timer is delivered before it is due.
2. From the confirmation of a hold to the request of its release, no timer of the topic is delivered.
3. A verb that was confirmed has taken effect on the next leader. A verb that was not confirmed has taken
   effect entirely or not at all. The repeated verb completes.
4. A moved message is in its new topic exactly once, although the task ended with its leader.

Prints a line of JSON with the number of timers and kills, the violations, and the takeover times.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

import httpx
import pytest

from tests.command import tidewheel
from tests.endurance.client_processes import stored
from tests.endurance.cluster_node import Node
from tests.postgresql import running_servers

LEAD_SECONDS: Final = 60.0
DELIVER_SECONDS: Final = 60.0
CALL_SECONDS: Final = 8.0
HELD, FREE, PURGED, DELETED, ALTERED, SOURCE, TARGET = (
    "held",
    "free",
    "purged",
    "deleted",
    "altered",
    "m",
    "n",
)
TIMERS_AT_ONCE, TIMERS_OF_A_HOLD, PER_SECOND, MESSAGES = 5, 120, 40, 40
QUIET_SECONDS: Final = 3.0
"""How long no timer may arrive until all timers have arrived, so that a duplicate is seen."""

pytestmark = pytest.mark.skipif("TIDEWHEEL_LONG" not in os.environ, reason="kills: make test-cluster")


class Timers:
    """The timers that were set: their due times, and which of them were confirmed."""

    def __init__(self) -> None:
        self.due_ms: dict[str, int] = {}
        self.confirmed: set[str] = set()
        self.topics: dict[str, str] = {}

    def batch(self, topic: str, count: int, from_ms: int, until_ms: int, chance: random.Random) -> list[Any]:
        """Return the bodies of new timers that are due at random times in a window."""
        timers = []
        for _ in range(count):
            key = f"k{len(self.due_ms)}"
            self.due_ms[key], self.topics[key] = chance.randrange(from_ms, until_ms), topic
            timers.append({"topic": topic, "body": key, "timer_key": key, "at": str(self.due_ms[key])})
        return timers


class Play:
    """A cluster, its clients, and what they were told."""

    def __init__(self, nodes: list[Node], seed: int) -> None:
        self.nodes, self.chance = nodes, random.Random(seed)
        self.timers, self.holds = Timers(), list[tuple[int, int]]()
        self.kills, self.outcomes = 0, Counter[str]()
        self.takeover_seconds: list[float] = []
        self.moved: set[str] = set()
        self.most_per_second = 0
        self._number = 0
        self._is_over = Event()

    # Calls.

    def once(self, node: Node, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Call a node once, and return the status and the answer. A status of 0 means that none came."""
        try:
            answer = httpx.request(method, f"http://{node.http}/api/{path}", json=body, timeout=CALL_SECONDS)
        except httpx.HTTPError:
            return 0, None
        return answer.status_code, answer.json() if answer.content else None

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Call the nodes in turn until one of them answers other than 5xx."""
        ends = time.monotonic() + LEAD_SECONDS
        while time.monotonic() < ends:
            for node in self.nodes:
                status, answer = self.once(node, method, path, body)
                if status and status < 500:
                    return status, answer
            time.sleep(0.05)
        logs = "\n".join(node.log()[-3_000:] for node in self.nodes)
        raise AssertionError(f"no node answers {method} {path}: {logs}")

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Call until the request is accepted."""
        status, answer = self.call(method, path, body)
        assert status < 300, (method, path, status, answer)
        return answer

    def leader(self) -> Node:
        """Return the leader once there is one and every other node follows it."""
        ends = time.monotonic() + LEAD_SECONDS
        while time.monotonic() < ends:
            roles = [node.role() for node in self.nodes]
            if sorted(roles) == sorted(["leading"] + ["following"] * (len(roles) - 1)):
                return self.nodes[roles.index("leading")]
            assert "halted" not in roles, [node.view() for node in self.nodes]
            time.sleep(0.1)
        raise AssertionError([node.view() for node in self.nodes])

    def bodies(self, topic: str) -> list[str]:
        """Return the bodies of the messages of a topic."""
        return [one["body"] for one in self.all_of(topic)]

    def all_of(self, topic: str) -> list[dict[str, Any]]:
        """Return the messages of a topic, as the leader has them."""
        ends = time.monotonic() + LEAD_SECONDS
        while True:
            try:
                with httpx.Client(base_url=f"http://{self.leader().http}", timeout=CALL_SECONDS) as http:
                    return stored(http, topic)
            except (httpx.HTTPError, KeyError):
                assert time.monotonic() < ends, f"{topic} cannot be read"

    # Kills.

    def kill_during(self, act: Callable[[Node], tuple[int, Any]], latest_seconds: float = 0.2) -> int:
        """Kill the leader during a call, wait for the next leader, and return the status of the call."""
        leader, told = self.leader(), list[int]()
        node = self.chance.choice(self.nodes)
        caller = Thread(target=lambda: told.append(act(node)[0]))
        caller.start()
        time.sleep(self.chance.uniform(0.0, latest_seconds))
        self.kill(leader)
        caller.join()
        return told[0] if told[0] < 500 else 0

    def kill(self, leader: Node) -> None:
        """Kill the leader, measure how long no node accepts a message, and start the node again."""
        leader.kill()
        self.kills += 1
        began = time.monotonic()
        others = [node for node in self.nodes if node is not leader]
        self._number += 1
        probe = {"topic": "probe", "body": str(self._number)}
        while all(self.once(node, "POST", "messages", probe)[0] != 201 for node in others):
            assert time.monotonic() < began + LEAD_SECONDS, [node.view() for node in others]
        self.takeover_seconds.append(time.monotonic() - began)
        leader.start()

    def told(self, verb: str, status: int) -> bool:
        """Count the outcome of a verb, and return whether it was confirmed."""
        outcome = "confirmed" if 200 <= status < 300 else "unknown" if not status else f"refused {status}"
        self.outcomes[f"{verb}: {outcome}"] += 1
        return outcome == "confirmed"

    # Timers.

    @contextmanager
    def steady_timers(self) -> Iterator[None]:
        """Set timers of a topic that is never held, until the block ends."""

        def go_on() -> None:
            chance = random.Random(1)
            while not self._is_over.is_set():
                self.set_timers(FREE, TIMERS_AT_ONCE, 200, 4_000, chance)
                time.sleep(0.1)

        setter = Thread(target=go_on)
        setter.start()
        try:
            yield
        finally:
            self._is_over.set()
            setter.join()

    def set_timers(self, topic: str, count: int, after_ms: int, until_ms: int, chance: random.Random) -> None:
        """Set timers in one call, and note which of them were confirmed."""
        now = now_ms()
        timers = self.timers.batch(topic, count, now + after_ms, now + until_ms, chance)
        status, answer = self.once(chance.choice(self.nodes), "POST", "timers", {"timers": timers})
        if status == 200:
            told = zip(timers, answer["timers"], strict=True)
            self.timers.confirmed |= {one["timer_key"] for one, receipt in told if "message_id" in receipt}

    # The changes.

    def hold_and_release(self) -> None:
        """Hold a topic, let its timers become due, release them at a pace; the leader is killed in each."""
        self.leader()
        first = len(self.timers.due_ms)
        for _ in range(3):
            self.set_timers(HELD, TIMERS_OF_A_HOLD // 3, 8_000, 18_000, self.chance)
        status = self.kill_during(
            lambda node: self.once(node, "POST", f"topics/{HELD}/hold", {"reason": "r"})
        )
        is_told = self.told("hold", status)
        is_held = self.ask("GET", f"topics/{HELD}")["hold"] is not None
        assert is_held or not is_told, "a confirmed hold is gone"
        if not is_held:
            self.ask("POST", f"topics/{HELD}/hold", {"reason": "again"})
        held_ms = now_ms()
        self.set_timers(HELD, TIMERS_OF_A_HOLD // 3, 100, 8_000, self.chance)
        mine = {key for key, topic in self.timers.topics.items() if topic == HELD and int(key[1:]) >= first}
        due_ms = max(self.timers.due_ms[key] for key in mine)
        time.sleep(max(0.0, (due_ms - now_ms()) / 2000))
        self.kill(self.leader())
        time.sleep(max(0.0, (due_ms - now_ms()) / 1000 + 0.5))
        delivered = {one["body"] for one in self.all_of(HELD)}
        pending = (mine & self.timers.confirmed) - delivered
        held = self.ask("GET", f"topics/{HELD}")["hold"]
        assert held is not None
        assert int(held["held"]) >= len(pending), (held, len(pending))
        release_ms = now_ms()
        self.holds.append((held_ms, release_ms))
        order = {"per_second": PER_SECOND}
        status = self.kill_during(lambda node: self.once(node, "POST", f"topics/{HELD}/release", order))
        is_told = self.told("release", status)
        shown = self.ask("GET", f"topics/{HELD}")["hold"]
        is_released = shown is None or shown["per_second"] is not None
        assert is_released or not is_told, "a confirmed release is gone"
        if not is_released:
            self.ask("POST", f"topics/{HELD}/release", order)
        time.sleep(0.5)
        self.kill(self.leader())
        self._await(HELD, mine & self.timers.confirmed)
        self._note_pace(release_ms)

    def _await(self, topic: str, wanted: set[str]) -> None:
        ends = time.monotonic() + DELIVER_SECONDS
        while missing := wanted - set(self.bodies(topic)):
            assert time.monotonic() < ends, f"{len(missing)} timers of {topic} are not delivered: {missing}"
            time.sleep(0.3)

    def _note_pace(self, release_ms: int) -> None:
        """Note the most timers of a hold that were delivered within a second."""
        late = [
            int(one["store_ms"])
            for one in self.all_of(HELD)
            if int(one["store_ms"]) >= release_ms and self.timers.due_ms[one["body"]] < release_ms
        ]
        for first in late:
            count = sum(first <= at < first + 1_000 for at in late)
            self.most_per_second = max(self.most_per_second, count)

    def send(self, topic: str, count: int) -> list[str]:
        """Send messages until all are confirmed, and return their bodies."""
        bodies = []
        for _ in range(count):
            self._number += 1
            bodies.append(f"b{self._number}")
        messages = [{"topic": topic, "body": one, "idempotency_key": one} for one in bodies]
        answer = self.ask("POST", "messages", {"messages": messages})
        assert all("message_id" in one for one in answer["messages"]), answer
        return bodies

    def purge(self) -> None:
        """Purge a topic."""
        self.send(PURGED, MESSAGES)
        before = self.bodies(PURGED)
        status = self.kill_during(
            lambda node: self.once(node, "POST", f"topics/{PURGED}/purge", {"discard": True})
        )
        is_told, left = self.told("purge", status), self.bodies(PURGED)
        assert left in ([], before), "a purge took place in part"
        assert not left or not is_told, "a confirmed purge is undone"
        if left:
            self.ask("POST", f"topics/{PURGED}/purge", {"discard": True})
        after = self.send(PURGED, 5)
        assert sorted(self.bodies(PURGED)) == sorted(after)

    def delete(self) -> None:
        """Delete a topic, and create it again."""
        self.ask("POST", "topics", {"name": DELETED, "queue_count": 2})
        self.send(DELETED, MESSAGES)
        before = sorted(self.bodies(DELETED))
        status = self.kill_during(lambda node: self.once(node, "DELETE", f"topics/{DELETED}?discard=true"))
        is_told = self.told("delete", status)
        status, _ = self.call("GET", f"topics/{DELETED}")
        assert status == 404 or not is_told, "a confirmed deletion is undone"
        if status != 404:
            assert sorted(self.bodies(DELETED)) == before, "a deletion took place in part"
            self.ask("DELETE", f"topics/{DELETED}?discard=true")
        self.ask("POST", "topics", {"name": DELETED, "queue_count": 2})
        after = self.send(DELETED, 5)
        assert sorted(self.bodies(DELETED)) == sorted(after)

    def alter(self) -> None:
        """Add a queue to a topic, and change its retention."""
        shown = self.ask("GET", f"topics/{ALTERED}")
        old = shown["queue_count"], shown.get("retention_ms")
        new = old[0] + 1, str(3_600_000 * (1 + old[0]))
        order = {"queue_count": new[0], "retention": f"{1 + old[0]}h"}
        status = self.kill_during(lambda node: self.once(node, "PUT", f"topics/{ALTERED}", order))
        is_told, shown = self.told("alter", status), self.ask("GET", f"topics/{ALTERED}")
        is_new = (shown["queue_count"], shown.get("retention_ms")) == new
        assert is_new or (shown["queue_count"], shown.get("retention_ms")) == old, (old, new, shown)
        assert is_new or not is_told, "a confirmed alteration is undone"
        self.ask("PUT", f"topics/{ALTERED}", order)
        shown = self.ask("GET", f"topics/{ALTERED}")
        assert (shown["queue_count"], shown["retention_ms"]) == new

    def move(self) -> None:
        """Move messages to another topic by a task, which ends with its leader and is started again."""
        sent = set(self.send(SOURCE, MESSAGES))
        order = {"source": SOURCE, "target": TARGET, "rate_per_second": 100}
        status = self.kill_during(lambda node: self.once(node, "POST", "moves/tasks", order), 0.4)
        self.told("move", status)
        ends = time.monotonic() + DELIVER_SECONDS
        while self.ask("POST", "moves/tasks", order | {"dry_run": True})["matched"]:
            assert time.monotonic() < ends, "messages are not moved"
            task = self.ask("POST", "moves/tasks", order | {"rate_per_second": 0})
            while self.ask("GET", f"moves/tasks/{task['id']}")["state"] == "RUNNING":
                time.sleep(0.1)
        self.moved |= sent
        twice = [body for body, count in Counter(self.bodies(TARGET)).items() if count > 1]
        assert not twice, f"moved twice: {twice}"
        assert set(self.bodies(TARGET)) == self.moved

    # The judgement.

    def judge(self) -> dict[str, Any]:
        """Wait until all timers have come, and return the figures."""
        for topic in (HELD, FREE):
            self._await(topic, {key for key in self.timers.confirmed if self.timers.topics[key] == topic})
        time.sleep(QUIET_SECONDS)
        came = {topic: self.all_of(topic) for topic in (HELD, FREE)}
        count = Counter(one["body"] for found in came.values() for one in found)
        early = [
            one["body"]
            for found in came.values()
            for one in found
            if int(one["store_ms"]) < self.timers.due_ms[one["body"]]
        ]
        while_held = [
            one["body"]
            for one in came[HELD]
            if any(since < int(one["store_ms"]) < until for since, until in self.holds)
        ]
        seconds = sorted(self.takeover_seconds)
        return {
            "timers": len(self.timers.due_ms),
            "confirmed": len(self.timers.confirmed),
            "lost": len(self.timers.confirmed - count.keys()),
            "twice": sum(times > 1 for times in count.values()),
            "early": len(early),
            "while_held": len(while_held),
            "holds": len(self.holds),
            "moved": len(self.moved),
            "kills": self.kills,
            "outcomes": dict(sorted(self.outcomes.items())),
            "most_per_second": self.most_per_second,
            "takeover_seconds": {
                "p50": round(seconds[len(seconds) // 2], 2),
                "most": round(seconds[-1], 2),
            },
        }


def now_ms() -> int:
    """Return the time of this machine, which all nodes share."""
    return time.time_ns() // 1_000_000


def test_a_leader_is_killed_during_every_change_of_a_topic(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    option = request.config.getoption
    names = "abcde"[: option("--nodes")]
    with running_servers() as servers:
        url = servers.url
        assert tidewheel("cluster", "create", url, "--segment-bytes", 8 << 20).returncode == 0
        nodes = [Node(tmp_path, name, url) for name in names]
        try:
            for node in nodes:
                node.start()
            play = Play(nodes, option("--disk-seed"))
            play.leader()
            for topic in ("probe", HELD, FREE, PURGED, ALTERED, SOURCE, TARGET):
                play.ask("POST", "topics", {"name": topic, "queue_count": 2})
            for topic in (SOURCE, PURGED):
                play.ask("POST", "groups", {"name": "g", "topic": topic})
            with play.steady_timers():
                for _ in range(option("--rounds")):
                    play.hold_and_release()
                    for change in (play.purge, play.delete, play.alter, play.move):
                        change()
            figures = play.judge()
            print(json.dumps(figures))
            for node in nodes:
                assert "Traceback" not in node.log(), node.log()[-5_000:]
                assert node.stop() == 0
                verified = tidewheel("store", "verify", "--store", node.store)
                assert verified.returncode == 0, verified.stdout + verified.stderr
        finally:
            for node in nodes:
                node.end()
    assert [figures[name] for name in ("lost", "twice", "early", "while_held")] == [0, 0, 0, 0], figures
    assert figures["most_per_second"] <= 3 * PER_SECOND, figures
