"""The barrier under `kill -9` at every step and against its own check-backs: never a row without its message.

Each with the official producer, `tidewheel.Client` and `tidewheel.AsyncClient`, on SQLite, PostgreSQL and
MariaDB. `--rounds 500` kills 1,000 orders and runs 500 races on each; 6 rounds and fewer play some of them
only.

An order that takes longer than the immunity, as on a busy machine, is rolled back by a check-back before its
row, and then refused instead of killed. It must have neither row nor message, and is counted apart.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import create_engine, text

from tests.endurance.client_processes import hear, running, say, serving, stored
from tests.mariadb import running_mariadb
from tests.postgresql import UNSYNCED, running_postgresql, running_servers
from tidewheel.barrier_table import barrier_sql

TOPICS = ("created", "deadline")
POINTS = (
    "before the halves",
    "between the halves",
    "after the halves",
    "after the barrier row",
    "before the commit",
    "after the commit",
    "between the ends",
    "after the ends",
    "random",
)
COMMITTED = {"after the commit", "between the ends", "after the ends"}
REFUSABLE = (
    "after the barrier row",
    "before the commit",
    "after the commit",
    "between the ends",
    "after the ends",
)
FENCED = "fenced, "
CLIENTS = ("official", "client", "async")
HURRY = ("--check-immunity-ms", "300", "--check-interval-ms", "300")
ASKED_ON_DEMAND = ("--check-immunity-ms", "600000")
ORDERS_PER_ROUND = 2
RACES_PER_ROUND = 1
STREAM_PER_ROUND = 10
BROKER_KILLS_MAX = 6
FEW_ROUNDS = 6
SELDOM = (("client", "sqlite"), ("async", "postgresql"), *((one, "mariadb") for one in CLIENTS))
PLACERS = 2
ENDED_S = 120


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    with running_postgresql() as url:
        yield url


@pytest.fixture(scope="module")
def mariadb() -> Iterator[str]:
    with running_mariadb() as server:
        yield server.url


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def on_every_database(client: str, request: pytest.FixtureRequest) -> None:
    """Run with a client of ours on some databases only, if there are few rounds."""
    rounds, database = request.config.getoption("rounds"), request.node.callspec.params.get("database")
    if rounds <= FEW_ROUNDS and (client, database or "postgresql") in SELDOM:
        pytest.skip(f"some databases for each client in make test; all with --rounds above {FEW_ROUNDS}")


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database with an orders table and the barrier's."""
    is_file = request.param == "sqlite"
    url = f"sqlite:///{tmp_path / 'orders.db'}" if is_file else request.getfixturevalue(request.param)
    create_tables(url)
    return url


