"""Tests a shared log in PostgreSQL, including the comparison of heads, failovers, and unsafe settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import psycopg
import pytest

from sharedlog import postgres
from sharedlog.engine import Head
from sharedlog.errors import (
    ClusterExists,
    EngineRefused,
    EngineUnavailable,
    Halted,
    NoCluster,
    RightMissing,
    SessionRefused,
)
from sharedlog.fold import Position
from sharedlog.password_file import PasswordFile
from sharedlog.postgres import IDLE_SECONDS, PostgresLog
from sharedlog.postgres_settings import Settings
from sharedlog.record import CHAIN_AT_GENESIS, NOBODY
from tests.postgresql import (
    UNSYNCED,
    USER,
    PostgresServer,
    running_postgresql,
    running_servers,
    running_standby,
)

BEGIN = Head(0, NOBODY, Position(0, CHAIN_AT_GENESIS))
ALL = 1 << 24
WAIT_SECONDS = 30
NAMES = (f"log{number}" for number in count())


@pytest.fixture(scope="module")
def conninfo() -> Iterator[str]:
    with running_postgresql(syncs=True) as url:
        yield url.replace("postgresql+psycopg", "postgresql")


@pytest.fixture
def log(conninfo: str) -> Iterator[PostgresLog]:
    log = PostgresLog(conninfo, next(NAMES))
    log.create_log(BEGIN)
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
    with pytest.raises(EngineRefused):
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
            except EngineRefused:
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
    log.append_unchecked(b"a node's")
    log.append_unchecked(b"another's")
    assert log.head() == head
    assert [one.stored for one in log.read(0, 100)] == [b"a node's", b"another's"]
    assert log.append_if(head, [b"the leader's"], head) == 2, "and tells by its offset what came between"


def test_what_is_trimmed_goes_by_whole_partitions(conninfo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = PostgresLog(conninfo, "small")
    with monkeypatch.context() as while_it_is_founded:
        while_it_is_founded.setattr(postgres, "PARTITION_RECORDS", 10)
        log.create_log(BEGIN)
    for number in range(4):
        log.append_if(BEGIN if number == 0 else at(number), [b"x"] * 8, at(number + 1))
    log.trim(25)
    assert log.bounds() == (20, 32)
    assert [one.offset for one in log.read(20, 1 << 20)] == list(range(20, 32))
    log.trim(32)
    assert log.bounds() == (30, 32)
    assert log.append_if(at(4), [b"x"], at(5)) == 32
    monkeypatch.setattr(postgres, "READ_RECORDS_MAX", 3)
    assert [one.offset for one in log.read(0, 1 << 20)] == [30, 31, 32], "however far trimmed, not nothing"
    assert log.read(33, 1 << 20) == []
    log.close()


def test_a_dump_of_the_database_holds_up_no_append_and_trimming_waits_for_it(
    conninfo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = PostgresLog(conninfo, "dumped")
    monkeypatch.setattr(postgres, "PARTITION_RECORDS", 10)
    log.create_log(BEGIN)
    log.append_if(BEGIN, [b"x"] * 25, at(1))
    with psycopg.connect(conninfo) as dump:
        dump.execute("LOCK TABLE dumped_record, dumped_record_0, dumped_record_1 IN ACCESS SHARE MODE")
        for number in range(1, 5):  # The appends cross partition boundaries, so new partitions are created.
            log.append_if(at(number), [b"x"] * 10, at(number + 1))
        with pytest.raises(EngineUnavailable, match="trimmed later"):
            log.trim(20)
        assert log.bounds() == (0, 65)
    log.trim(20)
    assert log.bounds() == (20, 65)
    log.close()


def test_nodes_that_make_the_same_partition_at_once_both_go_on(
    conninfo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "PARTITION_RECORDS", 8)
    logs = [PostgresLog(conninfo, "crowded") for _ in range(4)]
    logs[0].create_log(BEGIN)
    failed: list[BaseException] = []
    # The nodes append at the same time, so that a waiting node has a list of only those partitions that
    # existed before.
    together = Barrier(len(logs), timeout=60)

    def go_on(log: PostgresLog) -> None:
        try:
            for _ in range(25):
                together.wait()
                log.append_unchecked(b"a node's")
        except BaseException as error:
            failed.append(error)

    threads = [Thread(target=go_on, args=(log,)) for log in logs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert logs[0].bounds() == (0, 100)
    for log in logs:
        log.close()


def test_an_append_is_one_statement_but_near_the_end_of_the_partitions(
    conninfo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "PARTITION_RECORDS", 10)
    log, other = PostgresLog(conninfo, "asked"), PostgresLog(conninfo, "asked")
    log.create_log(BEGIN)
    asked, only_row = list[str](), PostgresLog._fetch_row

    def noted(log: PostgresLog, connection: Any, statement: str, *values: Any) -> Any:
        if "partition_records" in statement:
            asked.append(statement)
        return only_row(log, connection, statement, *values)

    monkeypatch.setattr(PostgresLog, "_fetch_row", noted)
    for number in range(40):
        log.append_if(BEGIN if number == 0 else at(number), [b"x"], at(number + 1))
    assert len(asked) <= 5
    for _ in range(9):  # The records appended by the other node fit in an existing partition.
        other.append_unchecked(b"a node's")
    assert log.append_if(at(40), [b"x"] * 30, at(41)) == 78
    log._close_connection()
    asked.clear()
    log.append_if(at(41), [b"x"], at(42))
    assert len(asked) == 1, "a new session asks which there are"
    log.close()
    other.close()


def test_a_log_is_founded_once(log: PostgresLog, conninfo: str) -> None:
    again = PostgresLog(conninfo, log._log)
    with pytest.raises(ClusterExists, match="already"):
        again.create_log(BEGIN)
    again.close()


def test_a_connection_that_breaks_is_opened_anew(log: PostgresLog, conninfo: str) -> None:
    log.append_if(BEGIN, [b"one"], at(0))
    with psycopg.connect(conninfo, autocommit=True) as other:
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND query LIKE %s",
            [f"%{log._log}%"],
        )
    with pytest.raises(EngineUnavailable, match="PostgreSQL did not answer"):
        log.append_if(at(0), [b"two"], at(1))
    assert log.append_if(log.head(), [b"three"], at(2)) == 1


@pytest.mark.parametrize("held", ["{log}_head", "{log}_record"])
def test_a_node_that_stands_still_amid_a_transaction_holds_up_no_other(
    log: PostgresLog, conninfo: str, held: str
) -> None:
    stopped = PostgresLog(conninfo, log._log)._open_connection()
    stopped.execute(f"BEGIN; LOCK TABLE {held.format(log=log._log)} IN ACCESS EXCLUSIVE MODE")
    appended = Thread(target=log.append_if, args=(BEGIN, [b"one"], at(0)), daemon=True)
    appended.start()
    appended.join(IDLE_SECONDS + WAIT_SECONDS)
    assert not appended.is_alive(), "an append that waits for a node that stands still"
    assert log.bounds() == (0, 1)
    with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
        stopped.execute("COMMIT")


def test_a_process_that_ends_waits_for_no_answer_of_a_server_that_stands_still() -> None:
    with running_servers(options=UNSYNCED) as servers:
        log, said = PostgresLog(servers.url), list[str]()
        log.create_log(BEGIN)
        servers.primary.pause()

        def asks(call: Callable[[], object]) -> None:
            with pytest.raises(EngineUnavailable) as raised:
                call()
            said.append(str(raised.value))

        calls = (lambda: log.append_if(BEGIN, [b"one"], at(0)), log.bounds, log.check_session)
        asked = [Thread(target=asks, args=(call,), daemon=True) for call in calls]
        try:
            for one in asked:
                one.start()
            asked[0].join(0.2)
            assert asked[0].is_alive(), "an append without an answer"
            log.abort_calls()
            for one in asked:
                one.join(WAIT_SECONDS)
            assert len(said) == len(calls), said
            with pytest.raises(EngineUnavailable, match="waits for PostgreSQL no longer"):
                log.bounds()
            log.close()
        finally:
            servers.primary.go_on()


def test_a_server_that_is_not_there_proves_nothing() -> None:
    with pytest.raises(EngineUnavailable, match="did not answer"):
        PostgresLog("host=127.0.0.1 port=9 user=nobody dbname=none").bounds()


@pytest.mark.parametrize(
    ("ends", "said"),
    [("pg_cancel_backend", "PostgreSQL warned"), ("pg_terminate_backend", "PostgreSQL did not answer")],
)
def test_a_commit_that_does_not_wait_for_its_standbys_is_no_acknowledgement(
    log: PostgresLog, conninfo: str, ends: str, said: str
) -> None:
    log.append_if(BEGIN, [b"one"], at(0))
    with psycopg.connect(conninfo, autocommit=True) as other:
        other.execute("ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (nobody)'")
        other.execute("SELECT pg_reload_conf()")
        raised: list[BaseException] = []

        def append() -> None:
            try:
                for end in range(1, 100_000):  # The loop runs until the server has reloaded its settings.
                    log.append_if(at(end - 1), [b"two"], at(end))
            except EngineUnavailable as error:
                raised.append(error)

        waiting = Thread(target=append)
        waiting.start()
        try:
            while waiting.is_alive():
                other.execute(
                    f"SELECT {ends}(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'".encode()
                )
        finally:
            other.execute("ALTER SYSTEM RESET synchronous_standby_names")
            other.execute("SELECT pg_reload_conf()")
            waiting.join()
    assert len(raised) == 1
    assert said in str(raised[0])
    # The record exists, but it must not be reported as durable.
    assert log.head() == at(log.bounds()[1] - 1)


def test_tables_that_are_gone_are_said_so(log: PostgresLog, conninfo: str) -> None:
    log.append_if(BEGIN, [b"one"], at(0))
    with psycopg.connect(conninfo, autocommit=True) as other:
        other.execute(f"TRUNCATE {log._log}_head")
        for ask in (log.head, log.bounds, lambda: log.append_if(at(0), [b"two"], at(1))):
            with pytest.raises(NoCluster, match="is empty"):
                ask()
        other.execute(f"DROP TABLE {log._log}_record")
    with pytest.raises(NoCluster, match="has no tables"):
        log.read(0, 1)


def test_an_append_that_is_taken_back_leaves_nothing(log: PostgresLog, conninfo: str) -> None:
    log.append_if(BEGIN, [b"one"], at(0))
    log.check_append()
    assert (log.head(), log.bounds()) == (at(0), (0, 1))
    with psycopg.connect(conninfo) as other:
        other.execute(f"UPDATE {log._log}_head SET epoch = epoch")
        with pytest.raises(EngineUnavailable, match="Another append is under way"):
            log.check_append()
        other.rollback()
    assert log.append_if(at(0), [b"two"], at(1)) == 1


@pytest.fixture
def admin(conninfo: str) -> Iterator[Callable[[str], object]]:
    """Provide a function that executes SQL commands as an operator.

    The server settings are restored after the test.
    """
    with psycopg.connect(conninfo, autocommit=True) as connection:

        def run(commands: str) -> None:
            for command in filter(None, map(str.strip, commands.split(";"))):
                connection.execute(command.encode())

        yield run
        run("ALTER SYSTEM RESET ALL; SELECT pg_reload_conf()")
        if connection.execute("SELECT FROM pg_roles WHERE rolname = 'plain'").rowcount:
            run("DROP OWNED BY plain; DROP ROLE plain")


def until(said: Callable[[], list[str]], wanted: Callable[[list[str]], bool]) -> list[str]:
    """Repeat a check until its messages meet a condition, and return the messages.

    The server may apply changed settings with a delay.
    """
    while not wanted(found := said()):
        pass
    return found


@pytest.mark.parametrize("name", ["fsync", "full_page_writes"])
def test_a_setting_that_loses_records_is_told_with_the_command_that_mends_it(
    log: PostgresLog, admin: Callable[[str], object], name: str
) -> None:
    assert log.check_settings() == []
    admin(f"ALTER SYSTEM SET {name} = off; SELECT pg_reload_conf()")
    (said,) = until(log.check_settings, bool)
    assert said.startswith(f"{name} of PostgreSQL is off, so a power cut")
    admin(said.partition("Set it: ")[2].rpartition(";")[0])
    assert until(log.check_settings, lambda found: not found) == []


def test_a_setting_of_the_command_line_is_mended_there() -> None:
    with running_postgresql() as url:
        log = PostgresLog(url.replace("postgresql+psycopg", "postgresql"))
        (said,) = log.check_settings()
        assert said.endswith("Start it without -c fsync=off in its command: no other command switches it on.")
        log.close()


def test_sessions_that_do_not_wait_for_their_commits_are_told_and_opened_anew(
    log: PostgresLog, conninfo: str, admin: Callable[[str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A connection pooler also drops the options of a session.
    monkeypatch.setattr(postgres, "_OPTIONS", "")
    assert log.check_settings() == []
    admin("CREATE ROLE plain LOGIN; ALTER ROLE plain SET synchronous_commit = off")
    admin(f"GRANT ALL ON {log._log}_head, {log._log}_record TO plain; GRANT CREATE ON SCHEMA public TO plain")
    plain = PostgresLog(conninfo.replace("shop@", "plain@"), log._log)
    assert commits_of(plain) == "off"
    (said,) = plain.check_settings()
    assert said.startswith("synchronous_commit is off in sessions of plain, though they ask for on")
    assert commits_of(plain) == "off", "opened anew, and before it was mended"
    admin(said.partition("Set it: ")[2].rpartition(";")[0])
    assert plain.check_settings() == []
    assert commits_of(plain) == "on", "the session that appends is the one that is looked at"
    plain.close()


def commits_of(log: PostgresLog) -> str:
    """Return the value of `synchronous_commit` in the session that is used for appends."""
    with log._use_connection() as connection:
        row = connection.execute("SHOW synchronous_commit").fetchone()
    assert row is not None
    return str(row[0])


def test_no_statement_is_compiled_though_its_plan_is_called_dear(log: PostgresLog) -> None:
    with log._use_connection() as connection:
        assert connection.execute("SELECT current_setting('jit')").fetchone() == ("off",)
        assert connection.execute("SELECT current_setting('enable_seqscan')").fetchone() == ("off",)


def test_standbys_out_of_step_are_told_while_an_append_waits_for_them(
    log: PostgresLog, conninfo: str, admin: Callable[[str], object]
) -> None:
    assert log.check_settings() == []
    (note,) = log.list_risky_settings()
    assert "on one machine of PostgreSQL's: synchronous_standby_names is empty. With" in note
    with running_standby(conninfo, "s1") as standby:
        until(log.list_risky_settings, lambda said: "(1 follow, and nobody waits for them)" in said[0])
        admin(note.partition("s2: ")[2])
        until(log.list_risky_settings, lambda said: not said)
        until(log.check_settings, lambda said: not said)
        assert log.append_if(BEGIN, [b"one"], at(0)) == 0
        there = PostgresLog(standby, log._log)
        (said,) = there.check_settings()
        assert "is a standby, so it takes no record. Name the primary" in said
        assert there.list_risky_settings() == []
        there.close()
    waiting = Thread(target=lambda: log.append_if(at(0), [b"two"], at(1)))
    waiting.start()
    (said,) = until(log.check_settings, bool)
    assert "'ANY 1 (s1, s2)' and needs 1 in step; now: none. So no record is accepted." in said
    admin(said.rpartition("along: ")[2])
    waiting.join()
    assert log.check_settings() == []


def test_who_may_not_see_standbys_is_told_so(
    log: PostgresLog, conninfo: str, admin: Callable[[str], object]
) -> None:
    admin("CREATE ROLE plain LOGIN")
    plain = PostgresLog(conninfo.replace("shop@", "plain@"), log._log)
    with running_standby(conninfo, "s1"):
        admin("ALTER SYSTEM SET synchronous_standby_names = 's1'; SELECT pg_reload_conf()")
        until(log.list_risky_settings, lambda said: not said)
        (note,) = plain.list_risky_settings()
        assert plain.check_settings() == []
        admin(note.partition("Let it: ")[2])
        assert plain.list_risky_settings() == []
        assert plain.check_settings() == []
        admin("ALTER SYSTEM RESET synchronous_standby_names; SELECT pg_reload_conf()")


def test_who_may_not_append_is_told_so(
    log: PostgresLog, conninfo: str, admin: Callable[[str], object]
) -> None:
    admin(f"CREATE ROLE plain LOGIN; GRANT SELECT ON {log._log}_head, {log._log}_record TO plain")
    plain = PostgresLog(conninfo.replace("shop@", "plain@"), log._log)
    with pytest.raises(
        EngineUnavailable, match=r"PostgreSQL refuses: permission denied .* GRANT OWNER TO USER"
    ):
        plain.check_append()
    admin("GRANT shop TO plain; ALTER ROLE plain SET role = shop")
    plain.close()
    plain.check_append()
    plain.close()


def test_a_server_that_takes_no_writes_is_told(
    log: PostgresLog, conninfo: str, admin: Callable[[str], object]
) -> None:
    admin("CREATE ROLE plain LOGIN; ALTER ROLE plain SET default_transaction_read_only = on")
    plain = PostgresLog(conninfo.replace("shop@", "plain@"), log._log)
    (said,) = plain.check_settings()
    assert said.startswith("Transactions of plain are read only, so no record is taken.")
    admin(said.partition("Set it: ")[2])
    assert plain.check_settings() == []


@pytest.mark.parametrize(
    ("names", "count"),
    [("", 0), (" ", 0), ("*", 1), ("s1, s2", 1), ("2 (a, b, c)", 2), ("any 3(a)", 3), ("FIRST 2 (a, b)", 2)],
)
def test_how_many_standbys_a_commit_waits_for(names: str, count: int) -> None:
    assert Settings({}, {}, False, "u", "d", names, [], 0, 0).needed_count == count


@pytest.fixture
def failing_over() -> Iterator[tuple[PostgresServer, PostgresServer, PostgresLog]]:
    """Start a primary and an asynchronous standby, and open a log on the server that accepts writes."""
    with running_servers(options=UNSYNCED) as servers:
        primary, standby = servers.primary, PostgresServer("late", UNSYNCED)
        standby.make_standby_of(str(primary.folder))
        standby.start()
        folders = f"{primary.folder},{standby.folder}"
        log = PostgresLog(f"host={folders} user={USER} dbname=postgres target_session_attrs=read-write")
        log.create_log(BEGIN)
        try:
            yield primary, standby, log
        finally:
            log.close()
            standby.stop()
            standby.forget()


def promote_without_the_last(
    primary: PostgresServer, standby: PostgresServer, logs: list[PostgresLog]
) -> None:
    """Append two records, of which only the first reaches the standby, and promote the standby.

    The primary is killed before the promotion.
    """
    behind = PostgresLog(standby.url)
    assert logs[0].append_if(BEGIN, [b"one"], at(0)) == 0
    while not has_one(behind):
        pass
    standby.stop()
    assert logs[0].append_if(at(0), [b"two"], at(1)) == 1
    assert [one.stored for one in logs[1].read(0, ALL)] == [b"one", b"two"]
    primary.kill()
    standby.start()
    with pytest.raises(
        EngineUnavailable, match="ends at record 1, and reached to 2 before: it is a standby, and behind"
    ):
        answered(lambda: behind.read(2, ALL))
    standby.promote()
    behind.close()


def has_one(log: PostgresLog) -> bool:
    """Return whether a standby has received the first record."""
    with suppress(NoCluster):
        return bool(log.read(0, ALL))
    return False


def answered(ask: Callable[[], object]) -> object:
    """Retry a call until a server responds."""
    while True:
        try:
            return ask()
        except EngineUnavailable as error:
            if "did not answer" not in str(error):
                raise


def test_a_standby_that_was_promoted_without_a_record_halts_who_has_seen_it(
    failing_over: tuple[PostgresServer, PostgresServer, PostgresLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    primary, standby, writer = failing_over
    reader = PostgresLog(writer._conninfo)
    promote_without_the_last(primary, standby, [writer, reader])
    asks = (lambda: reader.read(0, ALL), lambda: writer.append_if(at(1), [b"three"], at(2)))
    for ask in asks:
        with pytest.raises(EngineUnavailable, match="ends at record 1, and reached to 2 before: asked anew"):
            answered(ask)
    monkeypatch.setattr(postgres, "LOST_SECONDS", 0.0)
    for ask in asks:
        with pytest.raises(Halted, match="promoted without all that was acknowledged"):
            answered(ask)
    # A node that has not read the lost record continues, and appends a different record at the same offset.
    other = PostgresLog(standby.url)
    assert other.append_if(at(0), [b"another"], at(1)) == 1
    other.close()
    for ask in asks:
        with pytest.raises(Halted, match=r"Record 1 .* is not what was there before"):
            answered(ask)
    reader.close()


def test_a_node_that_reads_on_behind_the_logs_end_halts(
    log: PostgresLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append_if(BEGIN, [b"one"], at(0))
    assert log.read(1, ALL) == []
    log.close()
    with pytest.raises(EngineUnavailable, match="ends at record 1, and reached to 5 before: asked anew"):
        log.read(5, ALL)
    monkeypatch.setattr(postgres, "LOST_SECONDS", 0.0)
    with pytest.raises(Halted, match="lost the log's end"):
        log.read(5, ALL)
    assert log.append_if(at(0), [b"two"], at(1)) == 1


def test_what_is_trimmed_meanwhile_halts_nobody(conninfo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "PARTITION_RECORDS", 2)
    first = PostgresLog(conninfo, next(NAMES))
    first.create_log(BEGIN)
    first.append_if(BEGIN, [b"0", b"1", b"2"], at(0))
    other = PostgresLog(conninfo, first._log)
    assert len(other.read(0, ALL)) == 3
    other.close()
    first.append_if(at(0), [b"3", b"4", b"5"], at(1))
    first.trim(5)
    assert [one.offset for one in other.read(3, ALL)] == [4, 5]
    first.close()
    other.close()


def test_a_record_whose_commit_was_not_acknowledged_may_be_lost(log: PostgresLog) -> None:
    log.append_if(BEGIN, [b"one"], at(0))
    log._ensure_connection().execute(
        "CREATE FUNCTION pg_temp.warns() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN RAISE WARNING 'no standby'; RETURN NEW; END$$"
    )
    log._ensure_connection().execute(
        f"CREATE TRIGGER warns BEFORE INSERT ON {log._log}_record "
        "FOR EACH ROW EXECUTE FUNCTION pg_temp.warns()"
    )
    with pytest.raises(EngineUnavailable, match="PostgreSQL warned: no standby"):
        log.append_if(at(0), [b"two"], at(1))
    assert log._last is not None
    assert log._last[0] == 0


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ("ALTER ROLE {user} CONNECTION LIMIT 0", "too many connections for role"),
        ("ALTER DATABASE postgres CONNECTION LIMIT 0", "too many connections for database"),
        ("ALTER ROLE {user} NOLOGIN", "not permitted to log in"),
    ],
)
def test_a_server_that_lets_nobody_in_is_asked_again(
    conninfo: str, admin: Callable[[str], object], limits: str, said: str
) -> None:
    user = next(NAMES)
    admin(f"CREATE ROLE {user} LOGIN")
    log = PostgresLog(conninfo.replace(f"//{USER}@", f"//{user}@"), user)
    try:
        admin(limits.format(user=user))
        with pytest.raises(EngineUnavailable, match=said):
            log.bounds()
    finally:
        admin("ALTER DATABASE postgres CONNECTION LIMIT -1")
    admin(f"ALTER ROLE {user} LOGIN CONNECTION LIMIT -1")
    with pytest.raises(NoCluster):
        log.bounds()
    log.close()


@pytest.fixture
def asks(tmp_path: Path) -> Iterator[tuple[str, Callable[[str], object], Path]]:
    """Start a server that requires a password for `app`.

    Return the URL of the server, a function that changes the password, and a password file.
    """
    file = tmp_path / "password"
    with running_servers() as servers, psycopg.connect(servers.url, autocommit=True) as asked:
        asked.execute("CREATE ROLE app LOGIN PASSWORD 'first'")
        asked.execute("CREATE DATABASE orders OWNER app")
        access = servers.primary.folder / "data" / "pg_hba.conf"
        access.write_text("local orders app scram-sha-256\n" + access.read_text())
        asked.execute("SELECT pg_reload_conf()")
        file.write_text("first\n")
        yield f"postgresql://app@/orders?host={servers.primary.folder}", asked.execute, file


def test_a_password_is_read_again_for_each_session(
    asks: tuple[str, Callable[[str], object], Path],
) -> None:
    url, change, file = asks
    without = PostgresLog(url)
    until(lambda: refusal(without), lambda said: "no password supplied" in said)
    log = PostgresLog(url, password_file=PasswordFile(str(file)))
    log.create_log(BEGIN)
    change("ALTER ROLE app PASSWORD 'second'")
    assert log.append_if(BEGIN, [b"one"], at(1)) == 0, "the session that stands goes on"
    with pytest.raises(SessionRefused, match=r"password authentication failed .* is read from .* for each"):
        log.check_session()
    file.write_text("second\n")
    assert log.check_session() > 0
    change("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'")
    with pytest.raises(EngineUnavailable):
        log.bounds()
    assert log.bounds() == (0, 1)
    file.unlink()
    with pytest.raises(SessionRefused, match=r"password_file .* cannot be read: No such file"):
        log.check_session()
    log.close()


def refusal(log: PostgresLog) -> str:
    """Return the error message for a session that the server rejects."""
    try:
        log.check_session()
    except SessionRefused as error:
        return str(error)
    return ""


def test_who_is_not_there_refuses_no_session() -> None:
    with pytest.raises(EngineUnavailable) as raised:
        PostgresLog("postgresql://app@127.0.0.1:9/orders").check_session()
    assert not isinstance(raised.value, SessionRefused)


def test_options_of_the_url_hold_and_what_commits_need_goes_before_them(
    conninfo: str, admin: Callable[[str], object]
) -> None:
    schema = next(NAMES)
    admin(f"CREATE SCHEMA {schema}")
    options = f"-csearch_path%3D{schema}%20-csynchronous_commit%3Doff"
    log = PostgresLog(f"{conninfo}&options={options}", schema)
    log.create_log(BEGIN)
    assert log.append_if(BEGIN, [b"one"], at(1)) == 0
    assert log.count_rows(0).faults == []
    assert log.check_settings() == []
    with psycopg.connect(conninfo) as asked:
        where = "SELECT DISTINCT schemaname FROM pg_tables WHERE tablename LIKE %s"
        assert asked.execute(where, (f"{schema}_%",)).fetchall() == [(schema,)]
    log.close()


def test_who_may_make_no_tables_is_told_the_right(conninfo: str, admin: Callable[[str], object]) -> None:
    name = next(NAMES)
    admin(f"CREATE ROLE {name} LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    plain = PostgresLog(conninfo.replace("shop@", f"{name}@"), name)
    with pytest.raises(RightMissing, match=r"for schema public.*GRANT CREATE ON SCHEMA") as raised:
        plain.create_log(BEGIN)
    admin(f"GRANT CREATE ON SCHEMA public TO {name}")
    plain.create_log(BEGIN)
    plain.close()
    assert raised.value.code == "TW-271"
