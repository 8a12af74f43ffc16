"""Checks that the table of a log contains each record once, by counts of rows and by a unique index.

    count        the rows of a range of records, in one snapshot: gaps, duplicates, lost first or last rows
    make unique  index ON ONLY the table --> for each partition: delete equal rows, make its index
                 CONCURRENTLY, and attach it
                 the last attach makes the table's index valid; then the old index, not unique, is dropped

Rules
1. A new log is created with the unique index. On a log of an older version, the leader makes the index
   partition by partition, over a separate connection. A partition that a node of either version attaches
   meanwhile gets its index from PostgreSQL.
2. An append waits for at most LOCK_MS (the lock timeout), and once for at most DROP_MS while the old index is
   dropped. A failed step is repeated at the next check, and an invalid index is made again.
3. Of equal rows with the same record number, all but one are deleted, since readers skip the others anyway.
   Rows that differ are kept and reported, and their partition gets no index until an operator has deleted
   the wrong row.

Cost: a count reads at most RANGE_RECORDS index entries. Weak spot: a count does not detect a record whose
content was replaced, but its CRC or the chain does (`sharedlog.scrub`).
"""

from __future__ import annotations

import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from sharedlog.errors import NoCluster
from sharedlog.scrub import Counted

if TYPE_CHECKING:
    import psycopg

RANGE_RECORDS: Final = 200_000
FAULTS_MAX: Final = 10
"""The maximum number of gaps and duplicates that one count reports."""
LOCK_MS: Final = 50
DROP_MS: Final = 200
"""The time limit for dropping the old index, which locks all partitions and blocks appends."""
PARTITIONS_A_LOOK: Final = 10
"""The maximum number of partitions that get their index in one check."""
DOUBLED_MAX: Final = 1_000
INDEX_MS: Final = 30_000
"""The lock timeout for making the index of a partition, which waits for all older transactions."""
_HEAD: Final = "SELECT last_record FROM {log}_head"
_FIRST: Final = """
SELECT min(substring(pg_get_expr(relpartbound, oid) FROM 'FROM \\(''(\\d+)''\\)')::bigint)
FROM pg_class JOIN pg_inherits ON inhrelid = oid WHERE inhparent = '{log}_record'::regclass
"""
"""The query for the first record of the oldest partition. Trimming drops whole partitions."""
_EDGES: Final = "SELECT min(record), max(record) FROM {log}_record"
_STEPS: Final = """
SELECT record, following FROM (
    SELECT record, lead(record) OVER (ORDER BY record) AS following
    FROM {log}_record WHERE record >= %s AND record <= %s
) AS pairs WHERE following <> record + 1 ORDER BY record LIMIT %s
"""
_TABLE_INDEXES: Final = """
SELECT indexrelid::regclass::text, indisunique, indisvalid FROM pg_index
WHERE indrelid = '{log}_record'::regclass
"""
_WITHOUT_INDEX: Final = """
SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = '{log}_record'::regclass
AND NOT EXISTS (
    SELECT FROM pg_index JOIN pg_inherits AS attached ON attached.inhrelid = indexrelid
    WHERE indrelid = pg_inherits.inhrelid AND attached.inhparent = %s::regclass
) ORDER BY inhrelid LIMIT %s
"""
_OWN_INDEXES: Final = """
SELECT indexrelid::regclass::text, indisvalid FROM pg_index
WHERE indrelid = %s::regclass AND indisunique
"""
_DOUBLED: Final = "SELECT record FROM {table} GROUP BY record HAVING count(*) > 1 ORDER BY record LIMIT %s"
_DELETE_EQUAL: Final = """
DELETE FROM {table} AS one USING {table} AS kept
WHERE one.record = ANY(%s) AND kept.record = one.record AND kept.stored = one.stored AND kept.ctid < one.ctid
"""
_ROWS: Final = "SELECT record, ctid::text, stored FROM {table} WHERE record = ANY(%s) ORDER BY record, ctid"


def counted(connection: psycopg.Connection[Any], log: str, from_record: int) -> Counted:
    """Count up to RANGE_RECORDS records from `from_record` on, or from the first record of the log.

    The connection must be in autocommit mode. Raise `NoCluster` if the log has no head, or psycopg's errors.
    """
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        # Lock before the first query, which takes the snapshot, to keep all partitions of the snapshot.
        _do(connection, "LOCK TABLE {log}_record IN ACCESS SHARE MODE", log=log)
        (last,) = _row(connection, _HEAD, log)
        (first,) = _row(connection, _FIRST, log)
        least, most = _row(connection, _EDGES, log)
        begin = max(first or 0, from_record if from_record <= last else 0)
        end = min(begin + RANGE_RECORDS, last)
        steps = _do(connection, _STEPS, (begin, end, FAULTS_MAX), log=log).fetchall()
    faults = [_edge(log, first or 0, last, least, most)] if last >= (first or 0) else []
    faults += [_step(log, record, following) for record, following in steps]
    return Counted([one for one in faults if one], end if end < last else 0, end >= last)


def _edge(log: str, first: int, last: int, least: int | None, most: int | None) -> str:
    """Return a sentence about records lost at the beginning or end of the log, or "" if none are lost."""
    if least is None or most is None:
        return f"{_missing(log, first, last)}: the table is empty, and {log}_head has {last} as the last one."
    if most < last:
        return f"{_missing(log, most + 1, last)}: {log}_head has {last} as the last one."
    if most > last:
        return f"{log}_record has records up to {most}, and {log}_head has {last} as the last one."
    if least > first:
        return f"{_missing(log, first, least - 1)}: the first partition begins at {first}."
    return ""


