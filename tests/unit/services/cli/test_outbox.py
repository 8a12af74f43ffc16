"""`tidewheel outbox` on a database of its own: what is parked is seen, shown and brought back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_engine, update
from sqlalchemy.orm import sessionmaker

from tests.command import tidewheel
from tidewheel import NewMessage, outbox

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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("show", "9"), "no row 9"),
        (("replay",), "--all"),
        (("replay", "1", "2"), "not parked"),
        (("ls", "--db", "nonsense"), "--db cannot be used"),
        (("ls", "--db", "mysql://root@127.0.0.1/shop"), "mysql+pymysql://"),
        (("ls", "--db", "mariadb://root@127.0.0.1/shop"), "mariadb+pymysql://"),
        (("ls", "--db", "postgres://shop@127.0.0.1/shop"), "postgresql+psycopg://"),
        (("ls", "--db", "sqlite+aiosqlite:///x.db"), "a driver for a loop"),
        (("ls", "--db", "sqlite:////no/such/folder/x.db"), "database does not do this"),
        (("ls", "--db", "sqlite://"), "no table tidewheel_outbox"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(url: str, words: tuple[str, ...], said: str) -> None:
    ended = tidewheel("outbox", *words, environment={"TIDEWHEEL_OUTBOX_DB": url})
    assert ended.returncode in (2, 4)
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
