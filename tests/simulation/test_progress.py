"""Message groups progress despite frequent leader changes: none waits longer than a lease and one takeover.

A cluster (`cluster_world`) with one FIFO topic. Its consumers are of two kinds:

    living    sends heartbeats to each leader some seconds after a takeover, and acknowledges later
    dying     sends nothing after it has received a message

Rules
1. A message group with a waiting message gets a delivery within `BOUND_MS`: `LEASE_MS`, `LEASE_MS_MIN`
   (added by a takeover, once) and two `STEP_MS` (the longest interval between checks).
2. A message of a living consumer is delivered to no other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pytest

from commitlog.records.message import Message, MessageType
from consumequeue.filters.filter import EVERYTHING
from consumequeue.indexes import timerindex_recent
from services.broker.groups.receiving import MessageReceiver
from services.broker.spine.values import Delivery
from services.cluster.replica import LEASE_MS_MIN
from tests.simulation.cluster_world import ClusterWorld

LEASE_MS: Final = 30_000
STEP_MS: Final = 6_000
BOUND_MS: Final = LEASE_MS + LEASE_MS_MIN + 2 * STEP_MS
LINES: Final = ("north", "south", "east")
ORDERS, GROUP, STEPS = "orders", "in-order", 150


@dataclass
class Consumer:
    """A client with a leased message."""

    name: str
    delivery: Delivery
    is_living: bool
    done_ms: int


class Progress:
    """The world's clients, and the time since which each message group waits."""

    def __init__(self, seed: int) -> None:
        self.world = world = ClusterWorld(seed)
        world.faults.cease()
        world.engine.is_well, world.clocks_differ, world.trouble = True, False, None
        for node in world.nodes:
            node.ahead_ms = 0
        self.chance = world.random
        self.changes_within_ms = self.chance.choice([9_000, 20_000, 29_000, 60_000])
        self.sent = self.client_count = 0
        self.waiting: dict[str, int] = dict.fromkeys(LINES, 0)
        self.since_ms = dict.fromkeys(LINES, world.now_ms)
        self.held: list[Consumer] = []
        self.longest_ms = self.deliveries = 0
        self.change_leader()
        world.broker.topics.create(ORDERS, MessageType.FIFO, 1, world.now_ms)
        self.receive()  # the first receive creates the group
        self.flush()

    def flush(self) -> None:
        while not self.world.broker.is_quiet:
            self.world.flush()

    def send(self) -> None:
        line, self.sent = self.chance.choice(LINES), self.sent + 1
        message = Message(topic=ORDERS, body=b"x", message_id=f"P{self.sent}", message_group=line)
        self.world.broker.sending.send(message, self.world.now_ms)
        if not self.waiting[line]:
            self.since_ms[line] = self.world.now_ms
        self.waiting[line] += 1

    def receive(self) -> None:
        self.client_count += 1
        name, is_push = f"c{self.client_count}", self.chance.random() < 0.6
        got = self.world.broker.receiving.receive(
            GROUP, ORDERS, EVERYTHING, 1, LEASE_MS, name, is_push, self.world.now_ms
        )
        for delivery in got.deliveries:
            line = delivery.message.message_group
            others = [one.name for one in self.held if one.is_living and _line(one) == line]
            assert not others, f"{others} has one of {line}, and {name} got another"
            self.longest_ms = max(self.longest_ms, self.world.now_ms - self.since_ms[line])
            self.since_ms[line] = self.world.now_ms
            self.deliveries += 1
            is_living = is_push and self.chance.random() < 0.5
            done_ms = self.world.now_ms + self.chance.choice([0, STEP_MS, 70_000])
            self.held = [one for one in self.held if _line(one) != line]
            self.held.append(Consumer(name, delivery, is_living, done_ms))

    def hear(self) -> None:
        for one in [one for one in self.held if one.is_living]:
            self.world.broker.receiving.renew_client(one.name, self.world.now_ms)
            if one.done_ms <= self.world.now_ms:
                handle = one.delivery.receipt_handle
                self.world.broker.receiving.ack(GROUP, ORDERS, handle, self.world.now_ms)
                self.held.remove(one)
                self.waiting[_line(one)] -= 1
                self.since_ms[_line(one)] = self.world.now_ms

    def change_leader(self) -> None:
        self.flush()
        self.world.change_leader()
        self.changed_ms = self.world.now_ms
        self.next_change_ms = self.changed_ms + self.chance.randrange(2_000, self.changes_within_ms)

    def look(self) -> None:
        """Verify rule 1; groups with a message at a living consumer do not wait."""
        living = {_line(one) for one in self.held if one.is_living}
        for line in (one for one in LINES if self.waiting[one] and one not in living):
            waited_ms = self.world.now_ms - self.since_ms[line]
            assert waited_ms <= BOUND_MS, f"nothing of {line} was delivered for {waited_ms} ms"

    def step(self) -> None:
        self.world._go_to(self.world.now_ms + self.chance.randrange(500, STEP_MS))
        if self.world.now_ms >= self.next_change_ms:
            self.change_leader()
        if self.world.now_ms - self.changed_ms >= self.chance.choice([0, 2_000]):
            self.hear()
        if self.chance.random() < 0.5:
            self.send()
        for _ in LINES:
            self.receive()
        self.flush()
        self.look()


def _line(one: Consumer) -> str:
    return str(one.delivery.message.message_group)


@pytest.fixture(autouse=True)
def _small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timerindex_recent, "_SLOTS", 1021)


def play(seed: int) -> Progress:
    progress = Progress(seed)
    for _ in range(STEPS):
        progress.step()
    return progress


def test_no_message_group_waits_longer_than_a_lease_and_a_takeover(seed: int) -> None:
    progress = play(seed)
    assert progress.deliveries > 10
    assert progress.world.takeover_count > 5


def test_a_lease_that_each_takeover_lengthens_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MessageReceiver, "record_extended_leases", lambda *_: None)
    found: list[Any] = []
    for seed in range(8):
        try:
            play(seed)
        except AssertionError as error:
            found.append(str(error))
    assert any("was delivered for" in one for one in found)