def _step(log: str, record: int, following: int) -> str:
    """Return a sentence about two adjacent rows whose record numbers are not consecutive."""
    if following == record:
        return f"Record {record} is in {log}_record more than once."
    return f"{_missing(log, record + 1, following - 1)}: {following} follows {record}."


def _missing(log: str, first: int, last: int) -> str:
    if first == last:
        return f"Record {first} of {log}_record is missing"
    return f"Records {first} to {last} of {log}_record are missing"


def make_unique(connection: psycopg.Connection[Any], log: str) -> list[str]:
    """Continue to make the unique index, and return a sentence for each record that prevents the index.

    The connection must be in autocommit mode, and must not be used for anything else. After an error of
    psycopg, the caller calls this function again later.
    """
    if not _row(connection, "SELECT pg_try_advisory_lock(hashtextextended('{log}_record', 0))", log)[0]:
        return []
    _do(connection, "SET lock_timeout = {number}", number=LOCK_MS)
    name, is_valid = _unique_of(connection, log)
    if not is_valid:
        faults = _index_partitions(connection, log, name)
        if faults or not _unique_of(connection, log)[1]:
            return faults
    _do(connection, "SET statement_timeout = {number}", number=DROP_MS)
    for old, is_unique, _ in _do(connection, _TABLE_INDEXES, log=log).fetchall():
        if not is_unique:
            _do(connection, "DROP INDEX {name}", name=old)
    return []


def _unique_of(connection: psycopg.Connection[Any], log: str) -> tuple[str, bool]:
    """Return the table's unique index and whether it is valid. Create the index if it does not exist."""
    for _ in range(2):
        for name, is_unique, is_valid in _do(connection, _TABLE_INDEXES, log=log).fetchall():
            if is_unique:
                return str(name), bool(is_valid)
        _do(connection, "CREATE UNIQUE INDEX ON ONLY {log}_record (record)", log=log)
    raise NoCluster(f"The table {log}_record takes no index.")


def _index_partitions(connection: psycopg.Connection[Any], log: str, name: str) -> list[str]:
    """Make the index of some partitions, and return a sentence for each record whose rows differ."""
    from psycopg.errors import UndefinedTable

    faults: list[str] = []
    found = _do(connection, _WITHOUT_INDEX, (name, PARTITIONS_A_LOOK), log=log).fetchall()
    for (table,) in found:
        with suppress(UndefinedTable):  # the partition was trimmed meanwhile
            if differing := _without_doubles(connection, table):
                faults += differing
            else:
                _index(connection, table, name)
    return faults


def _index(connection: psycopg.Connection[Any], table: str, name: str) -> None:
    """Make the index of one partition, and attach it to the index `name`."""
    own = dict(_do(connection, _OWN_INDEXES, (table,)).fetchall())
    for one in [one for one, is_valid in own.items() if not is_valid]:
        _do(connection, "DROP INDEX CONCURRENTLY {name}", name=one)
        del own[one]
    if not own:
        _do(connection, "SET lock_timeout = {number}", number=INDEX_MS)  # this does not block appends
        _do(connection, "CREATE UNIQUE INDEX CONCURRENTLY ON {table} (record)", table=table)
        _do(connection, "SET lock_timeout = {number}", number=LOCK_MS)
        own = dict(_do(connection, _OWN_INDEXES, (table,)).fetchall())
    for one in own:
        _do(connection, "ALTER INDEX {name} ATTACH PARTITION {own}", name=name, own=one)


def _without_doubles(connection: psycopg.Connection[Any], table: str) -> list[str]:
    """Delete duplicates of equal rows, and return a sentence for each record whose rows differ."""
    doubled = [record for (record,) in _do(connection, _DOUBLED, (DOUBLED_MAX,), table=table).fetchall()]
    if not doubled:
        return []
    _do(connection, _DELETE_EQUAL, (doubled,), table=table)
    rows: dict[int, list[str]] = {}
    for record, place, stored in _do(connection, _ROWS, (doubled,), table=table).fetchall():
        said = f"{len(stored)} bytes with CRC-32 {zlib.crc32(stored):08x} at ctid {place}"
        rows.setdefault(record, []).append(said)
    return [_differing(table, record, said) for record, said in rows.items() if len(said) > 1]


def _differing(table: str, record: int, rows: list[str]) -> str:
    return (
        f"Record {record} is in {table} {len(rows)} times, and the rows differ: {'; '.join(rows)}. Keep a "
        f"copy (pg_dump -t {table}), stop the nodes, and delete the row that no node has taken in: DELETE "
        f"FROM {table} WHERE record = {record} AND ctid = 'CTID';"
    )


def _row(connection: psycopg.Connection[Any], statement: str, log: str) -> Any:
    row = _do(connection, statement, log=log).fetchone()
    if row is None:
        raise NoCluster(f"The table {log}_head is empty.")
    return row


def _do(
    connection: psycopg.Connection[Any], statement: str, values: tuple[Any, ...] = (), **names: Any
) -> psycopg.Cursor[Any]:
    """Insert names into a statement and execute it. Names and settings cannot be query parameters."""
    return connection.execute(statement.format(**names).encode(), values or None)
