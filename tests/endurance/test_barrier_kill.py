"""The barrier under `kill -9` at every step, and against its own check-backs: rows and messages never split."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import create_engine, text

from tests.postgresql import running_postgresql
from txn.barrier_table import barrier_sql

ROOT = Path(__file__).parents[2]
TOPICS = ("created", "deadline")
POINTS = (
    "between halves",
    "after the halves",
    "after the barrier row",
    "before the commit",
    "after the commit",
    "random",
)
HURRY = ("--check-immunity-ms", "300", "--check-interval-ms", "300")
ORDERS_PER_ROUND = 4
RACES_PER_ROUND = 2
PLACERS = 2
ENDED_S = 120


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    with running_postgresql() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database with an orders table and the barrier's."""
    is_file = request.param == "sqlite"
    url = f"sqlite:///{tmp_path / 'orders.db'}" if is_file else request.getfixturevalue("postgresql")
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS orders"))
        connection.execute(text("DROP TABLE IF EXISTS tidewheel_barrier"))
        connection.execute(text("CREATE TABLE orders (number INTEGER PRIMARY KEY)"))
        connection.execute(text(barrier_sql(request.param)))
    engine.dispose()
    return url


@contextmanager
def client(broker: Any, database: str, *work: str) -> Iterator[subprocess.Popen[str]]:
    """A process with the official client, ended by the end of its input."""
    command = [sys.executable, "-m", "tests.endurance.barrier_process", broker.listen, database, *work]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(broker.store.parent)}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def say(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def place(broker: Any, database: str, orders: list[tuple[int, str]]) -> None:
    with client(broker, database, "place") as process:
        for number, point in orders:
            say(process, f"{number} {point}")
            assert hear(process) == f"{number} killed", point


def wait_until_all_have_ended(http: httpx.Client) -> dict[str, Any]:
    deadline = time.monotonic() + ENDED_S
    while True:
        summary: dict[str, Any] = http.get("/api/transactions/summary").json()
        if summary["open"] == 0:
            return summary
        assert time.monotonic() < deadline, summary
        time.sleep(0.05)


def rows(database: str) -> set[int]:
    engine = create_engine(database)
    with engine.connect() as connection:
        found = set(connection.execute(text("SELECT number FROM orders")).scalars())
    engine.dispose()
    return found


def messages(http: httpx.Client, topic: str) -> Counter[int]:
    """Every message that a topic holds, delivered or not."""
    queues = http.get(f"/api/topics/{topic}").json()["queues"]
    after = ",".join(f"{queue['queue_id']}:{queue['min_offset']}" for queue in queues)
    found: Counter[int] = Counter()
    while page := http.get(f"/api/topics/{topic}/arrivals", params={"after": after, "limit": 500}).json():
        if not page["messages"]:
            break
        found.update(int(message["body"]) for message in page["messages"])
        after = page["after"]
    return found


def check_that_nothing_is_split(database: str, http: httpx.Client) -> set[int]:
    stored = rows(database)
    for topic in TOPICS:
        sent = messages(http, topic)
        assert stored - set(sent) == set(), f"rows without a message on {topic}"
        assert set(sent) - stored == set(), f"messages on {topic} without a row"
        assert set(sent.values()) <= {1}, f"messages that came twice on {topic}"
    return stored


def test_orders_killed_at_every_step_have_both_or_neither(
    tmp_path: Path, database: str, endurance: dict[str, Any], pytestconfig: pytest.Config
) -> None:
    count = pytestconfig.getoption("rounds") * ORDERS_PER_ROUND
    orders = [(number, POINTS[number % len(POINTS)]) for number in range(count)]
    random.Random(5).shuffle(orders)
    broker = endurance["BrokerProcess"](tmp_path / "store", *HURRY)
    broker.start()
    with (
        client(broker, database, "answer") as answering,
        httpx.Client(base_url=f"http://{broker.http}") as http,
    ):
        assert hear(answering) == "done"
        with ThreadPoolExecutor(PLACERS) as placers:
            parts = [orders[part::PLACERS] for part in range(PLACERS)]
            list(placers.map(lambda part: place(broker, database, part), parts))
        summary = wait_until_all_have_ended(http)
        stored = check_that_nothing_is_split(database, http)
    assert broker.stop() == 0
    survivors = Counter(point for number, point in orders if number in stored)
    killed = Counter(point for _, point in orders)
    assert set(survivors) <= {"after the commit", "random"}
    assert survivors["after the commit"] == killed["after the commit"]
    print(f"{count} orders killed, rows {len(stored)}, split 0; rows by point {dict(survivors)}; {summary}")


def test_a_commit_that_races_its_own_check_back_never_splits(
    tmp_path: Path, database: str, endurance: dict[str, Any], pytestconfig: pytest.Config
) -> None:
    count = pytestconfig.getoption("rounds") * RACES_PER_ROUND
    broker = endurance["BrokerProcess"](
        tmp_path / "store", "--check-immunity-ms", "20", "--check-interval-ms", "50"
    )
    broker.start()
    with client(broker, database, "race", str(count)) as racing:
        results = list(iter(lambda: hear(racing), "done"))
        assert sum(int(line.rpartition(" ")[2]) for line in results) == count
        with httpx.Client(base_url=f"http://{broker.http}") as http:
            summary = wait_until_all_have_ended(http)
            stored = check_that_nothing_is_split(database, http)
    assert broker.stop() == 0
    print(f"{count} races, rows {len(stored)}, split 0; {results}; {summary}")


def test_a_transaction_of_twenty_seconds_commits(
    tmp_path: Path, database: str, endurance: dict[str, Any]
) -> None:
    broker = endurance["BrokerProcess"](
        tmp_path / "store", "--clock", "virtual", "--check-immunity-ms", "6000"
    )
    broker.start()
    http = httpx.Client(base_url=f"http://{broker.http}", timeout=60)
    with client(broker, database, "slow") as slow, http:
        assert hear(slow) == "inside"
        assert http.post("/api/clock/advance", json={"by": "20s"}).is_success
        say(slow, "commit")
        checks = hear(slow)
        assert hear(slow) == "done"
        wait_until_all_have_ended(http)
        assert check_that_nothing_is_split(database, http) == {1}
        print(checks, http.get("/api/transactions/log").json())
    assert broker.stop() == 0
    assert "TRANSACTION_RESOLUTION_UNSPECIFIED" in checks or "0" in checks