def create_tables(url: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS orders"))
        connection.execute(text("DROP TABLE IF EXISTS tidewheel_barrier"))
        connection.execute(text("DROP TABLE IF EXISTS tidewheel_database"))
        connection.execute(text("CREATE TABLE orders (number INTEGER PRIMARY KEY)"))
        is_mariadb = getattr(connection.dialect, "is_mariadb", False)
        dialect = "mariadb" if is_mariadb else connection.dialect.name
        for statement in barrier_sql(dialect).split(";")[:-1]:
            connection.execute(text(statement))
    engine.dispose()


def at_work(broker: Any, client: str, database: str, *work: str) -> Any:
    """A process that places orders, or answers."""
    return running("barrier_process", broker, broker.http, client, database, *work)


def place(broker: Any, client: str, database: str, orders: list[tuple[int, str]]) -> set[int]:
    """Place orders that are killed; returns those refused by an earlier check-back instead."""
    refused = set[int]()
    with at_work(broker, client, database, "place") as process:
        for number, point in orders:
            say(process, f"{number} {point}")
            told = hear(process)
            if told == f"{number} refused" and point.removeprefix(FENCED) in (*REFUSABLE, "random"):
                refused.add(number)
            else:
                assert told == f"{number} killed", point
    return refused


def wait_until_all_have_ended(http: httpx.Client) -> dict[str, Any]:
    wait_until(lambda: http.get("/api/transactions/summary").json()["open"] == 0)
    summary: dict[str, Any] = http.get("/api/transactions/summary").json()
    return summary


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + ENDED_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def rows(database: str) -> set[int]:
    engine = create_engine(database)
    with engine.connect() as connection:
        found = set(connection.execute(text("SELECT number FROM orders")).scalars())
    engine.dispose()
    return found


def messages(http: httpx.Client, topic: str) -> Counter[int]:
    """How often each order has a message on a topic."""
    return Counter(int(message["body"]) for message in stored(http, topic))


def check_that_nothing_is_split(database: str, http: httpx.Client) -> set[int]:
    orders = rows(database)
    for topic in TOPICS:
        sent = messages(http, topic)
        assert orders - set(sent) == set(), f"rows without a message on {topic}"
        assert set(sent) - orders == set(), f"messages on {topic} without a row"
        assert set(sent.values()) <= {1}, f"messages that came twice on {topic}"
    return orders


def test_orders_killed_at_every_step_have_both_or_neither(
    tmp_path: Path, client: str, database: str, endurance: dict[str, Any], pytestconfig: pytest.Config
) -> None:
    count = pytestconfig.getoption("rounds") * ORDERS_PER_ROUND
    orders = [(number, POINTS[number % len(POINTS)]) for number in range(count)]
    random.Random(5).shuffle(orders)
    broker = endurance["BrokerProcess"](tmp_path / "store", *HURRY)
    with serving(broker) as http, at_work(broker, client, database, "answer") as answering:
        assert hear(answering) == "done"
        with ThreadPoolExecutor(PLACERS) as placers:
            parts = [orders[part::PLACERS] for part in range(PLACERS)]
            refused = set[int]().union(
                *placers.map(lambda part: place(broker, client, database, part), parts)
            )
        summary = wait_until_all_have_ended(http)
        placed = check_that_nothing_is_split(database, http)
    assert refused & placed == set()
    survivors = Counter(point for number, point in orders if number in placed)
    killed = Counter(point for number, point in orders if number not in refused)
    assert set(survivors) <= COMMITTED | {"random"}
    assert {point: survivors[point] for point in COMMITTED} == {point: killed[point] for point in COMMITTED}
    print(f"{client}, {database.partition(':')[0]}: {count} orders, split 0, lost 0, twice 0; {summary}")
    for point in POINTS:
        late = sum(number in refused for number, its_point in orders if its_point == point)
        print(
            f"{point:22} {killed[point]:4} killed, {survivors[point]:4} with rows and messages, "
            f"{late:4} refused by an earlier check-back"
        )


@pytest.mark.usefixtures("on_every_database")
def test_an_order_refused_by_an_earlier_check_back_has_neither(
    tmp_path: Path, client: str, database: str, endurance: dict[str, Any]
) -> None:
    orders = [(number, FENCED + point) for number, point in enumerate(REFUSABLE)]
    broker = endurance["BrokerProcess"](tmp_path / "store", *HURRY)
    with serving(broker) as http, at_work(broker, client, database, "answer") as answering:
        assert hear(answering) == "done"
        assert place(broker, client, database, orders) == {number for number, _ in orders}
        wait_until_all_have_ended(http)
        assert check_that_nothing_is_split(database, http) == set()


@pytest.mark.usefixtures("on_every_database")
def test_a_service_with_another_database_that_shares_the_topics_splits_nothing(
    tmp_path: Path, client: str, endurance: dict[str, Any]
) -> None:
    """It is asked as well, knows nothing of these orders, and must not say that they were rolled back."""
    ours, others = (f"sqlite:///{tmp_path / name}" for name in ("orders.db", "others.db"))
    for url in (ours, others):
        create_tables(url)
    broker = endurance["BrokerProcess"](tmp_path / "store", *ASKED_ON_DEMAND, "--check-count-max", "1000")
    with serving(broker) as http, at_work(broker, client, others, "answer") as other:
        assert hear(other) == "done"
        assert place(broker, client, ours, [(number, "after the commit") for number in range(4)]) == set()
        wait_until(lambda: ask_about_all(http) > 0 and asked(http, "UNKNOWN"))
        with at_work(broker, client, ours, "answer") as answering:
            assert hear(answering) == "done"
            wait_until(lambda: ask_about_all(http) == 0)
        assert check_that_nothing_is_split(ours, http) == {0, 1, 2, 3}


def ask_about_all(http: httpx.Client) -> int:
    """Have a producer asked about each half that is open; returns how many are."""
    halves = http.get("/api/transactions", params={"state": "OPEN"}).json()["transactions"]
    for half in halves:
        http.post(f"/api/transactions/{half['transaction_id']}/check")
    return len(halves)


def asked(http: httpx.Client, answer: str) -> bool:
    questions = http.get("/api/transactions/log").json()["questions"]
    return any(question["answer"] == answer for question in questions)


@pytest.mark.usefixtures("on_every_database")
def test_a_commit_that_races_its_own_check_back_never_splits(
    tmp_path: Path, client: str, database: str, endurance: dict[str, Any], pytestconfig: pytest.Config
) -> None:
    count = pytestconfig.getoption("rounds") * RACES_PER_ROUND
    broker = endurance["BrokerProcess"](
        tmp_path / "store", "--check-immunity-ms", "20", "--check-interval-ms", "50"
    )
    with serving(broker) as http, at_work(broker, client, database, "race", str(count)) as racing:
        results = list(iter(lambda: hear(racing), "done"))
        assert sum(int(line.rpartition(" ")[2]) for line in results) == count
        summary = wait_until_all_have_ended(http)
        placed = check_that_nothing_is_split(database, http)
    print(f"{client}: {count} races, rows {len(placed)}, split 0; {results}; {summary}")


@pytest.mark.usefixtures("on_every_database")
def test_a_transaction_of_twenty_seconds_commits(
    tmp_path: Path, client: str, database: str, endurance: dict[str, Any]
) -> None:
    broker = endurance["BrokerProcess"](
        tmp_path / "store", "--clock", "virtual", "--check-immunity-ms", "6000"
    )
    with serving(broker) as http, at_work(broker, client, database, "slow") as slow:
        assert hear(slow) == "inside"
        assert http.post("/api/clock/advance", json={"by": "20s"}).is_success
        say(slow, "commit")
        assert hear(slow) == "done"
        wait_until_all_have_ended(http)
        assert check_that_nothing_is_split(database, http) == {1}
        answers = [question["answer"] for question in http.get("/api/transactions/log").json()["questions"]]
        print(f"{client}: a transaction of 20 s commits; its check-backs were answered {answers}")
    assert "UNKNOWN" in answers


@pytest.mark.parametrize("client", CLIENTS[1:])
@pytest.mark.usefixtures("on_every_database")
def test_a_broker_that_is_killed_under_orders_splits_nothing(
    tmp_path: Path, client: str, database: str, endurance: dict[str, Any], pytestconfig: pytest.Config
) -> None:
    rounds = pytestconfig.getoption("rounds")
    count, kills = rounds * STREAM_PER_ROUND, min(rounds // 3, BROKER_KILLS_MAX)
    broker = endurance["BrokerProcess"](tmp_path / "store", *HURRY)
    with serving(broker) as http, at_work(broker, client, database, "stream", str(count)) as placing:
        for _ in range(kills):
            for _ in range(count // (kills + 1)):
                hear(placing)
            broker.kill()
            broker.start()
        *_, failed = iter(lambda: hear(placing), "done")
        wait_until_all_have_ended(http)
        placed = check_that_nothing_is_split(database, http)
    print(f"{client}: {count} orders, the broker killed {kills} times, rows {len(placed)}, split 0; {failed}")


@pytest.mark.parametrize("client", CLIENTS[1:])
@pytest.mark.usefixtures("on_every_database")
def test_a_database_that_is_killed_under_orders_splits_nothing(
    tmp_path: Path, client: str, endurance: dict[str, Any], pytestconfig: pytest.Config
) -> None:
    rounds = pytestconfig.getoption("rounds")
    count, kills = rounds * STREAM_PER_ROUND, min(rounds // 3, BROKER_KILLS_MAX)
    broker = endurance["BrokerProcess"](tmp_path / "store", *HURRY, "--check-count-max", "1000")
    with running_servers(options=UNSYNCED) as servers, serving(broker) as http:
        database = servers.url.replace("postgresql", "postgresql+psycopg", 1)
        create_tables(database)
        with at_work(broker, client, database, "stream", str(count)) as placing:
            for _ in range(kills):
                for _ in range(count // (kills + 1)):
                    hear(placing)
                servers.primary.kill()
                hear(placing)
                servers.primary.start()
            *_, failed = iter(lambda: hear(placing), "done")
            wait_until_all_have_ended(http)
            placed = check_that_nothing_is_split(database, http)
    print(f"{client}: {count} orders, PostgreSQL killed {kills} times, rows {len(placed)}, split 0; {failed}")
