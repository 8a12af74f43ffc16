"""Tests that lost, duplicate, and changed rows are reported and that a unique index prevents duplicates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import psycopg
import pytest
from psycopg.errors import UniqueViolation

from sharedlog import postgres, postgres_rows
from sharedlog.engine import Head
from sharedlog.errors import EngineUnavailable, LogDamaged
from sharedlog.fold import Fold, Position
from sharedlog.postgres import PostgresLog
from sharedlog.reading import read_steps
from sharedlog.record import CHAIN_AT_GENESIS, NOBODY, Kind, SharedRecord, encode
from sharedlog.scrub import Scrub, read_range
from tests.genesis import genesis_of
from tests.postgresql import running_postgresql

CLUSTER = b"one cluster's id"
BEGIN = Head(0, NOBODY, Position(0, CHAIN_AT_GENESIS))
ALL = 1 << 24
SIZE = 10
"""The number of records in a partition."""
NAMES = (f"rows{number}" for number in count())
WAIT_SECONDS = 30


@pytest.fixture(scope="module")
def conninfo() -> Iterator[str]:
    with running_postgresql() as url:
        yield url.replace("postgresql+psycopg", "postgresql")


@pytest.fixture
def admin(conninfo: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        yield connection


@pytest.fixture
def log(conninfo: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresLog]:
    """Return the log of a new cluster, which has 25 records in partitions of 10 records each."""
    monkeypatch.setattr(postgres, "PARTITION_RECORDS", SIZE)
    log = PostgresLog(conninfo, next(NAMES))
    log.create_log(BEGIN)
    for number in range(25):
        log.append_if(BEGIN, [stored(number)], BEGIN)
    yield log
    log.close()


@pytest.fixture
def unindexed(log: PostgresLog, admin: psycopg.Connection[Any]) -> PostgresLog:
    """Return the log after its unique index has been dropped."""
    run(admin, f"DROP INDEX {log._log}_record_record_idx; CREATE INDEX ON {log._log}_record (record)")
    return log


def stored(number: int) -> bytes:
    return encode(
        SharedRecord(CLUSTER, Kind.HOLD, 0, NOBODY, 0, 0, b'{"next_record":0,"node":"n%d"}' % number)
    )


def run(admin: psycopg.Connection[Any], commands: str) -> psycopg.Cursor[Any]:
    for command in commands.split(";"):
        cursor = admin.execute(command.encode())
    return cursor


def double(log: PostgresLog, admin: psycopg.Connection[Any], record: int, other: str = "stored") -> None:
    name = f"{log._log}_record"
    run(
        admin,
        f"INSERT INTO {name} (record, stored) SELECT record, {other} FROM {name} WHERE record = {record}",
    )


def test_a_new_log_takes_no_second_row(log: PostgresLog, admin: psycopg.Connection[Any]) -> None:
    for record in (3, 13, 24):
        with pytest.raises(UniqueViolation):
            double(log, admin, record)


def test_a_table_without_its_unique_index_is_named_with_the_remedy(
    unindexed: PostgresLog, admin: psycopg.Connection[Any]
) -> None:
    double(unindexed, admin, 3)
    scrub = Scrub(unindexed, CLUSTER, lambda: 0)
    scrub.check_next_ranges()
    doubled, remedy = scrub.faults
    assert doubled == f"Record 3 is in {unindexed._log}_record more than once."
    assert remedy.startswith(f"The table {unindexed._log}_record has no valid unique index")
    name = f"{unindexed._log}_record"
    second = "one.record = kept.record AND one.ctid > kept.ctid"
    run(admin, f"DELETE FROM {name} AS one USING {name} AS kept WHERE {second}")
    run(admin, "CREATE" + remedy.partition("CREATE")[2].rstrip(";"))
    assert unindexed.count_rows(0).faults == []


def test_a_reader_steps_over_an_equal_row_and_halts_at_another(
    unindexed: PostgresLog, admin: psycopg.Connection[Any]
) -> None:
    genesis = encode(genesis_of(CLUSTER))
    admin.execute(f"UPDATE {unindexed._log}_record SET stored = %s WHERE record = 0".encode(), [genesis])
    double(unindexed, admin, 0)
    double(unindexed, admin, 13)
    fold = Fold(CLUSTER)
    assert len(list(read_steps(unindexed, fold))) == 27
    assert (fold.repeated_count, fold.next_offset) == (2, 25)
    double(unindexed, admin, 13, "'another'")
    with pytest.raises(LogDamaged, match="Record 13 of the shared log: the engine has two that differ"):
        list(read_steps(unindexed, Fold(CLUSTER)))


@pytest.mark.parametrize("first_bytes", [1, 1_000])
def test_rows_with_one_number_come_together_whatever_is_asked_for(
    unindexed: PostgresLog, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, first_bytes: int
) -> None:
    double(unindexed, admin, 5, f"decode(repeat('00', {first_bytes}), 'hex')")
    double(unindexed, admin, 5, "decode(repeat('00', 5000), 'hex')")
    for bytes_max in range(1, 6_000, 50):
        found = [one.offset for one in unindexed.read(4, bytes_max)]
        assert found.count(5) in (0, 4)
    monkeypatch.setattr(postgres, "READ_RECORDS_MAX", 2)
    assert [one.offset for one in unindexed.read(4, ALL)] == [4, 5, 5, 5, 5]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("DELETE FROM {log}_record WHERE record = 7", "Record 7 of {log}_record is missing: 8 follows 6."),
        (
            "DELETE FROM {log}_record WHERE record BETWEEN 8 AND 11",
            "Records 8 to 11 of {log}_record are missing: 12 follows 7.",
        ),
        (
            "DELETE FROM {log}_record WHERE record = 0",
            "Record 0 of {log}_record is missing: the first partition begins at 0.",
        ),
        (
            "DELETE FROM {log}_record WHERE record > 22",
            "Records 23 to 24 of {log}_record are missing: {log}_head has 24 as the last one.",
        ),
        (
            "DELETE FROM {log}_record",
            "Records 0 to 24 of {log}_record are missing: the table is empty, "
            "and {log}_head has 24 as the last one.",
        ),
        (
            "UPDATE {log}_head SET last_record = 20",
            "{log}_record has records up to 24, and {log}_head has 20 as the last one.",
        ),
        (
            "DROP INDEX {log}_record_record_idx; INSERT INTO {log}_record SELECT * FROM {log}_record "
            "WHERE record = 9; DELETE FROM {log}_record WHERE record = 7",
            "Record 7 of {log}_record is missing: 8 follows 6.|Record 9 is in {log}_record more than once.",
        ),
    ],
)
def test_what_the_table_has_lost_or_doubled_is_counted(
    log: PostgresLog, admin: psycopg.Connection[Any], command: str, said: str
) -> None:
    assert log.count_rows(0).faults == []
    run(admin, command.format(log=log._log))
    assert log.count_rows(0).faults[: said.count("|") + 1] == said.format(log=log._log).split("|")


def test_a_trimmed_log_and_an_empty_one_have_no_fault(log: PostgresLog, conninfo: str) -> None:
    log.trim(20)
    assert log.count_rows(0) == ([], 0, True)
    for _ in range(5):
        log.append_unchecked(b"more")
    log.trim(30)
    assert log.bounds() == (30, 30)
    assert log.count_rows(0) == ([], 0, True)
    empty = PostgresLog(conninfo, next(NAMES))
    empty.create_log(BEGIN)
    assert empty.count_rows(0) == ([], 0, True)
    empty.close()


def test_a_log_is_counted_range_by_range(
    log: PostgresLog, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_rows, "RANGE_RECORDS", 8)
    run(admin, f"DELETE FROM {log._log}_record WHERE record IN (8, 20)")
    looks, at = [], 0
    for _ in range(4):
        looks.append(log.count_rows(at))
        at = looks[-1].next_record
    assert [(len(one.faults), one.next_record, one.is_whole) for one in looks] == [
        (0, 8, False),
        (0, 16, False),
        (1, 0, True),
        (0, 8, False),
    ]


def test_a_changed_row_is_found_by_its_crc(log: PostgresLog, admin: psycopg.Connection[Any]) -> None:
    assert read_range(log, CLUSTER, 0) == ([], 0, True)
    run(admin, f"UPDATE {log._log}_record SET stored = set_byte(stored, 80, 7) WHERE record = 7")
    faults, *_ = read_range(log, CLUSTER, 0)
    assert [one.partition(":")[0] for one in faults] == ["Record 7 does not match its CRC"]


@pytest.mark.parametrize("returned", ["NULL", "NEW"])
def test_a_table_that_takes_other_rows_than_it_is_given_is_no_acknowledgement(
    log: PostgresLog, admin: psycopg.Connection[Any], returned: str
) -> None:
    run(admin, f"DROP INDEX {log._log}_record_record_idx")
    admin.execute(
        f"CREATE FUNCTION {log._log}() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$BEGIN IF NEW.record = 26 THEN NEW.record = 25; RETURN {returned}; END IF; RETURN NEW; END$$"
    )
    admin.execute(
        f"CREATE TRIGGER spoils BEFORE INSERT ON {log._log}_record FOR EACH ROW EXECUTE FUNCTION {log._log}()"
    )
    with pytest.raises(LogDamaged, match=r"Of 2 new records up to 26 .* a trigger or a rule of the table"):
        log.append_if(BEGIN, [b"more", b"yet more"], BEGIN)


def test_a_head_that_is_behind_its_records_adds_none_twice(
    log: PostgresLog, admin: psycopg.Connection[Any]
) -> None:
    run(admin, f"UPDATE {log._log}_head SET last_record = 20")
    adding: list[Callable[[], object]] = [
        lambda: log.append_if(BEGIN, [b"more"], BEGIN),
        lambda: log.append_unchecked(b"more"),
    ]
    for add in adding:
        with pytest.raises(
            LogDamaged, match=r"is in .*_record already, so it was not added: .*_head is behind"
        ):
            add()
    assert [one.stored for one in log.read(0, ALL)] == [stored(number) for number in range(25)]


def test_a_lost_end_is_named_while_nobody_appends(log: PostgresLog, admin: psycopg.Connection[Any]) -> None:
    run(admin, f"DELETE FROM {log._log}_record WHERE record > 22")
    assert len(log.read(0, ALL)) == 23
    with pytest.raises(
        EngineUnavailable, match=r"Record 23 of .*_record is missing: .*_head has 24 as the last one"
    ):
        log.read(23, ALL)
