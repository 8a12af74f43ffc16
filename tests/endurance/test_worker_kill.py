"""Workers that are killed: nothing is lost, nothing is run after its acknowledgement, and orders are kept.

Real processes of `tidewheel work` run functions in threads and in the loop, of plain topics and of message
groups, one message of a group at a time and eight; some raise, some reject. They are killed at random along
the way, some are stopped by SIGTERM, and each is replaced. Beside them others run slow functions, far longer
than their leases, in message groups, too; the first of these is never killed. All note what they do
(`worker_process`), which an oracle judges (`worker_runs` has the rules, and the windows that are no errors).

`--rounds 50` (make endurance): 100,000 messages, 50 kills, and functions of 60 s with leases of 12 s.
"""

from __future__ import annotations

import os
import random
import resource
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest

from tests.endurance.client_processes import ROOT, serving
from tests.endurance.worker_process import Notes, is_rejected
from tests.endurance.worker_runs import Oracle
from tidewheel import Client, NewMessage
from tidewheel.command import COMMAND

FULL_ROUNDS = 50
PLAIN, LINES = ("threads", "loop"), ("thread-lines", "loop-lines")
SLOW_PLAIN, SLOW_LINES = ("slow-threads", "slow-loop"), ("slow-lines",)
LOOK_SECONDS, STUCK_SECONDS, STOP_SECONDS = 0.05, 180, 180
FIFO_RUN = 8
KILLS_OF_SLOW, STOPS = 8, 3
"""Every eighth kill is of a slow worker; after every third one is stopped, too."""


@dataclass(frozen=True)
class Size:
    """Of each topic its messages, and its message groups; of slow topics the same."""

    kills: int
    messages: int
    lines: int
    slow_messages: int
    slow_lines: int
    slow_seconds: float
    leases: str
    loads: int
    slows: int


FULL = Size(50, 25_000, 50, 16, 8, 60.0, "5s 12s", loads=4, slows=3)
SMALL = Size(4, 500, 10, 4, 2, 4.0, "2s 2s", loads=2, slows=2)
CONCURRENCY = {"load": 8, "slow": 4}


def ids_of(size: Size) -> list[str]:
    """Return the ids of all messages; those of a message group in order."""
    slow = _topics(SLOW_PLAIN, SLOW_LINES, size.slow_messages, size.slow_lines)
    return [*slow, *_topics(PLAIN, LINES, size.messages, size.lines)]


def _topics(plain: tuple[str, ...], lines: tuple[str, ...], count: int, groups: int) -> Iterator[str]:
    for number in range(count):
        yield from (f"{topic}.-.{number}" for topic in plain)
        yield from (f"{topic}.{number % groups}.{number // groups}" for topic in lines)


def send_all(url: str, ids: list[str]) -> None:
    """Send each message; raise unless all are stored."""
    with Client(url) as client:
        parts = ((one, *one.split(".")) for one in ids)
        client.send_many(
            NewMessage(topic, one, group="" if group == "-" else group, idempotency_key=one)
            for one, topic, group, _ in parts
        )


class Crew:
    """The workers, of which one after the other is killed or stopped, and replaced."""

    def __init__(self, http: str, folder: Path, size: Size) -> None:
        self._size, self._log = size, folder / "workers.log"
        self._notes = Notes(str(folder / "notes"))
        self._environment = os.environ | {
            "TIDEWHEEL_HTTP": http,
            "WORKER_NOTES": str(folder / "notes"),
            "WORKER_LEASES": size.leases,
            "WORKER_SLOW_SECONDS": str(size.slow_seconds),
        }
        self._chance = random.Random(7)
        self.loads = [self._started("load") for _ in range(size.loads)]
        self.slows = [self._started("slow") for _ in range(size.slows)]
        self._stopping: list[subprocess.Popen[bytes]] = []
        self.kill_count = self.stop_count = 0

    def _started(self, kind: str) -> subprocess.Popen[bytes]:
        target = f"tests.endurance.worker_process:{kind}"
        command = [*COMMAND, "work", target, "--concurrency", str(CONCURRENCY[kind])]
        with self._log.open("ab") as log:
            return subprocess.Popen(command, cwd=ROOT, env=self._environment, stdout=log, stderr=log)

    def kill_one(self, oracle: Oracle) -> None:
        """Choose a worker, and kill it if it has begun to work."""
        is_slow = self.kill_count % KILLS_OF_SLOW == KILLS_OF_SLOW // 2
        kind, victim = self._chosen(oracle, is_slow=is_slow)
        if not oracle.begun_by[victim.pid]:
            return
        victim.kill()
        victim.wait()
        self._notes.note(victim.pid, "killed")
        self._replace(victim, kind)
        self.kill_count += 1

    def stop_one(self, oracle: Oracle) -> None:
        """Let a worker that has begun to work finish, the first time a slow one; start another beside it."""
        kind, stopped = self._chosen(oracle, is_slow=not self.stop_count)
        if not oracle.begun_by[stopped.pid]:
            return
        stopped.terminate()
        self._stopping.append(stopped)
        self._replace(stopped, kind)
        self.stop_count += 1

    def _chosen(self, oracle: Oracle, *, is_slow: bool) -> tuple[str, subprocess.Popen[bytes]]:
        """Return the kind of a worker, and one at random; a slow one only if it has begun to work."""
        slow = [one for one in self.slows[1:] if oracle.begun_by[one.pid]]
        return (
            ("slow", self._chance.choice(slow))
            if is_slow and slow
            else ("load", self._chance.choice(self.loads))
        )

    def _replace(self, gone: subprocess.Popen[bytes], kind: str) -> None:
        crew = self.slows if kind == "slow" else self.loads
        crew[crew.index(gone)] = self._started(kind)

    def check(self) -> None:
        """Check that no worker has ended by itself."""
        assert all(one.poll() is None for one in self.loads + self.slows), self.log()

    def stop_all(self) -> None:
        """Stop all workers, and note of each that it has ended well."""
        for one in self.loads + self.slows:
            one.terminate()
        for one in self._stopping + self.loads + self.slows:
            assert one.wait(STOP_SECONDS) == 0, self.log()
            self._notes.note(one.pid, "stopped")

    def end(self) -> None:
        for one in (*self.loads, *self.slows, *self._stopping):
            one.kill()
            one.wait()

    def log(self) -> str:
        return self._log.read_text()[-2_000:]

    def warnings(self) -> dict[str, int]:
        """How often the workers said that a lease was lost, or an end came too late."""
        said = self._log.read_text()
        return {one: said.count(one) for one in ("was lost", "not ended in time", "Traceback")}


