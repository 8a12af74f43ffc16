"""Makes the stores of an older version that `test_older_stores.py` opens, and writes down what they hold.

    git archive 102b719 | tar -x -C OLD
    PYTHONPATH=OLD python tests/stores/make.py 102b719

One store is stopped, with a snapshot of everything; one is killed long after its last. What they hold is told
by the older version itself, in `<version>.json`.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from commitlog.errors import TransactionEnded
from commitlog.message import Message, MessageType
from commitlog.real_disk import RealDisk
from consumequeue.filter import EVERYTHING
from services.auth.rights import Effect, Kind, Rule
from services.auth.rights import Verb as Right
from services.broker.broker import Broker
from services.broker.group_values import GroupPolicy
from services.broker.schedule import Schedule
from services.broker.settings import BrokerSettings
from services.broker.values import HalfFilter, Resolution, TimerFilter, TimerName
from txn.checkback import CheckBackPolicy

START_MS = 1_763_700_000_000
DAY_MS = 86_400_000
SETTINGS = BrokerSettings(
    segment_bytes=1 << 15, check_back=CheckBackPolicy(immunity_ms=1_000, interval_ms=1_000, count_max=2)
)
FOLDER = Path(__file__).parent


class Shop:
    """A broker of the older version, whose flushes and ticks are made by hand."""

    def __init__(self, disk: Any) -> None:
        self.disk, self.now_ms = disk, START_MS
        self.broker = Broker.open(disk, SETTINGS, self.now_ms)
        self.count = 0

    def flush(self) -> None:
        while (flush := self.broker.take_flush()) is not None:
            flush.write(self.disk)
            self.broker.flushed(flush, self.now_ms)

    def pass_time(self, span_ms: int) -> None:
        """Event by event; nobody can be asked about halves."""
        self.now_ms += span_ms
        for _ in range(50):
            for effect in self.broker.tick(self.now_ms):
                if hasattr(effect, "transaction_id"):
                    self.broker.check_asked(effect.transaction_id, True, self.now_ms)
                elif hasattr(effect, "job"):
                    effect.job.run(self.disk)
                    self.broker.read_ahead(effect.job)
            self.flush()

    def message(self, topic: str, **fields: Any) -> Message:
        self.count += 1
        return Message(
            topic=topic,
            body=b"body %d" % self.count,
            message_id=f"M{self.count:03d}",
            keys=(f"key-{self.count}",),
            properties=fields.pop("properties", {"colour": "blue"}),
            **fields,
        )

    def send(self, topic: str, **fields: Any) -> Any:
        receipt = self.broker.send(self.message(topic, **fields), self.now_ms)
        self.flush()
        return receipt

    def checkpoint(self) -> None:
        self.flush()
        done = self.broker.checkpoint(self.now_ms)
        done.write(self.disk)
        self.broker.checkpointed(done)

    def live(self) -> None:
        """Everything that leaves state behind."""
        broker = self.broker
        broker.create_topic("orders", MessageType.MIXED, 2, self.now_ms)
        broker.create_topic("fifo", MessageType.FIFO, 2, self.now_ms)
        broker.create_topic("ranks", MessageType.PRIORITY, 3, self.now_ms)
        for number in range(12):
            self.send("orders", tag="red" if number % 2 else "blue")
            self.send("fifo", message_group=f"g{number % 3}")
            self.send("ranks", priority=number % 3)
        self.timers()
        self.halves()
        self.consumers()
        self.others()

    def timers(self) -> None:
        broker = self.broker
        for number in range(8):
            key = {"TW_TIMER_KEY": f"deadline-{number}"}
            self.send("orders", delivery_ms=self.now_ms + DAY_MS * (number + 1), properties=key)
        broker.cancel_timer(TimerName("orders", key="deadline-1"), "paid", self.now_ms)
        broker.move_timer(TimerName("orders", key="deadline-2"), self.now_ms + 40 * DAY_MS, self.now_ms)
        broker.fire_timer(TimerName("orders", key="deadline-3"), self.now_ms)
        self.send("orders", delivery_ms=self.now_ms + 9 * DAY_MS, properties={"TW_TIMER_KEY": "deadline-4"})
        self.send("orders", properties={"TW_TIMER_CANCEL": "deadline-5"})
        self.send("orders", delivery_ms=self.now_ms + 500, properties={"TW_TIMER_KEY": "soon"})
        self.pass_time(2_000)

    def halves(self) -> None:
        broker = self.broker
        rolled, expired = (self.send("orders", transactional=True) for _ in range(2))
        committed = self.send("orders", transactional=True, delivery_ms=self.now_ms + 3 * DAY_MS)
        for half, how in ((committed, Resolution.COMMIT), (rolled, Resolution.ROLLBACK)):
            broker.end_transaction("orders", half.transaction_id, half.message_id, how, self.now_ms)
        self.flush()
        for _ in range(4):
            self.pass_time(2_500)
        with contextlib.suppress(TransactionEnded):
            broker.end_transaction(
                "orders", expired.transaction_id, expired.message_id, Resolution.COMMIT, self.now_ms
            )
        self.send("orders", transactional=True, check_immunity_ms=DAY_MS)

    def consumers(self) -> None:
        broker = self.broker
        for group, topic in (("carts", "orders"), ("carts", "fifo"), ("mail", "orders")):
            got = broker.receive(group, topic, EVERYTHING, 7, 60_000, "client-1", False, self.now_ms)
            for delivery in got.deliveries[::2]:
                broker.ack(group, topic, delivery.receipt_handle, self.now_ms)
            self.flush()
        broker.set_group("mail", GroupPolicy(attempts_max=2), self.now_ms)
        for _ in range(3):
            broker.receive("mail", "orders", EVERYTHING, 3, 10_000, "client-2", False, self.now_ms)
            self.pass_time(10_500)

    def others(self) -> None:
        broker = self.broker
        hourly = Schedule(name="hourly", topic="orders", body=b"tick", cron="0 * * * *", time_zone="UTC")
        broker.set_schedule(hourly, self.now_ms)
        broker.set_schedule(
            Schedule(name="daily", topic="orders", body=b"tock", cron="0 6 * * *", time_zone="Europe/Berlin"),
            self.now_ms,
        )
        broker.pause_schedule("daily", self.now_ms)
        self.pass_time(3_600_000)
        broker.access.add_user("ann", "sealed-secret", False, self.now_ms)
        rules = [Rule("ann", Kind.TOPIC, "orders", Right.SEND, Effect.ALLOW)]
        broker.access.set_rules(rules, self.now_ms)
        self.flush()


def held(broker: Any, now_ms: int) -> dict[str, Any]:
    """What a store holds, as its own version tells it."""
    topics = [[one.name, one.message_type.value, one.queue_count] for one in broker.topics()]
    messages = {
        f"{name}:{queue_id}": [one.message.message_id for one in broker.read(name, queue_id, first, 1_000)]
        for name, _, count in topics
        for queue_id in range(count)
        for first, _ in [broker.queue_range(name, queue_id)]
    }
    timers = [[one.message_id, one.due_ms] for one in broker.timers(TimerFilter(), None, 1_000).timers]
    names = [f"deadline-{number}" for number in range(8)] + ["soon"]
    found = [broker.timer(TimerName("orders", key=name), now_ms) for name in names]
    verdicts = [getattr(one, "verdict", None) and one.verdict.value for one in found]
    halves = [
        [one.transaction_id, one.state.value, one.check_count, one.next_check_ms]
        for one in broker.halves(HalfFilter(), None, 100).halves
    ]
    ended = [broker.half(one[0]).state.value for one in halves]
    groups = [
        [view.name, sorted([one.topic, one.queue_id, one.low_offset, one.done_above] for one in view.queues)]
        for view in broker.groups(now_ms)
    ]
    letters = [one.message.message_id for one in broker.dead_letters("mail", None, 100).letters]
    schedules = [
        [one.schedule.name, one.state.value, one.last_ms, one.sent_count] for one in broker.schedules()
    ]
    users = [[one.name, one.sealed] for one in broker.access.users()]
    rules = [[rule.user, rule.pattern, rule.effect.value] for rule in broker.access.rights]
    return {
        "topics": topics, "messages": messages, "timers": timers, "verdicts": verdicts, "halves": halves,
        "ended": ended, "groups": groups, "letters": letters, "schedules": schedules, "users": users,
        "rules": rules,
    }  # fmt: skip


def make(version: str, name: str, end: Callable[[Shop], None]) -> dict[str, Any]:
    with TemporaryDirectory() as folder:
        disk = RealDisk(Path(folder))
        shop = Shop(disk)
        if name == "killed":
            shop.send("first")
            shop.checkpoint()
        shop.live()
        end(shop)
        with tarfile.open(FOLDER / f"{version}-{name}.tar.gz", "w:gz") as packed:
            packed.add(folder, arcname="store")
        return held(Broker.open(disk, SETTINGS, shop.now_ms), shop.now_ms) | {"now_ms": shop.now_ms}


if __name__ == "__main__":
    version = sys.argv[1]
    told = {
        "stopped": make(version, "stopped", Shop.checkpoint),
        "killed": make(version, "killed", Shop.flush),
    }
    (FOLDER / f"{version}.json").write_text(json.dumps(told, indent=1) + "\n")
