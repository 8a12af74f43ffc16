"""Two relays and two consumers, killed at random: no row is lost, keys keep their order, each effect is once.

Each with the official client, `tidewheel.Client` and `tidewheel.AsyncClient`, on SQLite, PostgreSQL and
MariaDB. `--rounds 500` sends 10,000 rows on each.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, create_engine, text

from tests.endurance.client_processes import hear, serving, start, stored
from tests.mariadb import running_mariadb
from tests.postgresql import running_postgresql

ROWS_PER_ROUND = 20
FEW_ROUNDS = 6
STEPS_PER_KILL_MAX = 200
BATCH_ROWS = 40
KILL_S_MAX = 0.1
STUCK_S = 120
TOPIC = "sent"
NAMES = ("relay-1", "relay-2", "consume-1", "consume-2")
OUTBOX_ID = "TW_OUTBOX_ID"
SENT = "SELECT count(*) FROM tidewheel_outbox WHERE sent_ms IS NOT NULL"
SHORT = {("official", "postgresql"), ("client", "sqlite"), ("async", "mariadb")}
CONSUMED = "SELECT count(*) FROM tidewheel_consumed"


@pytest.fixture(params=["official", "client", "async"])
def client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def databases(request: pytest.FixtureRequest, client: str, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Yield the URL for the outbox and the URL for the effects; each client has one kind in a short run."""
    if (client, request.param) not in SHORT and request.config.getoption("rounds") <= FEW_ROUNDS:
        pytest.skip(f"one database for each client in make test; all with --rounds above {FEW_ROUNDS}")
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'outbox.db'}", f"sqlite:///{tmp_path / 'effects.db'}"
    elif request.param == "postgresql":
        with running_postgresql() as url:
            yield url, url
    else:
        with running_mariadb() as server:
            yield server.url, server.url


class Crew:
    """The relays and consumers, of which one at a time is killed and replaced."""

    def __init__(self, broker: Any, client: str, outbox: str, effects: str) -> None:
        self.broker, self.client = broker, client
        self.work = {
            "relay": ("relay", outbox, TOPIC, str(BATCH_ROWS)),
            "consume": ("consume", effects, TOPIC),
        }
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.killed: Counter[str] = Counter()

    def begin(self, names: Sequence[str]) -> None:
        for name in names:
            kind = name.partition("-")[0]
            self.processes[name] = self.start(*self.work[kind])
        assert [hear(self.processes[name]) for name in names] == ["ready"] * len(names)

    def start(self, *work: str) -> subprocess.Popen[str]:
        return start("outbox_process", self.broker, self.broker.http, self.client, *work)

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        assert process.poll() is None, f"{name} ended by itself"
        process.kill()
        process.communicate()
        self.killed[name.partition("-")[0]] += 1

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.communicate()


@contextmanager
def crew(broker: Any, client: str, outbox: str, effects: str) -> Iterator[Crew]:
    made = Crew(broker, client, outbox, effects)
    try:
        yield made
    finally:
        made.end()


def number(engine: Engine, query: str) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text(query)).scalar_one())


def kill_along_the_way(progress: Callable[[], int], until: int, crew: Crew) -> None:
    """Watch the work grow to its end, and kill somebody each time it has grown by so much."""
    steps_per_kill = min(STEPS_PER_KILL_MAX, until // 3)
    chance, next_kill = random.Random(11), steps_per_kill // 2
    stuck = time.monotonic() + STUCK_S
    while (reached := progress()) < until:
        assert time.monotonic() < stuck, f"{reached} of {until}"
        if reached >= next_kill:
            time.sleep(chance.random() * KILL_S_MAX)
            name = chance.choice(NAMES)
            crew.kill(name)
            crew.begin([name])
            next_kill = reached + steps_per_kill
            stuck = time.monotonic() + STUCK_S
        time.sleep(0.01)


def check_the_log(messages: list[dict[str, Any]], rows: int, kills: int) -> int:
    """Nothing is lost, and a key's messages lie in one queue in order; returns how many came twice."""
    places: defaultdict[str, list[int]] = defaultdict(list)
    queues: defaultdict[str, set[int]] = defaultdict(set)
    rows_of: defaultdict[str, set[str]] = defaultdict(set)
    for message in messages:
        key, place = message["body"].split()
        queues[key].add(message["queue_id"])
        rows_of[message["body"]].add(message["properties"][OUTBOX_ID])
        places[key].append(int(place))
    assert len(rows_of) == rows, "rows were lost"
    assert all(len(ids) == 1 for ids in rows_of.values()), "a second send is known by the row's id"
    assert all(len(ids) == 1 for ids in queues.values())
    for key, came in places.items():
        first_times = list(dict.fromkeys(came))
        assert first_times == sorted(first_times), f"key {key} came in the order {came}"
    twice = len(messages) - rows
    assert twice <= kills * BATCH_ROWS
    return twice


def test_no_row_is_lost_and_each_effect_is_once(
    tmp_path: Path,
    client: str,
    databases: tuple[str, str],
    endurance: dict[str, Any],
    pytestconfig: pytest.Config,
) -> None:
    rows = pytestconfig.getoption("rounds") * ROWS_PER_ROUND
    broker = endurance["BrokerProcess"](tmp_path / "store", "--invisible-ms-min", "1000")
    with serving(broker) as http, crew(broker, client, *databases) as at_work:
        http.post("/api/topics", json={"name": TOPIC, "message_type": "FIFO"}).raise_for_status()
        with at_work.start("create", *databases) as creating:
            assert hear(creating) == "ready"
        outbox, effects = (create_engine(url) for url in databases)
        at_work.begin(NAMES)
        began = time.monotonic()
        with at_work.start("fill", databases[0], TOPIC, str(rows)) as filling:
            kill_along_the_way(lambda: number(outbox, SENT) + number(effects, CONSUMED), 2 * rows, at_work)
            assert hear(filling) == "ready"
        seconds = time.monotonic() - began
        twice = check_the_log(stored(http, TOPIC), rows, at_work.killed["relay"])
        wait_until_all_is_consumed(http)
        again = metric(http, "rocketmq_messages_out_total") - rows
        assert number(effects, "SELECT count(*) FROM effects") == rows
        assert number(effects, "SELECT count(DISTINCT body) FROM effects") == rows
    outbox.dispose()
    effects.dispose()
    print(
        f"{client}: {rows} rows in {seconds:.1f} s, killed {dict(at_work.killed)}, lost 0, in order, "
        f"sent twice {twice} (at most {BATCH_ROWS} a kill), effects {rows}, each once, "
        f"though messages were given out {again:.0f} times more than there are rows"
    )


def wait_until_all_is_consumed(http: httpx.Client) -> None:
    """Also what was sent twice has come to a consumer, which had to recognise it."""
    deadline = time.monotonic() + STUCK_S
    while metric(http, "rocketmq_consumer_lag_messages") > 0:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def metric(http: httpx.Client, name: str) -> float:
    """The sum of a metric's series for the topic."""
    lines = http.get("/metrics").text.splitlines()
    series = [line for line in lines if line.startswith(f"{name}{{") and f'topic="{TOPIC}"' in line]
    assert series
    return sum(float(line.rpartition(" ")[2]) for line in series)
