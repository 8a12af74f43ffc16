"""`tidewheel audit init` where it has nothing to go on: one sentence, with what to do next."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from tests.command import in_this_process
from tidewheel import Client
from tidewheel.testing.process import BrokerProcess

NOT_DONE = 2


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two stores: `store` with messages, `idle/store` with a topic and none."""
    folder = tmp_path_factory.mktemp("stores")
    (folder / "idle").mkdir()
    for place, messages in ((folder, 3), (folder / "idle", 0)):
        broker = BrokerProcess(place)
        broker.start()
        created = in_this_process("topic", "create", "sales", environment={"TIDEWHEEL_HTTP": broker.http})
        assert created.returncode == 0, created.stderr
        client = Client(f"http://{broker.http}")
        for number in range(messages):
            client.send("sales", {"id": f"S-{number}"}, keys=[f"S-{number}"])
        broker.stop()
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Databases: one that is empty, one without orders."""
    sqlite3.connect(tmp_path / "empty.db").close()
    with sqlite3.connect(tmp_path / "other.db") as database:
        database.execute("VACUUM")
        database.execute("CREATE TABLE weather (day TEXT PRIMARY KEY, degrees INTEGER)")
        database.execute("INSERT INTO weather VALUES ('2026-11-27', 4), ('2026-11-28', 5)")
    (tmp_path / "audit.toml").write_text("[orders]\ntable = 'mine'\n")
    (tmp_path / "no.db").write_text("no database")
    return tmp_path


MISTAKES = {
    "no address": (
        ("orders.db", "store", "new.toml"),
        "TW-124",
        "--db is no address of a database. Give one such as",
    ),
    "no file": (
        ("sqlite:///gone.db", "store", "new.toml"),
        "TW-124",
        "There is no file gone.db. Correct --db.",
    ),
    "no database": (
        ("sqlite:///no.db", "store", "new.toml"),
        "TW-124",
        "Correct --db, or repair the database.",
    ),
    "no server": (
        ("postgresql+psycopg://u:secret@127.0.0.1:1/shop", "store", "new.toml"),
        "TW-124",
        "u:***@127.0.0.1:1/shop",
    ),
    "empty database": (
        ("sqlite:///empty.db", "store", "new.toml"),
        "TW-129",
        "The database has no tables. Correct --db: the orders are in another one.",
    ),
    "no table like orders": (
        ("sqlite:///other.db", "store", "new.toml"),
        "TW-129",
        "No table looks like orders: no column without repeated values holds the keys of messages, such as "
        "'S-0', 'S-1', 'S-2' of sales. Tables that can be read: weather. If",
    ),
    "no store": (
        ("sqlite:///other.db", "gone", "new.toml"),
        "TW-104",
        "Give --store the folder of a broker.",
    ),
    "store without messages": (
        ("sqlite:///other.db", "idle/store", "new.toml"),
        "TW-129",
        "The log holds no message yet. Let your service send some",
    ),
    "a file that is there": (
        ("sqlite:///other.db", "store", "audit.toml"),
        "TW-120",
        "audit.toml is there already, and you may have changed it. Give another name by --mapping, or "
        "--overwrite to replace it.",
    ),
    "a folder": (
        ("sqlite:///other.db", "store", "."),
        "TW-120",
        "is a folder. Give another name by --mapping.",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_sentence_and_nothing_is_written(stores: Path, folder: Path, name: str) -> None:
    (url, store, mapping), code, words = MISTAKES[name]
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    options = ("--db", url, "--store", str(stores / store), "--mapping", mapping)
    done = in_this_process("audit", "init", *options, environment={}, folder=folder)
    assert (done.returncode, done.stdout) == (NOT_DONE, ""), done.stderr
    (said,) = [line for line in done.stderr.splitlines() if not line.startswith(("Reading", "Looking"))]
    assert said.startswith(code)
    assert words in said
    assert "secret" not in said
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_what_is_not_known_is_asked_for_before_the_first_audit(stores: Path, folder: Path) -> None:
    """Messages without transactions would accuse every order: the proposal says so, and no audit is run."""
    with sqlite3.connect(folder / "sales.db") as database:
        database.execute("CREATE TABLE sale (code TEXT PRIMARY KEY, state TEXT, made BIGINT)")
        rows = [(f"S-{number}", "open", 1_795_000_000_000) for number in range(3)]
        database.executemany("INSERT INTO sale VALUES (?, ?, ?)", rows)
    options = ("--db", "sqlite:///sales.db", "--store", str(stores / "store"), "--overwrite")
    done = in_this_process("audit", "init", *options, environment={}, folder=folder)
    assert done.returncode == NOT_DONE, done.stderr
    assert "! sales has 3 messages that were sent without a transaction" in done.stdout
    assert "When audit.toml is right: tidewheel audit run --store" in done.stderr
    written = (folder / "audit.toml").read_text()
    assert 'table = "sale"  # one row per order -- code holds the keys of sales (3 of 3)' in written
    assert not (folder / "audit-out").exists()
    done = in_this_process("audit", "init", *options, "--json", environment={}, folder=folder)
    facts = json.loads(done.stdout)
    assert facts["mapping"]["orders"]["table"] == "sale"
    assert facts["audit"] is None
    assert [one["is_blocking"] for one in facts["doubts"]][:1] == [False]
