"""A stream, and a store that is stopped, killed, wiped, put back and cut by retention while messages come.

    TIDEWHEEL_LONG=1 .venv/bin/python -m pytest tests/endurance/test_stream_lost.py --rounds 20 -s

Each round has every fate once, in an order of its own. A broker in a process of its own sends messages and is
killed; its retention keeps few segments. After each fate the query is run again, with the checkpoint that it
has: it reads every message that the store holds once, or it fails. It may fail only where messages are gone;
then it is told to go on, and has every message of the store, those that it had not read before once, and a
row that says what is gone.

Without the switch one round runs on a reader that is taken through Spark's steps; with it, in a session.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from commitlog.disk.real_disk import RealDisk
from commitlog.log.retention import RetentionPolicy
from commitlog.records.message import Message, MessageType
from services.broker.broker import Broker
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import RetireSegments
from spark_jobs.session import spark_session
from spark_jobs.source import LogReader
from tests.spark.streaming import Query, Steps

SEGMENT_BYTES = 16 * 1024
SETTINGS = BrokerSettings(
    segment_bytes=SEGMENT_BYTES,
    housekeeping_ms=50,
    retention=RetentionPolicy(log_bytes_max=8 * SEGMENT_BYTES, group_pin_ms=0),
)
MESSAGES_PER_BATCH = 10
COLUMNS = "message_id string, damage string"
WAIT_S = 600


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def send_for_ever(store: Path, answered: Path) -> None:
    """Open a broker on the store and send batches; append the ids of each that was answered to a file."""
    store.mkdir(exist_ok=True)
    disk = RealDisk(store)
    broker = Broker.open(disk, SETTINGS, now_ms())
    if "t" not in broker.topics:
        broker.topics.create("t", MessageType.NORMAL, 2, now_ms())
    while True:
        ids = [f"{random.getrandbits(128):032X}" for _ in range(MESSAGES_PER_BATCH)]
        for one in ids:
            broker.sending.send(Message(topic="t", body=bytes(200), message_id=one), now_ms())
        _flush(broker)
        with answered.open("a") as file:
            file.write("".join(f"{one}\n" for one in ids))
        _keep_house(broker, disk)
        time.sleep(0.005)


def _flush(broker: Broker) -> None:
    while (flush := broker.take_flush()) is not None:
        flush.write()
        broker.complete_flush(flush, now_ms())


def _keep_house(broker: Broker, disk: RealDisk) -> None:
    """Write a checkpoint, and let segments go that it covers."""
    checkpoint = broker.checkpoint(now_ms())
    checkpoint.write(disk)
    broker.complete_checkpoint(checkpoint)
    for effect in broker.tick(now_ms()):
        if isinstance(effect, RetireSegments):
            effect.retirement.run(disk)
            broker.continue_retirement(effect.retirement, now_ms())
    _flush(broker)


@dataclass
class Play:
    """A broker, a query, and what each has said."""

    folder: Path
    query: Query | Steps
    random: random.Random
    losses: Counter[str] = field(default_factory=Counter)
    most: Counter[str] = field(default_factory=Counter)
    """How often each message has ever been among the arrived: a batch that is forgotten may hold some that
    came again because the store was put back, and brings them once more.
    """
    broker: multiprocessing.process.BaseProcess | None = None

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def start(self) -> None:
        fork = multiprocessing.get_context("fork")
        self.broker = fork.Process(target=send_for_ever, args=(self.store, self.folder / "answered"))
        self.broker.start()

    def kill(self) -> None:
        assert self.broker is not None
        self.broker.kill()
        self.broker.join()

    def answered(self) -> list[str]:
        """Return the ids of all messages that were ever answered."""
        path = self.folder / "answered"
        return path.read_text().split() if path.exists() else []

    def await_messages(self, count: int) -> None:
        """Let so many more messages be answered."""
        assert self.broker is not None
        wanted, deadline = len(self.answered()) + count, time.monotonic() + WAIT_S
        while len(self.answered()) < wanted:
            assert self.broker.is_alive()
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def there(self) -> set[str]:
        """Return the ids of the messages that the store holds."""
        reader = LogReader({"path": str(self.store), "dataset": "messages"}, ("message_id",))
        batches = [batch for part in reader.partitions() for batch in reader.read(part)]
        return {row["message_id"] for batch in batches for row in batch.to_pylist()}

    def arrived(self) -> Counter[str]:
        """Return how often each message has arrived."""
        return Counter(row.message_id for row in self.query.rows() if row.damage is None)

    def drain(self, **options: object) -> None:
        self.query.drain(self.store, COLUMNS, dataset="messages", max_bytes_per_trigger=20_000, **options)

    # Fates; each begins and ends with a broker that sends.

    def stopped(self) -> None:
        self.await_messages(50)

    def killed(self) -> None:
        self.kill()
        self.query.forget_last_batch()
        self.start()
        self.await_messages(50)

    def wiped(self) -> None:
        self.kill()
        shutil.rmtree(self.store)
        self.start()
        self.await_messages(self.random.choice([10, 300]))

    def put_back(self) -> None:
        self.kill()
        copy = Path(shutil.copytree(self.store, self.folder / "copy"))
        self.start()
        self.await_messages(60)
        self.check("stopped")
        self.kill()
        shutil.rmtree(self.store)
        copy.rename(self.store)
        self.start()
        self.await_messages(self.random.choice([10, 300]))

    def cut(self) -> None:
        self.await_messages(1_500)

    def check(self, fate: str) -> None:
        """Run the query while messages come, kill the broker, and hold all that is to be held."""
        before, gone = self.arrived(), len(self.query.damage_texts())
        said = self._drained()
        if said:
            self._check_told(fate, said, before, gone)
        else:
            assert fate not in ("wiped", "put_back"), f"{fate}: it went on and said nothing"
            arrived, there = self.arrived(), self.there()
            assert arrived >= before
            again = [one for one, count in arrived.items() if count > max(self.most[one], 1)]
            assert not again, f"{fate}: {len(again)} arrived twice"
            assert there <= arrived.keys(), f"{fate}: {len(there - arrived.keys())} were skipped"
        self.most |= self.arrived()
        self.start()

    def _drained(self) -> str:
        """Run the query, first beside the broker, then behind its death; return how it failed, if it did."""
        try:
            self.drain()
            self.kill()
            self.drain()
        except Exception as error:
            self.kill()
            return str(error)
        return ""

    def _check_told(self, fate: str, said: str, before: Counter[str], gone: int) -> None:
        assert "The store no longer holds" in said, said
        is_cut = "deleted" in said  # retention may overtake a query that is slow, whatever the fate
        assert fate in ("wiped", "put_back") or is_cut, f"{fate}: {said}"
        self.losses[fate] += 1
        self.drain(failOnDataLoss="false")
        arrived, there = self.arrived(), self.there()
        assert there <= arrived.keys(), f"{fate}: {len(there - arrived.keys())} were skipped"
        assert all(arrived[one] == 1 for one in there - before.keys()), f"{fate}: some arrived twice"
        again = {one for one in before if arrived[one] > before[one]}
        assert again <= there, f"{fate}: arrived anew though it is not there"
        assert not again or fate == "put_back", f"{fate}: what was read came again"
        assert len(self.query.damage_texts()) > gone, f"{fate}: nothing says what is gone"


FATES: tuple[Callable[[Play], None], ...] = (
    Play.stopped, Play.killed, Play.wiped, Play.put_back, Play.cut,
)  # fmt: skip


@pytest.fixture(params=["steps", "session"])
def query(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Query | Steps]:
    if request.param == "steps":
        yield Steps()
        return
    if "TIDEWHEEL_LONG" not in os.environ:
        pytest.skip("a query of Spark that is lost again and again, for minutes: make endurance")
    with spark_session(tmp_path, tmp_path / "spark.log", quick=True, master="local[1]") as spark:
        yield Query(spark, tmp_path / "query")


@pytest.mark.filterwarnings("ignore:failOnDataLoss")
def test_every_message_arrives_once_or_an_error_says_what_is_gone(
    query: Query | Steps, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    rounds = request.config.getoption("--rounds") if "TIDEWHEEL_LONG" in os.environ else 1
    play = Play(tmp_path, query, random.Random(rounds))
    play.start()
    try:
        play.await_messages(20)
        play.check("stopped")
        for number in range(rounds):
            for fate in play.random.sample(FATES, len(FATES)):
                fate(play)
                play.check(fate.__name__)
            print(f"round {number + 1}: {len(play.answered())} answered, {play.arrived().total()} arrived")
    finally:
        play.kill()
    print(f"{rounds} rounds, losses told: {dict(play.losses)}")
    assert play.losses["wiped"] == play.losses["put_back"] == rounds
