"""`tidewheel outbox` on a database of its own: what is parked is seen, shown and brought back."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_engine, update
from sqlalchemy.orm import sessionmaker

from tests.command import tidewheel
from tidewheel import Client, NewMessage, outbox

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A database with one parked row and one that waits."""
    made = f"sqlite:///{tmp_path / 'shop.db'}"
    engine = create_engine(made)
    outbox.create_table(engine)
    with sessionmaker(engine).begin() as session:
        for number in (7, 8):
            outbox.add(session, NewMessage("orders", {"order": number}, keys=[f"order-{number}"]))
        parked = {
            "retry_ms": -1_900_000_000_000,
            "attempts": 10,
            "last_error": "TW-151 The topic does not exist.",
        }
        session.execute(update(outbox.outbox_table).where(outbox.outbox_table.c.id == 1).values(parked))
    engine.dispose()
    return made


def test_parked_rows_are_listed_shown_and_brought_back(url: str) -> None:
    listed = tidewheel("outbox", "ls", "--db", url)
    assert (listed.returncode, listed.stderr) == (0, "1 parked, 1 waiting\n")
    assert "order-7" in listed.stdout
    assert "TW-151" in listed.stdout
    assert "order-8" not in listed.stdout
    both = tidewheel("outbox", "ls", "--waiting", "--json", environment={"TIDEWHEEL_OUTBOX_DB": url})
    assert [(row["id"], row["body"]) for row in json.loads(both.stdout)] == [
        (1, '{"order":7}'),
        (2, '{"order":8}'),
    ]
    shown = json.loads(tidewheel("outbox", "show", 1, "--db", url, "--json").stdout)
    assert shown["last_error"] == "TW-151 The topic does not exist."
    assert "topic" in tidewheel("outbox", "show", 1, "--db", url).stdout
    brought = tidewheel("outbox", "replay", 1, "--db", url)
    assert (brought.returncode, brought.stdout) == (0, "1 wait for a relay again\n")
    engine = create_engine(url)
    assert outbox.counts(engine).parked == 0
    engine.dispose()
    assert tidewheel("outbox", "replay", "--all", "--db", url).stdout == "0 wait for a relay again\n"


@pytest.mark.parametrize("address", ["sqlite:///typo.db", "sqlite:///file:typo.db?uri=true"])
@pytest.mark.parametrize("words", [("ls",), ("show", "1"), ("replay", "--all")])
def test_a_slip_in_the_name_of_a_file_makes_no_file(
    tmp_path: Path, address: str, words: tuple[str, ...]
) -> None:
    ended = tidewheel("outbox", *words, "--db", address, folder=tmp_path)
    assert (ended.returncode, "no file typo.db." in ended.stderr) == (2, True)
    assert [*tmp_path.iterdir()] == []


def test_a_row_is_shown_with_all_that_will_be_sent(url: str) -> None:
    engine = create_engine(url)
    due = (datetime.now(UTC) + timedelta(days=30)).replace(microsecond=608_000)
    message = NewMessage(
        "orders",
        {"order": 9},
        keys=["order-9", "customer 4"],
        tag="paid",
        at=due,
        key="pay:9",
        properties={"colour": "blue"},
        cancel=Client("127.0.0.1:1", token="").timer("orders", "pay:8"),
    )
    with sessionmaker(engine).begin() as session:
        outbox.add(session, message)
    engine.dispose()
    shown = json.loads(tidewheel("outbox", "show", 3, "--db", url, "--json").stdout)
    assert shown["keys"] == ["order-9", "customer 4"]
    assert (shown["tag"], shown["body"]) == ("paid", '{"order":9}')
    assert shown["properties"].items() >= {
        ("colour", "blue"), ("TW_TIMER_KEY", "pay:9"), ("TW_TIMER_CANCEL", "pay:8"),
    }  # fmt: skip
    lines = tidewheel("outbox", "show", 3, "--db", url).stdout.splitlines()
    assert "keys           order-9 customer 4" in lines
    assert "property       TW_TIMER_CANCEL=pay:8" in lines
    local = f"{due.astimezone():%Y-%m-%d %H:%M:%S}.{due.microsecond // 1000:03d}"
    assert f"deliver_at     {local}" in lines


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("show", "9"), "no row 9"),
        (("replay",), "--all"),
        (("replay", "1", "2"), "not parked"),
        (("ls", "--db", "nonsense"), "--db cannot be used"),
        (("ls", "--db", "sqlite:////no/such/folder/x.db"), "no file /no/such/folder/x.db."),
        (("ls", "--db", "sqlite:////dev/null/x.db"), "no file /dev/null/x.db."),
        (("show", "1", "--db", "sqlite+aiosqlite:///x.db"), "Write sqlite:///x.db."),
        (("ls", "--db", "mysql+asyncmy://u:secret@h/x"), "Write mysql+pymysql://u:***@h/x."),
        (("ls", "--db", "mariadb+aiomysql://u@h/x"), "Write mariadb+pymysql://u@h/x."),
        (("replay", "--all", "--db", "postgresql+asyncpg://u@h/x"), "Write postgresql+psycopg://u@h/x."),
        (("ls", "--db", "oracle://u@h/x"), "oracledb"),
        (("ls", "--db", "mysql://u@h/x"), "mysql+pymysql://USER"),
        (("ls", "--db", "mariadb://u@h/x"), "mariadb+pymysql://USER"),
        (("ls", "--db", "postgres://u@h/x"), "postgresql+psycopg://USER"),
        (("ls", "--db", "mysql+mysqlconnector://u@h/x"), "Name the driver: mysql+pymysql://USER"),
        (("ls", "--db", "shop.db"), "Write a URL, such as sqlite:///shop.db"),
        (("ls", "--db", "jdbc:mysql://h/x"), "Write a URL, such as sqlite:///shop.db"),
        (("ls", "--db", "sqlite://"), "no table tidewheel_outbox"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(url: str, words: tuple[str, ...], said: str) -> None:
    ended = tidewheel("outbox", *words, environment={"TIDEWHEEL_OUTBOX_DB": url})
    assert ended.returncode in (2, 4)
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
