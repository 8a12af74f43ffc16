"""Verifies that a log in PostgreSQL contains each record number exactly once.

A check reads a range of record numbers in one snapshot. The check detects gaps, duplicates, lost rows at the
start or end of the log, and a missing or invalid unique index on the record numbers. `create_log` creates the
unique index for a new log, and PostgreSQL adds a matching index to each new partition.

Cost: a check reads up to `RANGE_RECORDS` index entries. Limitation: a check does not detect changed records.
They are detected by the CRC (`sharedlog.scrub`) or the history chain (`sharedlog.fold`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sharedlog.errors import NoCluster
from sharedlog.scrub import CheckResult

if TYPE_CHECKING:
    import psycopg

RANGE_RECORDS: Final = 200_000
FAULTS_MAX: Final = 10
"""Maximum number of gaps and duplicates reported per check."""
_HEAD: Final = "SELECT last_record FROM {log}_head"
_FIRST: Final = """
SELECT min(substring(pg_get_expr(relpartbound, oid) FROM 'FROM \\(''(\\d+)''\\)')::bigint)
FROM pg_class JOIN pg_inherits ON inhrelid = oid WHERE inhparent = '{log}_record'::regclass
"""
"""Returns the lower bound of the oldest partition, which is the first record number of the log."""
_EDGES: Final = "SELECT min(record), max(record) FROM {log}_record"
_STEPS: Final = """
SELECT record, following FROM (
    SELECT record, lead(record) OVER (ORDER BY record) AS following
    FROM {log}_record WHERE record >= %s AND record <= %s
) AS pairs WHERE following <> record + 1 ORDER BY record LIMIT %s
"""
_IS_UNIQUE: Final = """
SELECT count(*) FROM pg_index WHERE indrelid = '{log}_record'::regclass AND indisunique AND indisvalid
"""


def count_log_rows(connection: psycopg.Connection[Any], log: str, from_record: int) -> CheckResult:
    """Check the record numbers from `from_record` to `from_record + RANGE_RECORDS`.

    If `from_record` is outside the log, the range begins at the start of the log. The connection must be in
    autocommit mode. Raise `NoCluster` if the head row is missing. Exceptions raised by psycopg are not
    converted.
    """
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        # The lock is acquired before the first query takes the snapshot. No partition in the snapshot can
        # therefore be dropped during the check.
        _execute(connection, "LOCK TABLE {log}_record IN ACCESS SHARE MODE", log=log)
        (last,) = _fetch_row(connection, _HEAD, log)
        (first,) = _fetch_row(connection, _FIRST, log)
        least, most = _fetch_row(connection, _EDGES, log)
        begin = max(first or 0, from_record if from_record <= last else 0)
        end = min(begin + RANGE_RECORDS, last)
        steps = _execute(connection, _STEPS, (begin, end, FAULTS_MAX), log=log).fetchall()
        (unique_count,) = _fetch_row(connection, _IS_UNIQUE, log)
    faults = [_describe_edge(log, first or 0, last, least, most)] if last >= (first or 0) else []
    faults += [_describe_gap(log, record, following) for record, following in steps]
    faults += [] if unique_count else [_describe_missing_index(log)]
    return CheckResult([one for one in faults if one], end if end < last else 0, end >= last)


def _describe_edge(log: str, first: int, last: int, least: int | None, most: int | None) -> str:
    """Return a message if records at the start or end of the log are missing, or "" otherwise.

    Records after the last record number in the head are also reported.
    """
    if least is None or most is None:
        lost = _describe_missing_rows(log, first, last)
        return f"{lost}: the table is empty, and {log}_head has {last} as the last one."
    if most < last:
        return f"{_describe_missing_rows(log, most + 1, last)}: {log}_head has {last} as the last one."
    if most > last:
        return f"{log}_record has records up to {most}, and {log}_head has {last} as the last one."
    if least > first:
        return f"{_describe_missing_rows(log, first, least - 1)}: the first partition begins at {first}."
    return ""


def _describe_gap(log: str, record: int, following: int) -> str:
    """Return a message about two adjacent rows with record numbers that are not consecutive."""
    if following == record:
        return f"Record {record} is in {log}_record more than once."
    return f"{_describe_missing_rows(log, record + 1, following - 1)}: {following} follows {record}."


def _describe_missing_index(log: str) -> str:
    return (
        f"The table {log}_record has no valid unique index on its record numbers: delete rows that it has "
        f"twice, then CREATE UNIQUE INDEX ON {log}_record (record);"
    )


def _describe_missing_rows(log: str, first: int, last: int) -> str:
    if first == last:
        return f"Record {first} of {log}_record is missing"
    return f"Records {first} to {last} of {log}_record are missing"


def _fetch_row(connection: psycopg.Connection[Any], statement: str, log: str) -> Any:
    row = _execute(connection, statement, log=log).fetchone()
    if row is None:
        raise NoCluster(f"The table {log}_head is empty.")
    return row


def _execute(
    connection: psycopg.Connection[Any], statement: str, values: tuple[Any, ...] = (), **names: Any
) -> psycopg.Cursor[Any]:
    """Execute a statement after inserting identifiers, which cannot be passed as query parameters."""
    return connection.execute(statement.format(**names).encode(), values or None)