@contextmanager
def crew_of(http: str, folder: Path, size: Size) -> Iterator[Crew]:
    crew = Crew(http, folder, size)
    try:
        yield crew
    finally:
        crew.end()


def lag(http: httpx.Client) -> float:
    """How many messages the groups have not acknowledged, as the broker says."""
    lines = http.get("/metrics").text.splitlines()
    found = [one for one in lines if one.startswith("rocketmq_consumer_lag_messages{")]
    return sum(
        float(one.rpartition(" ")[2]) for one in found if 'group="crew"' in one or 'group="runs"' in one
    )


def ended_processes_seconds() -> float:
    """Return the processor time of processes that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def dead_letters(http: httpx.Client, group: str) -> set[str]:
    """Return the ids of a group's dead letters."""
    found, after = set[str](), ""
    while True:
        query = {"after": after} if after else {}
        page = http.get(f"/api/dead-letters/groups/{group}", params=query).json()
        found |= {one["message_id"] for one in page["dead_letters"]}
        if page["after"] is None:
            return found
        after = page["after"]


def kill_along_the_way(http: httpx.Client, crew: Crew, oracle: Oracle, size: Size, count: int) -> None:
    """Kill whenever a share of the messages has come to its end, until all have."""
    share = (size.messages * len(PLAIN + LINES)) // (size.kills + 1)
    newest, since = 0, time.monotonic()
    while oracle.ended_count < count or lag(http):
        time.sleep(LOOK_SECONDS)
        oracle.read()
        assert not oracle.wrong, oracle.wrong[:10]
        crew.check()
        if oracle.ended_count > newest:
            newest, since = oracle.ended_count, time.monotonic()
        assert time.monotonic() - since < STUCK_SECONDS, (oracle.counts, crew.log())
        if crew.kill_count < size.kills and newest >= share * (crew.kill_count + 1):
            crew.kill_one(oracle)
        if crew.stop_count < crew.kill_count // STOPS:
            crew.stop_one(oracle)


def test_nothing_is_lost_or_run_after_its_acknowledgement_while_workers_are_killed(
    tmp_path: Path, endurance: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    size = FULL if request.config.getoption("--rounds") >= FULL_ROUNDS else SMALL
    ids, began, used_before_seconds = ids_of(size), time.monotonic(), ended_processes_seconds()
    (tmp_path / "notes").touch()
    oracle = Oracle(tmp_path / "notes")
    broker = endurance["BrokerProcess"](tmp_path / "store", "--invisible-ms-min", "1000")
    with serving(broker) as http:
        runs = {"name": "runs", "fifo_run_max": FIFO_RUN}
        http.post("/api/groups", json=runs).raise_for_status()
        sending = Thread(target=send_all, args=[broker.http, ids], daemon=True)
        sending.start()
        with crew_of(broker.http, tmp_path, size) as crew:
            kill_along_the_way(http, crew, oracle, size, len(ids))
            seconds = time.monotonic() - began
            crew.stop_all()
            used_seconds = ended_processes_seconds() - used_before_seconds
        sending.join()
        assert lag(http) == 0
        oracle.finish(ids)
        dead = dead_letters(http, "crew") | dead_letters(http, "runs")
    print(
        f"{len(ids)} messages in {seconds:.0f} s, {crew.kill_count} kills, {crew.stop_count} stops, "
        f"{len(oracle.wrong)} wrong; {dict(oracle.counts)}, dead {len(dead)}, "
        f"longest from a kill to the next run {oracle.longest_ms} ms, "
        f"shortest runs {oracle.shortest_ms} ms, warnings {crew.warnings()}, "
        f"the workers' processor time {used_seconds:.0f} s"
    )
    assert not oracle.wrong[:10]
    assert oracle.ended_count == len(ids)
    assert (crew.kill_count, crew.stop_count) == (size.kills, size.kills // STOPS)
    assert dead == oracle.dead() == set(filter(is_rejected, ids))
    slow = [oracle.shortest_ms[one] for one in SLOW_PLAIN + SLOW_LINES]
    assert min(slow) >= size.slow_seconds * 1000
