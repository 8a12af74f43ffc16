"""Crash or fail each disk operation in turn during every change of a topic; verify the state after a restart.

    set up a world --> the n-th disk operation of the verb dies or fails --> restart --> oracle
         ^                                                                                 |
         +--------------- n + 1, until the verb ends without a fault ----------------------+

The verbs are delete, purge, alter (of queues and of retention), a task that moves messages, hold, release at
a pace, and the timer verbs on held timers. The oracles of `topic_world` and `timer_oracle` verify each
restart:

1. If the caller received an answer, the records of the verb are in the log.
2. If the caller received no answer, the state is that of the records in the log. Each verb consists of one
   record, and took place entirely or not at all. A move consists of a copy and its end, and is completed by
   the next task. The messages that a new retention discards follow at the next check of the retention.
3. After a second power failure the state is unchanged, and the repeated verb completes.
4. Held timers remain pending. No timer is lost, delivered early, delivered while held, or delivered twice.

Each (operation, fault) meets one of the process ends in turn. By default each operation meets one of the
faults in turn; with `--seeds` above 100, every operation meets every fault and every end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import pytest

from commitlog.records.message import MessageType
from consumequeue.indexes import timerindex_recent
from services.broker.spine.values import TimerName, Verdict
from services.broker.task_items import TaskItem
from services.store.read_only.opening import look_at
from services.store.verify.verify import verify
from tests.memory_disk import Death, Fault
from tests.simulation import timer_world, topic_world
from tests.simulation.test_every_operation import ENDS
from tests.simulation.timer_machine import MINUTE, SECOND

SEED: Final = 2
"""An even seed: retention deletes no segment, so the oracles compare all messages."""
TASK: Final = "task"
HELD_COUNT: Final = 4


class Topics(topic_world.World):
    """A world whose topics are changed by a script."""

    def begin(self, queue_count: int = 2) -> None:
        """Create topic `a` with messages, some of them finished by its group, and an empty topic `b`."""
        self.faults.cease()
        for topic in ("a", "b"):
            self.make(topic, MessageType.MIXED, queue_count)
            self.receive("g", topic)
        for _ in range(8):
            self.send("a")
        self.flush()
        self.receive("g", "a")
        self.settle()
        self.now_ms += MINUTE  # The leases have expired.
        self.pass_time()
        self.settle()

    def settle(self) -> None:
        """Flush until nothing is pending."""
        while not self.broker.is_quiet:
            self.flush()

    def change(self, verb: Callable[[], object]) -> None:
        """Execute a verb between two sends, and write a checkpoint and another message afterwards."""
        self.send("a")
        self.settle()
        verb()
        self.settle()
        self.checkpoint()
        self.send("b")
        self.settle()

    def move_all(self) -> None:
        """Move the messages of topic `a` as a task does: a batch, the list of its items, and a flush."""
        if "a" not in self.state().topics:
            return
        first: int | None = None
        for _ in range(12):
            before = dict(self.moved)
            self.move_from("a", "b")
            moved = [TaskItem("a", "", one, "MOVED") for one in self.moved if one not in before]
            if moved:
                added = self.broker.task_items.add_items(TASK, "messages", first, moved, self.now_ms)
                first = added.first
            self.settle()

    def judge(self) -> None:
        """Compare everything with the oracle, before and after a power failure."""
        self.compare()
        listed = self._items_of_task()
        copied = {one.message.message_id for one in self._messages("b")}
        assert listed <= copied, "a task lists a message that was not moved"
        self.disk.crash(lambda count: 0)
        self._reopen(None)
        assert self._items_of_task() == listed
        verdict = verify(look_at(self.disk, "the store"), self.now_ms)
        assert verdict.is_sound, verdict.findings

    def _items_of_task(self) -> set[str]:
        page = self.broker.task_items.page(TASK, "messages", None, 1_000)
        return {one.item.message_id for one in page.items} if page else set()


class Held(timer_world.World):
    """A world whose timers are held and released by a script."""

    def begin(self, *, is_held: bool) -> None:
        """Set timers of two topics. If `is_held` is true, those of topic `a` become due and are held."""
        self.faults.cease()
        for number in range(HELD_COUNT):
            self.set_timer("a", (number + 1) * SECOND)
        self.set_timer("b", 3 * SECOND)
        self.set_timer("a", 5 * MINUTE)
        self.flush()
        if is_held:
            self.hold_topic()
            self._tick(self.now_ms + 10 * SECOND)
            self.settle()
            held = [one for one in self.oracle.pending().values() if one.is_held]
            assert len(held) == HELD_COUNT

    def set_timer(self, topic: str, after_ms: int) -> None:
        """Set a timer without a key."""
        message = self._message()
        message.topic, message.delivery_ms = topic, self.now_ms + after_ms
        for name in ("TW_TIMER_KEY", "TW_TIMER_UNIQUE"):
            message.properties.pop(name, None)
        self._send_timer(message, None)

    def hold_topic(self) -> None:
        """Hold the timers of topic `a`, unless they are held."""
        if not self.oracle.is_held("a"):
            changed = self.broker.topic_changes.hold("a", "why", self.now_ms)
            self.oracle.holds.append((changed.durable_at - 1, "a", True))
        self.flush()

    def hold_and_pass(self) -> None:
        """Hold the topic while its timers become due one by one."""
        self.hold_topic()
        for _ in range(HELD_COUNT + 1):
            self._tick(self.now_ms + SECOND)
            self.flush()
        self.write_checkpoint()
        self.flush()

    def release_paced(self) -> None:
        """Release two timers per second, then all timers at once."""
        self._release("a", 2)
        self.flush()
        for number in range(3):
            self._tick(self.now_ms + SECOND // 2)
            self.flush()
            if number == 1:
                self.write_checkpoint()
        self._release("a", 0)
        self._tick(self.now_ms)
        self.flush()

    def use_verbs(self) -> None:
        """Cancel, move and fire held timers."""
        held = [one for one in self.oracle.pending().values() if one.is_held]
        for timer, kind in zip(held, ("cancel", "move", "fire"), strict=False):
            name = TimerName("a", timer.message_id)
            if kind == "cancel":
                told = self.broker.timers.cancel(name, "", self.now_ms)
            elif kind == "move":
                told = self.broker.timers.move(name, self.now_ms + 2 * SECOND, self.now_ms)
            else:
                told = self.broker.timers.fire(name, self.now_ms)
            assert told.verdict in (Verdict.CANCELLED, Verdict.MOVED, Verdict.FIRED)
            self._told(name, timer, None, told, self.now_ms + 2 * SECOND)
            self.flush()
        self._tick(self.now_ms + 3 * SECOND)
        self.flush()
        self.write_checkpoint()

    def write_checkpoint(self) -> None:
        """Take, write and confirm a checkpoint."""
        while not self.broker.is_quiet:
            self.flush()
        self.checkpoint, self.is_written = self.broker.checkpoint(self.now_ms), False
        self.work_on_checkpoint()
        if self.checkpoint is not None:  # It is abandoned if the disk fails.
            self.work_on_checkpoint()

    def judge(self) -> None:
        """Compare everything with the oracle, before and after a power failure."""
        self.settle()
        self.compare()
        self.disk.crash(lambda count: 0)
        self._reopen(None)
        self.settle()
        self.compare()

    def finish(self) -> None:
        """Release and deliver everything: no timer is lost, early, or delivered twice."""
        self.drain()
        self.check_names()
        verdict = verify(look_at(self.disk, "the store"), self.now_ms)
        assert verdict.is_sound, verdict.findings


class Scenario(NamedTuple):
    """A world before the verb, the verb, and what must be true once the verb is complete.

    `repeat` completes the verb after a crash.
    """

    make: Callable[[], Topics | Held]
    act: Callable[[Topics | Held], None]
    repeat: Callable[[Topics | Held], None]


def topics(
    verb: Callable[[Topics], object], done: Callable[[Topics], bool], queue_count: int = 2
) -> Scenario:
    """Return a scenario of a topic verb."""

    def make() -> Topics:
        world = Topics(SEED)
        world.begin(queue_count)
        return world

    def act(world: Topics | Held) -> None:
        assert isinstance(world, Topics)
        world.change(lambda: verb(world))

    def repeat(world: Topics | Held) -> None:
        assert isinstance(world, Topics)
        verb(world)
        world.settle()
        assert done(world), "the repeated verb is not complete"
        world.compare()

    return Scenario(make, act, repeat)


def held(verb: Callable[[Held], None], *, is_held: bool) -> Scenario:
    """Return a scenario of timers that are held."""

    def make() -> Held:
        world = Held(SEED)
        world.begin(is_held=is_held)
        return world

    def act(world: Topics | Held) -> None:
        assert isinstance(world, Held)
        verb(world)

    def repeat(world: Topics | Held) -> None:
        assert isinstance(world, Held)
        world.finish()

    return Scenario(make, act, repeat)


def purged(world: Topics) -> bool:
    """Return whether topic `a` is empty."""
    return not world.state().pending("a")


def altered(world: Topics) -> bool:
    """Return whether topic `a` has the new number of queues."""
    return world.broker.topics.get("a").queue_count == 4


def retained(world: Topics) -> bool:
    """Return whether topic `a` has the new retention, and has no older messages."""
    for _ in range(8):
        world.now_ms += 10 * SECOND
        world.pass_time()
        world.settle()
    return world.broker.topics.get("a").retention_ms == SECOND and purged(world)


def finish_and_alter(world: Topics) -> None:
    """Finish all messages, without which the number of queues cannot change, and change it."""
    while found := world.broker.receiving.receive(
        "g", "a", topic_world.EVERYTHING, 32, 20_000, "c", False, world.now_ms
    ).deliveries:
        for one in found:
            at = world.broker.receiving.ack("g", "a", one.receipt_handle, world.now_ms)
            world.done.append((at, "g", "a", one.message.message_id))
        world.settle()
    world.alter_to("a", None, 4, None, discard=False)


SCENARIOS: Final = {
    "delete": topics(
        lambda world: world.delete("a", discard=True), lambda world: "a" not in world.broker.topics
    ),
    "purge": topics(lambda world: world.purge("a", discard=True), purged),
    "alter of queues": topics(finish_and_alter, altered),
    "alter of retention": topics(
        lambda world: world.alter_to("a", None, None, SECOND, discard=True), retained
    ),
    "move": topics(
        lambda world: world.move_all(),
        lambda world: not list(world._messages("a", "g")) and len(world.state().copies) > 0,
    ),
    "hold": held(Held.hold_and_pass, is_held=False),
    "paced release": held(Held.release_paced, is_held=True),
    "verbs on held timers": held(Held.use_verbs, is_held=True),
}


def struck(scenario: Scenario, choose: Callable[[int], list[tuple[Fault, str]]]) -> Iterator[int]:
    """Run a scenario with each operation struck in turn, and yield the number of the operation."""
    number, is_struck = 0, True
    while is_struck:
        number += 1
        for fault, how in choose(number):
            is_struck = run(scenario, number, fault, how)
        if is_struck:
            yield number


def run(scenario: Scenario, number: int, fault: Fault, how: str) -> bool:
    """Run a scenario whose `number`-th operation is struck, and return whether the operation exists."""
    world = scenario.make()
    begun = world.disk.operations
    world.disk.strike(number, fault)
    try:
        scenario.act(world)
    except Death:
        ENDS[how](world.disk)
        world._reopen(None)
    except OSError:
        world._reopen(world.broker.durable_offset)
    is_struck = world.disk.operations - begun >= number
    world.disk.well()
    if not world.broker.housekeeping.has_reserve:
        world.broker.housekeeping.measure_space()
    world.judge()
    scenario.repeat(world)
    return is_struck


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_change_of_a_topic_is_crashed_at_every_operation(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timerindex_recent, "_SLOTS", 1023)
    takes_all = request.config.getoption("--seeds") > 100
    faults, ends = list(Fault), list(ENDS)

    def choose(number: int) -> list[tuple[Fault, str]]:
        if takes_all:
            deadly = [(fault, how) for fault in faults if fault.is_deadly for how in ends]
            return deadly + [(fault, ends[0]) for fault in faults if not fault.is_deadly]
        return [(faults[number % len(faults)], ends[number // len(faults) % len(ends)])]

    count = runs = 0
    for number in struck(SCENARIOS[name], choose):
        count, runs = number, runs + len(choose(number))
    print(f"{name}: {count} operations were crashed or failed, in {runs} runs")
    assert count > 10
