"""FIFO while consumers are killed: every message group in its order, never two of its messages in flight.

Three consumers share a group; one is killed again and again, and another started. Judged is the file in which
they all note what they do (`fifo_process`), line by line: a message group's next message may begin only when
the one before has ended or its consumer is dead, and what was acknowledged never begins again. The full run
(`--rounds 50`) kills the broker now and then as well: leases of messages in message groups survive that.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest

from tests.endurance.client_processes import hear, running

CONSUMERS = 3
FULL, SMALL = (10_000, 50, 5.0, 0.25), (900, 30, 1.0, 0.05)
"""Messages, message groups, seconds between kills, seconds that a message is worked on at most."""
FULL_ROUNDS = 50
BROKER_KILLED_EVERY = 9
PATIENCE_SECONDS = 600
LOOK_SECONDS = 0.1
TOPIC, GROUP = "lines", "in-order"


class Judge:
    """Reads notes as they come; `wrong` has every line that must not be."""

    def __init__(self, path: Path) -> None:
        self._notes = path.open()
        self._number: dict[str, int] = {}
        self._holder: dict[str, str] = {}
        self._acknowledged: dict[str, int] = {}
        self.wrong: list[str] = []
        self.counts: Counter[str] = Counter()

    @property
    def begun_count(self) -> int:
        """How many messages have begun, each counted once."""
        return self.counts["began"] - self.counts["again"]

    def read(self) -> None:
        """Judge what has been noted since the last look."""
        for line in self._notes:
            who, what, group, number = line.split()
            self.counts[what] += 1
            if not getattr(self, f"_{what}")(who, group, int(number)):
                self.wrong.append(line)

    def _began(self, who: str, group: str, number: int) -> bool:
        last, holder = self._number.get(group, -1), self._holder.get(group)
        self._number[group], self._holder[group] = number, who
        is_next = number == last + 1
        is_again = number == last > self._acknowledged.get(group, -1)
        self.counts["again"] += is_again
        return holder is None and (is_next or is_again)

    def _ended(self, who: str, group: str, number: int) -> bool:
        return self._holder.pop(group, None) == who and number == self._number[group]

    def _acked(self, who: str, group: str, number: int) -> bool:
        """An answer may be noted after another consumer has begun with what comes next."""
        self._acknowledged[group] = max(number, self._acknowledged.get(group, -1))
        return number <= self._number[group]

    def _killed(self, who: str, group: str, number: int) -> bool:
        self._holder = {held: by for held, by in self._holder.items() if by != who}
        return True


class Stage:
    """The broker, its producer, and consumers that come and are killed."""

    def __init__(self, broker: Any, notes: Path, stack: ExitStack, work_seconds: float) -> None:
        self._broker, self._notes, self._stack = broker, notes, stack
        self._work_seconds, self._chance = work_seconds, random.Random(7)
        self._consumers: list[Any] = []
        self._starting: list[Any] = []
        self.broker_kill_count = 0

    def start(self) -> None:
        """Start a consumer; it is ready some time later, see `ready`."""
        notes, work_seconds = str(self._notes), str(self._work_seconds)
        process = running("fifo_process", self._broker, TOPIC, GROUP, notes, work_seconds)
        self._consumers.append(self._stack.enter_context(process))
        self._starting.append(self._consumers[-1])

    def ready(self) -> None:
        """Wait until all that were started consume."""
        while self._starting:
            assert hear(self._starting.pop()) == "ready"

    def kill_one(self) -> None:
        """Kill one as soon as all consume, and start another in its place."""
        self.ready()
        killed = self._consumers.pop(self._chance.randrange(len(self._consumers)))
        killed.kill()
        killed.wait()
        with self._notes.open("a") as notes:
            notes.write(f"{killed.pid} killed - 0\n")
        self.start()

    def kill_broker(self) -> None:
        """Kill the broker too as soon as all consume, and start it again; the consumers stay."""
        self.ready()
        self._broker.kill()
        self._broker.start()
        self.broker_kill_count += 1

    def lag(self) -> float:
        """How many messages the group has not acknowledged, as the broker says."""
        lines = httpx.get(f"http://{self._broker.http}/metrics").text.splitlines()
        mine = [
            line for line in lines if line.startswith("rocketmq_consumer_lag_messages{") and GROUP in line
        ]
        return sum(float(line.rpartition(" ")[2]) for line in mine)


async def send_all(endurance: dict[str, Any], listen: str, count: int, groups: int) -> None:
    """Send to all message groups side by side, to each in its order."""
    async with endurance["Client"](listen) as client:

        async def line(group: str) -> None:
            for number in range(count // groups):
                message_id, body = f"{group}-{number}", str(number).encode()
                code = await client.send(TOPIC, message_id, body, message_group=group)
                assert code == endurance["OK"]

        await asyncio.gather(*(line(f"customer-{number}") for number in range(groups)))


def test_each_message_group_keeps_its_order_while_consumers_are_killed(
    tmp_path: Path, endurance: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    is_full = request.config.getoption("--rounds") >= FULL_ROUNDS
    count, groups, pause_seconds, work_seconds = FULL if is_full else SMALL
    broker = endurance["BrokerProcess"](tmp_path / "store")
    broker.start()
    with ExitStack() as stack:
        stack.callback(broker.kill)
        body = {"name": TOPIC, "message_type": "FIFO"}
        assert httpx.post(f"http://{broker.http}/api/topics", json=body).is_success
        stage = Stage(broker, tmp_path / "notes", stack, work_seconds)
        for _ in range(CONSUMERS):
            stage.start()
        stage.ready()
        (tmp_path / "notes").touch()
        judge = Judge(tmp_path / "notes")
        sending = Thread(target=asyncio.run, args=[send_all(endurance, broker.listen, count, groups)])
        sending.start()
        began = killed = time.monotonic()
        while judge.begun_count < count or stage.lag():
            assert time.monotonic() - began < PATIENCE_SECONDS, judge.counts
            time.sleep(LOOK_SECONDS)
            judge.read()
            if time.monotonic() - killed > pause_seconds:
                killed = time.monotonic()
                stage.kill_one()
                if is_full and not sending.is_alive() and judge.counts["killed"] % BROKER_KILLED_EVERY == 0:
                    stage.kill_broker()
        judge.read()
        assert broker.stop() == 0
    took = f"{count} messages, {groups} groups, {time.monotonic() - began:.0f} s"
    print(f"{took}: {dict(judge.counts)}, {len(judge.wrong)} lines wrong,", end=" ")
    print(f"broker killed {stage.broker_kill_count} times")
    assert not judge.wrong[:10]
    assert judge.begun_count == count
    assert judge.counts["killed"] > 0
