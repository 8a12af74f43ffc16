"""A shared log in a real PostgreSQL: nothing is added behind another head, nothing unproven believed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from threading import Thread

import psycopg
import pytest

from sharedlog import postgres
from sharedlog.engine import Head
from sharedlog.errors import ClusterExists, NoCluster, Refused, Unknown
from sharedlog.fold import Position
from sharedlog.postgres import PostgresLog
from sharedlog.record import CHAIN_AT_GENESIS, NOBODY
from tests.postgresql import running_postgresql

BEGIN = Head(0, NOBODY, Position(0, CHAIN_AT_GENESIS))
NAMES = (f"log{number}" for number in count())


@pytest.fixture(scope="module")
def conninfo() -> Iterator[str]:
    with running_postgresql() as url:
        yield url.replace("postgresql+psycopg", "postgresql")


@pytest.fixture
def log(conninfo: str) -> Iterator[PostgresLog]:
    log = PostgresLog(conninfo, next(NAMES))
    log.found(BEGIN)
    yield log
    log.close()


def at(end: int, epoch: int = 1, holder: bytes = b"m" * 16) -> Head:
    return Head(epoch, holder, Position(end, (1 << 64) - 1 - end))


def test_records_are_read_as_they_were_appended(log: PostgresLog) -> None:
    assert log.bounds() == (0, 0)
    assert log.append_if(BEGIN, [b"genesis"], at(0)) == 0
    assert log.append_if(at(0), [b"one", b"\0two"], at(7)) == 2
    found = log.read(0, 1 << 20)
    assert [(one.offset, one.stored) for one in found] == [(0, b"genesis"), (1, b"one"), (2, b"\0two")]
    assert found[0].appended_ms <= found[1].appended_ms
    assert log.head() == at(7)
    assert log.bounds() == (0, 3)


@pytest.mark.parametrize(
    "other", [at(8), at(7, epoch=2), at(7, holder=b"x" * 16), Head(1, b"m" * 16, Position(7, 5))]
)
def test_nothing_is_added_behind_another_head(log: PostgresLog, other: Head) -> None:
    log.append_if(BEGIN, [b"one"], at(7))
    with pytest.raises(Refused):
        log.append_if(other, [b"a zombie's"], at(9))
    assert log.bounds() == (0, 1)
    assert log.append_if(at(7), [b"two"], at(9)) == 1


def test_of_two_writers_one_appends(log: PostgresLog, conninfo: str) -> None:
    log.append_if(BEGIN, [b"begin"], at(0))
    won: list[int] = []

    def write(writer: int) -> None:
        own = PostgresLog(conninfo, log._log)
        for end in range(1, 41):
            try:
                own.append_if(at(end - 1), [b"%d" % writer], at(end))
            except Refused:
                while log.head().position.end < end:
                    pass
            else:
                won.append(end)
        own.close()

    writers = [Thread(target=write, args=(number,)) for number in range(3)]
    for one in writers:
        one.start()
    for one in writers:
        one.join()
    assert sorted(won) == list(range(1, 41))
    assert [one.offset for one in log.read(0, 1 << 20)] == list(range(41))


def test_a_read_has_a_bound_and_at_least_one(log: PostgresLog) -> None:
    log.append_if(BEGIN, [bytes(100)] * 10, at(0))
    assert [one.offset for one in log.read(0, 250)] == [0, 1, 2]
    assert [one.offset for one in log.read(3, 1)] == [3]
    assert log.read(10, 1 << 20) == []


def test_a_note_lands_whoever_leads_and_changes_no_head(log: PostgresLog) -> None:
    head = log.head()
    log.note(b"a node's")
    log.note(b"another's")
    assert log.head() == head
    assert [one.stored for one in log.read(0, 100)] == [b"a node's", b"another's"]
    assert log.append_if(head, [b"the leader's"], head) == 2, "and tells by its offset what came between"


def test_what_is_trimmed_goes_by_whole_partitions(conninfo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = PostgresLog(conninfo, "small")
    with monkeypatch.context() as while_it_is_founded:
        while_it_is_founded.setattr(postgres, "PARTITION_RECORDS", 10)
        log.found(BEGIN)
    for number in range(4):
        log.append_if(BEGIN if number == 0 else at(number), [b"x"] * 8, at(number + 1))
    log.trim(25)
    assert log.bounds() == (20, 32)
    assert [one.offset for one in log.read(20, 1 << 20)] == list(range(20, 32))
    log.trim(32)
    assert log.bounds() == (30, 32)
    assert log.append_if(at(4), [b"x"], at(5)) == 32
    log.close()


def test_a_log_is_founded_once(log: PostgresLog, conninfo: str) -> None:
    again = PostgresLog(conninfo, log._log)
    with pytest.raises(ClusterExists, match="already"):
        again.found(BEGIN)
    again.close()


def test_a_connection_that_breaks_is_opened_anew(log: PostgresLog, conninfo: str) -> None:
    log.append_if(BEGIN, [b"one"], at(0))
    with psycopg.connect(conninfo, autocommit=True) as other:
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND query LIKE %s",
            [f"%{log._log}%"],
        )
    with pytest.raises(Unknown, match="PostgreSQL did not answer"):
        log.append_if(at(0), [b"two"], at(1))
    assert log.append_if(log.head(), [b"three"], at(2)) == 1


def test_a_server_that_is_not_there_proves_nothing() -> None:
    with pytest.raises(Unknown, match="did not answer"):
        PostgresLog("host=127.0.0.1 port=9 user=nobody dbname=none").bounds()


def test_a_commit_that_does_not_wait_for_its_standbys_is_no_acknowledgement(
    log: PostgresLog, conninfo: str
) -> None:
    log.append_if(BEGIN, [b"one"], at(0))
    with psycopg.connect(conninfo, autocommit=True) as other:
        other.execute("ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (nobody)'")
        other.execute("SELECT pg_reload_conf()")
        raised: list[BaseException] = []

        def append() -> None:
            try:
                for end in range(1, 100_000):  # until the server has read its settings again
                    log.append_if(at(end - 1), [b"two"], at(end))
            except Unknown as error:
                raised.append(error)

        waiting = Thread(target=append)
        waiting.start()
        try:
            while waiting.is_alive():
                other.execute(
                    "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
                )
        finally:
            other.execute("ALTER SYSTEM RESET synchronous_standby_names")
            other.execute("SELECT pg_reload_conf()")
            waiting.join()
    assert len(raised) == 1
    assert "PostgreSQL warned" in str(raised[0])
    # It is there all the same, and nobody may say that it is safe.
    assert log.head() == at(log.bounds()[1] - 1)


def test_tables_that_are_gone_are_said_so(log: PostgresLog, conninfo: str) -> None:
    log.append_if(BEGIN, [b"one"], at(0))
    with psycopg.connect(conninfo, autocommit=True) as other:
        other.execute(f"TRUNCATE {log._log}_head")
        for ask in (log.head, log.bounds, lambda: log.append_if(at(0), [b"two"], at(1))):
            with pytest.raises(NoCluster, match="is empty"):
                ask()
        other.execute(f"DROP TABLE {log._log}_record")
    with pytest.raises(NoCluster, match="tidewheel cluster create"):
        log.read(0, 1)
