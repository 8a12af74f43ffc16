"""What the doctor says of a shared log whose PostgreSQL has lost, doubled or changed records."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from itertools import count

import psycopg
import pytest

from services.doctor.finding import Verdict
from services.doctor.shared_log import examined
from sharedlog.engines import create, engine_of
from sharedlog.holdings import Holding
from sharedlog.record import NOBODY, Kind, SharedRecord, encode, encode_facts
from tests.postgresql import running_postgresql

NAMES = (f"doctored{number}" for number in count())


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with running_postgresql() as url:
        yield url.replace("postgresql+psycopg", "postgresql")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("SELECT 1", ""),
        ("DELETE FROM {log}_record WHERE record = 2", "Record 2 of {log}_record is missing: 3 follows 1."),
        (
            "DELETE FROM {log}_record WHERE record >= 4",
            "Records 4 to 5 of {log}_record are missing: {log}_head has 5 as the last one.",
        ),
        (
            "DELETE FROM {log}_record",
            "Records 0 to 5 of {log}_record are missing: the table is empty, "
            "and {log}_head has 5 as the last one.",
        ),
        (
            "UPDATE {log}_record SET stored = set_byte(stored, 80, 7) WHERE record = 3",
            "Record 3 does not match its CRC: 102 bytes are not what was written.",
        ),
        (
            "DROP INDEX {log}_record_record_idx; INSERT INTO {log}_record SELECT * FROM {log}_record "
            "WHERE record = 3",
            "Record 3 is in {log}_record more than once.",
        ),
    ],
)
def test_what_a_log_has_lost_is_said_with_what_to_do(database: str, command: str, said: str) -> None:
    name = next(NAMES)
    url = f"{database}&log={name}"
    with closing(engine_of(url)) as engine:
        cluster = create(engine, {})
        for _ in range(5):
            engine.append_unchecked(
                encode(SharedRecord(cluster, Kind.HOLD, 0, NOBODY, 0, 0, b'{"next_record":0,"x":1}'))
            )
    with psycopg.connect(database, autocommit=True) as connection:
        for one in command.format(log=name).split(";"):
            connection.execute(one.encode())
    found = [one for one in examined(url) if one.step == "records"]
    if not said:
        assert [(one.verdict, one.seen) for one in found] == [
            (Verdict.FINE, "each is there once, and each matches its CRC")
        ]
        return
    assert [(one.verdict, one.seen) for one in found[:1]] == [(Verdict.WRONG, said.format(log=name))]
    assert all("no valid unique index" in one.seen for one in found[1:])
    assert "Keep the --store of every node" in found[0].advice


@pytest.mark.parametrize(
    ("leader_ms", "said"),
    [
        (None, "behind this machine's, set one of the two right; cluster status"),
        (10_000, "behind this machine's, and of the leader's: set the engine's right"),
        (0, "behind this machine's, set this machine's right"),
    ],
)
def test_whose_clock_is_off_is_said(
    database: str, monkeypatch: pytest.MonkeyPatch, leader_ms: int | None, said: str
) -> None:
    name = next(NAMES)
    url = f"{database}&log={name}"
    with closing(engine_of(url)) as engine:
        cluster = create(engine, {})
        now_ms = time.time_ns() // 1_000_000
        facts = {} if leader_ms is None else {"clock_ms": now_ms + leader_ms}
        engine.append_unchecked(
            encode(SharedRecord(cluster, Kind.BEAT, 1, NOBODY, 0, 0, encode_facts(facts)))
        )
    assert [one for one in examined(url) if one.step == "clock"] == []
    ahead = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: ahead() + 10_000_000_000)
    (found,) = [one for one in examined(url) if one.step == "clock"]
    assert found.verdict is Verdict.WRONG
    seconds, _, rest = found.seen.removeprefix("the engine's is ").partition(" s ")
    assert 9 < float(seconds) < 10.5  # the engine's answer may take a while
    assert rest.startswith(said)


def test_the_word_of_a_node_that_cannot_read_on_is_told_until_it_has_a_copy(database: str) -> None:
    url = f"{database}&log={next(NAMES)}"
    said: list[list[str]] = []
    with closing(engine_of(url)) as engine:
        cluster = create(engine, {})
        for facts in (
            Holding(1).facts("b") | {"unreadable": [1, 0, "Record 1 is missing."]},
            Holding(2, 100).facts("b"),
        ):
            engine.append_unchecked(
                encode(SharedRecord(cluster, Kind.HOLD, 0, NOBODY, 0, 0, encode_facts(facts)))
            )
            found = [one for one in examined(url) if one.step == "records"]
            said.append([one.seen for one in found if one.verdict is Verdict.WRONG])
    assert said == [["node b cannot read on at record 1: Record 1 is missing."], []]


def test_a_log_whose_beginning_was_deleted_is_said(database: str) -> None:
    name = next(NAMES)
    url = f"{database}&log={name}"
    with closing(engine_of(url)) as engine:
        cluster = create(engine, {})
        for _ in range(3):
            engine.append_unchecked(
                encode(SharedRecord(cluster, Kind.HOLD, 0, NOBODY, 0, 0, b'{"next_record":0,"x":1}'))
            )
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"DELETE FROM {name}_record WHERE record < 2".encode())
    (found,) = [one for one in examined(url) if one.step == "cluster"]
    assert found.verdict is Verdict.WRONG
    assert found.seen.startswith("It begins at record 2, and ends at 3: what was before is deleted")
