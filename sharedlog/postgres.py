"""A shared log in PostgreSQL.

The records are stored in one table, and the head of the log is stored in another table.

    log_head      One row with the newest epoch, its holder, the accepted position, the last offset, and the
                  number of offsets per partition.
    log_record    One row per record with the offset, the content, and the time of the append. The table is
                  partitioned by range of offsets.

An append is a single SQL statement. The statement updates the head if it equals the head that the writer
expects, and inserts the records only if the head was updated. The row lock on the head serializes appends.
Each append holds the row lock until its commit. An offset therefore becomes visible only after all lower
offsets. An append by a former leader updates no row.

An append is complete when the server reports the commit. If `synchronous_standby_names` is set, the server
first waits for the synchronous standbys. If it stops waiting for them, it sends a WARNING, and the adapter
raises `EngineUnavailable`. The adapter also raises `EngineUnavailable` if the connection is lost before the
response arrives.

If the network silently drops packets, connections can remain half-open. Both sides therefore close a
connection after `SILENT_SECONDS` without packets, and an append in progress raises `EngineUnavailable`. The
server terminates sessions that are idle in a transaction, because the locks of a stopped or disconnected node
would block all other nodes.

A trim drops whole partitions and therefore requires no VACUUM. Up to one partition of trimmed records remains
in the table.

A server process that is stopped or waits for standbys may never respond, even though the host acknowledges
packets. When the node shuts down, `abort_calls` therefore aborts all calls. `check_settings` uses a separate
connection, because unsafe settings must also be reported while an append waits for standbys.

A standby that is promoted before receiving the last rows lacks the end of the history. On each new
connection, the adapter therefore verifies the newest record that it has read or appended. The adapter raises
`Halted` if this record has changed, or if the log still ends before it after `LOST_SECONDS`. The delay allows
a standby to replay the missing records.

If PostgreSQL cannot read a page, for example because of a checksum failure, a read of a record on the page
raises `LogDamaged` with the record number. Records on other pages can still be read. The verification of the
newest record on a new connection ignores unreadable pages. An append is retried if PostgreSQL selects an
unreadable page for the new rows.

Cost: one round trip and one commit per append. Each new connection and every 10,000th record requires an
additional round trip to check the partitions. Records are sent in binary format. For a record of 25 KB, the
binary format reduces the CPU time from 250 us to 70 us on the writer, and from 550 us to 190 us on the
server. The rows returned by a read are kept in memory. Limitation: the adapter detects a loss only by
comparison with the records that this process has read or appended, and with the node's checkpoint. After a
restart from the checkpoint, the adapter cannot detect the loss of rows written after the checkpoint. If the
last page of the table is unreadable, PostgreSQL cannot insert records, because new rows are added to that
page.
"""

from __future__ import annotations

import os
import socket
import time
import zlib
from collections.abc import Sequence
from contextlib import closing, contextmanager, suppress
from threading import Lock
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from sharedlog.engine import Head, Stored
from sharedlog.errors import (
    ClusterExists,
    EngineRefused,
    EngineUnavailable,
    Halted,
    LogDamaged,
    NoCluster,
    RightMissing,
    SessionRefused,
)
from sharedlog.fold import Position
from sharedlog.password_file import PasswordFile
from sharedlog.postgres_rows import count_log_rows
from sharedlog.postgres_settings import (
    COMMITS_KEPT,
    SETTINGS,
    Settings,
    find_risky_settings,
    find_setting_faults,
)
from sharedlog.scrub import CheckResult

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

PARTITION_RECORDS: Final = 10_000
"""Number of offsets per partition of a new log.

While an append waits for the row lock after checking the partitions, other nodes must append fewer than
`PARTITION_RECORDS` records.
"""
READ_RECORDS_MAX: Final = 10_000
RETRY_RECORD_COUNTS: Final = (1_000, 100, 10, 1)
"""Record counts per query when a read is retried because of an unreadable record, in order."""
DROP_WAIT_MS: Final = 50
"""Milliseconds for which a trim waits for readers. Appends are blocked while a trim waits."""
PARTITION_ATTEMPTS: Final = 3
APPEND_ATTEMPTS: Final = 8
"""Maximum number of attempts to insert records if PostgreSQL selects unreadable pages."""
CONNECT_SECONDS: Final = 5
SILENT_SECONDS: Final = 4
"""Time after which a connection is closed if no packet arrives, not even a TCP acknowledgment."""
IDLE_SECONDS: Final = 2
"""Value of `idle_in_transaction_session_timeout` in seconds.

A short timeout is sufficient, because the adapter sends the statements of a transaction without delay.
"""
CHECK_MS: Final = 10_000
"""Statement timeout in milliseconds for connections that run checks."""
TRY_MS: Final = 200
"""Lock timeout of a test append in milliseconds. Later appends wait while a test append waits."""
LOST_SECONDS: Final = 20.0
"""Time for which the log must be truncated before the adapter reports a loss."""
END_CHECK_SECONDS: Final = 1.0
"""Interval at which the adapter compares the head with the position of a reader at the end of the log."""
_CHAIN_BYTES: Final = 8
_PROBES: Final = SILENT_SECONDS - 1
"""Number of unanswered keepalive probes, one per second, before a connection is closed."""
_OPTIONS: Final = (
    "-c synchronous_commit=on -c statement_timeout=0 -c default_transaction_isolation=read\\ committed "
    "-c enable_seqscan=off -c enable_bitmapscan=off -c jit=off "
    f"-c idle_in_transaction_session_timeout={IDLE_SECONDS}s -c tcp_user_timeout={SILENT_SECONDS}s "
    f"-c tcp_keepalives_idle=1 -c tcp_keepalives_interval=1 -c tcp_keepalives_count={_PROBES}"
)
"""Server parameters of a session, which override PGOPTIONS and the `options` parameter of the URL.

Sequential scans and bitmap scans are disabled, because a sequential scan fails at the first damaged page of
the table. JIT compilation is disabled, because the compilation of a plan with a high estimated cost takes
100 ms per statement.
"""
_CONNECTION: Final = {
    "connect_timeout": CONNECT_SECONDS,
    "tcp_user_timeout": SILENT_SECONDS * 1000,
    "keepalives": 1,
    "keepalives_idle": 1,
    "keepalives_interval": 1,
    "keepalives_count": _PROBES,
}
"""Default libpq connection parameters, which the URL can override."""
_TABLES: Final = """
CREATE TABLE {log}_head (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    epoch bigint NOT NULL, holder bytea NOT NULL, end_offset bigint NOT NULL, chain bytea NOT NULL,
    last_record bigint NOT NULL, partition_records bigint NOT NULL
);
CREATE TABLE {log}_record (
    record bigint NOT NULL, stored bytea NOT NULL, taken_at timestamptz NOT NULL DEFAULT clock_timestamp()
) PARTITION BY RANGE (record);
CREATE UNIQUE INDEX ON {log}_record (record);
"""
# A partition is created as a separate table and then attached, because CREATE TABLE ... PARTITION OF would
# wait for concurrent readers such as pg_dump.
_PARTITION: Final = """
CREATE TABLE IF NOT EXISTS {log}_record_{number} (LIKE {log}_record INCLUDING DEFAULTS);
ALTER TABLE {log}_record ATTACH PARTITION {log}_record_{number} FOR VALUES FROM ({first}) TO ({end})
"""
_IS_PARTITION: Final = (
    "SELECT count(*) FROM pg_inherits WHERE inhrelid = to_regclass('{log}_record_{number}')"
)
_CREATE_HEAD: Final = """
INSERT INTO {log}_head (epoch, holder, end_offset, chain, last_record, partition_records)
VALUES (%s, %s, %s, %s, -1, %s)
"""
_APPEND: Final = """
WITH moved AS (
    UPDATE {log}_head SET epoch = %s, holder = %s, end_offset = %s, chain = %s, last_record = last_record + %s
    WHERE epoch = %s AND holder = %s AND end_offset = %s AND chain = %s RETURNING last_record
), added AS (
    INSERT INTO {log}_record (record, stored)
    SELECT last_record - %s + number, stored
    FROM moved, unnest(%b::bytea[]) WITH ORDINALITY AS given (stored, number)
    RETURNING record
) SELECT (SELECT last_record FROM moved), count(*), min(record), max(record) FROM added
"""
_INSERT_UNCHECKED: Final = """
WITH moved AS (
    UPDATE {log}_head SET last_record = last_record + 1 RETURNING last_record
), added AS (
    INSERT INTO {log}_record (record, stored) SELECT last_record, %b::bytea FROM moved RETURNING record
) SELECT (SELECT last_record FROM moved), count(*), min(record), max(record) FROM added
"""
_READ: Final = """
SELECT record, stored, (extract(epoch FROM taken_at) * 1000)::bigint FROM (
    SELECT *, coalesce(sum(octet_length(stored)) OVER before, 0) AS bytes_before
    FROM (
        SELECT * FROM {log}_record WHERE record >= %s ORDER BY record FETCH FIRST (%s) ROWS WITH TIES
    ) AS next_ones
    WINDOW before AS (ORDER BY record GROUPS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
) AS found WHERE bytes_before < %s ORDER BY record
"""
"""Returns either all rows with a given record number or none, because readers compare duplicate rows."""
_READ_ONE: Final = """
SELECT record, stored, (extract(epoch FROM taken_at) * 1000)::bigint FROM {log}_record WHERE record = %s
"""
_BOUNDS: Final = """
SELECT coalesce((SELECT min(record) FROM {log}_record), last_record + 1), last_record + 1 FROM {log}_head
"""
_BOUNDS_OF_PARTITIONS: Final = """
SELECT partition_records * (
    SELECT min(substring(relname FROM '[0-9]+$')::bigint)
    FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid WHERE inhparent = '{log}_record'::regclass
), last_record + 1 FROM {log}_head
"""
"""Returns the log bounds if the first record is unreadable.

The query assumes that the log begins at the lower bound of the oldest partition.
"""
_READ_LAST: Final = """
SELECT pg_is_in_recovery(), last_record + 1, (SELECT stored FROM {log}_record WHERE record = %s)
FROM {log}_head
"""
_OWNERSHIP_ADVICE: Final = (
    "Name the user in the URL that ran cluster create, or let this one be it: GRANT OWNER TO USER; ALTER "
    "ROLE USER SET role = OWNER;"
)
_CREATE_ADVICE: Final = (
    "Let the user make tables: GRANT CREATE ON SCHEMA public TO USER; or let it own the database."
)
_SETTINGS: Final = "SELECT name, setting, source FROM pg_settings WHERE name = ANY(%s)"
_STANDBYS: Final = """
SELECT pg_is_in_recovery(), current_user, current_database(), current_setting('synchronous_standby_names'),
    coalesce(array_agg(application_name ORDER BY application_name)
             FILTER (WHERE sync_state IN ('sync', 'quorum')), '{}'),
    count(pid), count(pid) FILTER (WHERE sync_state IS NULL)
FROM pg_stat_replication
"""
_CLOCK: Final = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_HEAD: Final = "SELECT epoch, holder, end_offset, chain FROM {log}_head"


class PostgresLog:
    """A shared log in the database specified by the libpq connection string `conninfo`.

    The names of the tables begin with the value of `log`. If `password_file` is given, the password is read
    from this file for each new connection.

    All methods are thread-safe. Except for checks, the methods share one connection, which is used by one
    call at a time. The adapter opens the connection for the first call, and opens a new connection after a
    failure.
    """

    is_dense = True
    """Record numbers are contiguous, because each number is derived from the head row."""

    def __init__(
        self, conninfo: str, log: str = "tidewheel", password_file: PasswordFile | None = None
    ) -> None:
        assert log.isidentifier(), f"{log!r} cannot begin the name of a table"
        self._conninfo, self._log, self._password_file = conninfo, log, password_file
        self._lock = Lock()
        self._connection: psycopg.Connection[Any] | None = None
        self._warned = ""
        self._partitions: set[int] = set()
        self._made_to = 0
        """Offset below which appends need no partition check.

        One more partition exists after this offset, because other nodes may append records first.
        """
        self._has_lax_commits = self._is_void = False
        """Whether the last check found an unsafe `synchronous_commit`, and whether to reconnect."""
        self._last: tuple[int, int] | None = None
        """Offset and CRC-32 of the newest record that was read or appended."""
        self._end_checked_at: float | None = None
        """Monotonic time of the last query that confirmed the position of a reader at the end of the log."""
        self._short_since: float | None = None
        self._sessions: WeakSet[psycopg.Connection[Any]] = WeakSet()
        self._sessions_lock, self._is_aborted = Lock(), False

    def create_log(self, head: Head) -> None:
        """Create the tables for a new log. Raise `ClusterExists` if the tables exist."""
        from psycopg.errors import DuplicateTable

        with self._use_connection(_CREATE_ADVICE) as connection, connection.transaction():
            try:
                connection.execute(self._format_sql(_TABLES))
            except DuplicateTable as error:
                raise ClusterExists(
                    f"Its tables are {self._log}_head and {self._log}_record. Run nodes of it, or give the "
                    "URL another ?log=NAME."
                ) from error
            connection.execute(self._format_sql(_CREATE_HEAD), (*_head_values(head), PARTITION_RECORDS))

    def head(self) -> Head:
        """Return the current head of the log. Raise `EngineUnavailable` if PostgreSQL does not respond."""
        with self._use_connection() as connection:
            row = self._fetch_row(connection, _HEAD)
        epoch, holder, end_offset, chain = row
        return Head(epoch, bytes(holder), Position(end_offset, int.from_bytes(chain, "big")))

    def append_if(self, head: Head, stored: Sequence[bytes], following: Head) -> int:
        """If the current head equals `head`, append all records and set the head to `following`.

        Return the offset of the last record. Raise `EngineRefused` if the head differs and no record was
        appended, or `EngineUnavailable` if the result is unknown.
        """
        count = len(stored)
        with self._use_connection() as connection:
            self._make_partitions(connection, count)
            values = (*_head_values(following), count, *_head_values(head), count, list(stored))
            last = self._insert_records(connection, _APPEND, values, count)
            if last is None:
                self._fetch_row(connection, _HEAD)  # Raises `NoCluster` if the head row is missing.
            elif not self._warned:
                self._store_newest_position(last, stored[-1])
        if last is None:
            raise EngineRefused("Another node has written since.")
        return last

    def append_unchecked(self, stored: bytes) -> None:
        """Append a record without comparing the head. Raise `EngineUnavailable` if the result is unknown."""
        with self._use_connection() as connection:
            self._make_partitions(connection, 1)
            if self._insert_records(connection, _INSERT_UNCHECKED, (stored,), 1) is None:
                raise self._make_no_head_error()

    def read(self, offset: int, bytes_max: int) -> list[Stored]:
        """Return records in offset order, beginning with the first record at or after `offset`.

        Return at least one record if the log contains a record at or after `offset`. Raise `Halted` if
        PostgreSQL has lost the end of the log, `LogDamaged` if the record at `offset` is unreadable, or
        `EngineUnavailable` if PostgreSQL does not respond.
        """
        with self._use_connection() as connection:
            rows = self._read_rows(connection, offset, bytes_max)
            found = [Stored(record, bytes(stored), taken_ms) for record, stored, taken_ms in rows]
            if found:
                self._store_newest_position(found[-1].offset, found[-1].stored)
            else:
                self._verify_log_end(connection, offset)
        return found

    def _read_rows(self, connection: psycopg.Connection[Any], offset: int, bytes_max: int) -> list[Any]:
        """Return rows in record number order, from `offset` up to the first unreadable row.

        Raise `LogDamaged` if the row at `offset` is unreadable.
        """
        from psycopg.errors import DataCorrupted, IndexCorrupted

        try:
            return self._query_rows(connection, offset, READ_RECORDS_MAX, bytes_max)
        except (DataCorrupted, IndexCorrupted) as error:
            reason = _error_text(error)
        rows, has_all = list[Any](), False
        for count in RETRY_RECORD_COUNTS:
            with suppress(DataCorrupted, IndexCorrupted):
                while (left := bytes_max - sum(len(row[1]) for row in rows)) > 0:
                    at = rows[-1][0] + 1 if rows else offset
                    more = self._query_rows(connection, at, count, left)
                    if not more:
                        break
                    rows += more
                has_all = True
                break
        self._warned = ""  # Discard the warning about the unreadable page.
        if not rows and not has_all:
            raise LogDamaged(f"PostgreSQL cannot read record {offset}: {reason}.", offset)
        return rows

    def _query_rows(
        self, connection: psycopg.Connection[Any], offset: int, count: int, bytes_max: int
    ) -> list[Any]:
        """Return up to `count` rows from `offset` on, ordered by record number.

        If `count` is 1, return only rows with the record number `offset`.
        """
        if count == 1:
            return connection.execute(self._format_sql(_READ_ONE), (offset,), binary=True).fetchall()
        values = offset, count, bytes_max
        return connection.execute(self._format_sql(_READ), values, binary=True).fetchall()

    def bounds(self) -> tuple[int, int]:
        """Return the log start offset and the log end offset.

        Raise `EngineUnavailable` if PostgreSQL does not respond.
        """
        from psycopg.errors import DataCorrupted

        with self._use_connection() as connection:
            try:
                row = self._fetch_row(connection, _BOUNDS)
            except DataCorrupted:
                row = self._fetch_row(connection, _BOUNDS_OF_PARTITIONS)
                self._warned = ""  # Discard the warning about the unreadable page.
        return int(row[0]), int(row[1])

    def trim(self, offset: int) -> None:
        """Drop all partitions that contain only records before `offset`.

        Raise `EngineUnavailable` if another session, such as pg_dump, is reading the log, because a longer
        wait would block appends.
        """
        first, _ = self.bounds()
        with self._use_connection() as connection:
            (size,) = self._fetch_row(connection, "SELECT partition_records FROM {log}_head")
            for number in range(first // size, offset // size):
                self._drop_partition(connection, number)

    def check_settings(self) -> list[str]:
        """Return a message for each setting that can cause the loss of accepted records.

        Raise `EngineUnavailable` if PostgreSQL does not respond.
        """
        found = self._read_settings()
        is_lax = found.values["synchronous_commit"] not in COMMITS_KEPT
        # An open session can continue to use an unsafe value. The next call therefore opens a new session if
        # this or the previous check found an unsafe value.
        self._is_void = self._is_void or is_lax or self._has_lax_commits
        self._has_lax_commits = is_lax
        return find_setting_faults(found)

    def check_append(self) -> None:
        """Append a test record, and roll back the transaction.

        Raise `EngineUnavailable` if another append is in progress or PostgreSQL does not respond.
        """
        from psycopg.errors import LockNotAvailable

        head = self.head()
        with self._use_connection() as connection, connection.transaction(force_rollback=True):
            try:
                connection.execute(f"SET LOCAL lock_timeout = {TRY_MS}")
                self._make_partitions(connection, 1)
                connection.execute(
                    self._format_sql(_APPEND), (*_head_values(head), 1, *_head_values(head), 1, [b""])
                )
            except LockNotAvailable as error:
                raise EngineUnavailable(
                    "Another append is under way for long: it waits for standbys."
                ) from error
            finally:
                self._forget_partitions()

    def list_risky_settings(self) -> list[str]:
        """Return a message for each setting that is risky but allowed.

        Raise `EngineUnavailable` if PostgreSQL does not respond.
        """
        return find_risky_settings(self._read_settings())

    def check_session(self) -> int:
        """Open and close a session, and return the server time in milliseconds since the Unix epoch.

        Raise `SessionRefused` if the server rejects the session, or `EngineUnavailable` if the server does
        not respond.
        """
        with self._open_check_connection() as connection:
            row = connection.execute(_CLOCK).fetchone()
        assert row is not None, "a value without a row"
        return int(row[0])

    def close(self) -> None:
        """Close the connection, if any."""
        with self._lock:
            self._close_connection()

    def abort_calls(self) -> None:
        """Abort all calls in progress, and reject all later calls.

        Aborted calls and rejected calls raise `EngineUnavailable`.
        """
        import psycopg

        with self._sessions_lock:
            self._is_aborted, sessions = True, list(self._sessions)
        for one in sessions:
            with suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(one.fileno())) as line:
                line.shutdown(socket.SHUT_RDWR)

    def count_rows(self, from_record: int) -> CheckResult:
        """Verify that each record number in a range of the log exists exactly once.

        The check neither waits for appends nor blocks them. Raise `NoCluster` if the tables are missing, or
        `EngineUnavailable` if PostgreSQL does not respond.
        """
        with self._open_check_connection() as connection:
            return count_log_rows(connection, self._log, from_record)

    @contextmanager
    def _open_check_connection(self) -> Iterator[psycopg.Connection[Any]]:
        """Provide a new connection for checks, and convert the exceptions raised by psycopg.

        Raise `EngineUnavailable` if the connection fails, `NoCluster` if the tables are missing, or
        `LogDamaged` if the tables are unreadable.
        """
        import psycopg

        try:
            with closing(self._open_connection()) as connection:
                connection.execute(f"SET statement_timeout = {CHECK_MS}")
                yield connection
        except psycopg.errors.UndefinedTable as error:
            raise self._make_no_tables_error() from error
        except (psycopg.errors.DataCorrupted, psycopg.errors.IndexCorrupted) as error:
            raise _make_damage_error(error) from error
        except psycopg.Error as error:
            raise self._make_connection_error(error) from error

    def _insert_records(
        self, connection: psycopg.Connection[Any], statement: str, values: tuple[Any, ...], count: int
    ) -> int | None:
        """Execute an append statement, and verify the inserted record numbers.

        Return the number of the last inserted record, or None if the head differs or is missing. Raise
        `LogDamaged` if a record number already exists, or if PostgreSQL has not inserted exactly the expected
        record numbers.
        """
        from psycopg.errors import UniqueViolation

        try:
            row = self._execute_insert(connection, statement, values)
        except UniqueViolation as error:
            raise LogDamaged(
                f"A new record got a number that is in {self._log}_record already, so it was not added: "
                f"{self._log}_head is behind its records, as after a restore of one table alone."
            ) from error
        if row is None or row[0] is None:
            return None
        last, added, least, most = row
        if (added, least, most) != (count, last - count + 1, last):
            raise LogDamaged(
                f"Of {count} new records up to {last} {self._log}_record has taken {added}, from {least} to "
                f"{most}: a trigger or a rule of the table loses or changes rows. To see it: psql -c "
                f"'\\d {self._log}_record'"
            )
        return int(last)

    def _execute_insert(
        self, connection: psycopg.Connection[Any], statement: str, values: tuple[Any, ...]
    ) -> tuple[Any, ...] | None:
        """Execute a statement that inserts records, and return the result row.

        The statement is retried if PostgreSQL selects an unreadable page from the free space map. A failed
        attempt inserts nothing. The unreadable page remains in the free space map, but PostgreSQL selects
        another page at the next attempt.
        """
        from psycopg.errors import DataCorrupted

        for _ in range(APPEND_ATTEMPTS - 1):
            with suppress(DataCorrupted):
                return connection.execute(self._format_sql(statement), values).fetchone()
            self._warned = ""  # Discard the warning about the unreadable page.
        return connection.execute(self._format_sql(statement), values).fetchone()

    def _drop_partition(self, connection: psycopg.Connection[Any], number: int) -> None:
        from psycopg.errors import LockNotAvailable

        try:
            with connection.transaction():
                connection.execute(f"SET LOCAL lock_timeout = {DROP_WAIT_MS}")
                connection.execute(
                    self._format_sql("DROP TABLE IF EXISTS {log}_record_{number}", number=number)
                )
        except LockNotAvailable as error:
            raise EngineUnavailable(
                "Another session reads the shared log, possibly a dump: it is trimmed later."
            ) from error
        self._partitions.discard(number)

    def _make_partition(self, connection: psycopg.Connection[Any], number: int, size: int) -> None:
        """Create a partition if it does not exist.

        Retry if another node is creating the same partition concurrently.
        """
        from psycopg import errors

        bounds = {"first": number * size, "end": (number + 1) * size}
        for tries_left in reversed(range(PARTITION_ATTEMPTS)):
            (count,) = self._fetch_row(connection, self._format_sql(_IS_PARTITION, number=number))
            if count:
                return
            try:
                with connection.transaction():
                    connection.execute(self._format_sql(_PARTITION, number=number, **bounds))
                return
            except (
                errors.DuplicateTable,
                errors.DuplicateObject,
                errors.UniqueViolation,
                errors.WrongObjectType,
            ):
                if not tries_left:
                    raise

    def _make_partitions(self, connection: psycopg.Connection[Any], count: int) -> None:
        """Create the partitions for the next `count` records, and the next two partitions.

        The head is read only if no record is known, or the newest known one is near the end of the known
        partitions.
        """
        if self._last is not None and self._last[0] + count < self._made_to:
            return
        last_record, size = self._fetch_row(
            connection, "SELECT last_record, partition_records FROM {log}_head"
        )
        first, last = last_record // size, (last_record + count) // size + 2
        for number in range(max(0, first), last + 1):
            if number not in self._partitions:
                self._make_partition(connection, number, size)
                self._partitions.add(number)
        self._made_to = last * size

    def _forget_partitions(self) -> None:
        """Discard the list of known partitions, which a rollback or a new connection may have invalidated."""
        self._partitions.clear()
        self._made_to = 0

    def _fetch_row(
        self, connection: psycopg.Connection[Any], statement: str, values: tuple[int, ...] = ()
    ) -> Any:
        """Return the first row of a query. Raise `NoCluster` if the head row is missing."""
        row = connection.execute(self._format_sql(statement), values or None).fetchone()
        if row is None:
            raise self._make_no_head_error()
        return row

    def _make_no_head_error(self) -> NoCluster:
        return NoCluster(f"The table {self._log}_head is empty.")

    @contextmanager
    def _use_connection(self, right: str = _OWNERSHIP_ADVICE) -> Iterator[psycopg.Connection[Any]]:
        """Provide the shared connection, and convert the exceptions raised by psycopg.

        Raise `EngineUnavailable` if the connection is lost or the server has sent a warning, `NoCluster` if
        the tables are missing, `LogDamaged` if the tables are unreadable, or `RightMissing` if the user lacks
        a privilege. The error message contains `right`, which describes how to grant the privilege.
        """
        import psycopg

        with self._lock:
            self._warned = ""
            try:
                yield self._ensure_connection()
            except psycopg.errors.UndefinedTable as error:
                raise self._make_no_tables_error() from error
            except psycopg.errors.InsufficientPrivilege as error:
                raise RightMissing(f"PostgreSQL refuses: {_error_text(error)}. {right}") from error
            except (psycopg.errors.DataCorrupted, psycopg.errors.IndexCorrupted) as error:
                self._close_connection()
                raise _make_damage_error(error) from error
            except psycopg.Error as error:
                self._close_connection()
                raise self._make_connection_error(error) from error
            if self._warned:
                raise EngineUnavailable(f"PostgreSQL warned: {self._warned}")

    def _make_no_tables_error(self) -> NoCluster:
        return NoCluster(f"This database has no tables {self._log}_head and {self._log}_record.")

    def _ensure_connection(self) -> psycopg.Connection[Any]:
        if self._is_void:
            self._is_void = False
            self._close_connection()
        if self._connection is None:
            connection = self._open_connection()
            try:
                self._verify_last_record(connection)
            except BaseException:
                connection.close()
                raise
            connection.add_notice_handler(self._record_notice)
            self._connection, self._end_checked_at = connection, None
            self._forget_partitions()
        return self._connection

    def _store_newest_position(self, offset: int, stored: bytes) -> None:
        """Store the offset and CRC-32 of a record, unless a newer record is already stored."""
        if self._last is None or offset >= self._last[0]:
            self._last = offset, zlib.crc32(stored)

    def _verify_last_record(self, connection: psycopg.Connection[Any]) -> None:
        """Verify that the CRC-32 of the newest record read or appended is unchanged.

        Raise `Halted` if the record has changed. If the log ends before the record, raise
        `EngineUnavailable`, or `Halted` after `LOST_SECONDS`.
        """
        from psycopg.errors import DataCorrupted, IndexCorrupted

        if self._last is None:
            return
        offset, crc = self._last
        try:
            is_standby, end, again = self._fetch_row(connection, _READ_LAST, (offset,))
        except (DataCorrupted, IndexCorrupted):
            self._last = None  # The record exists, and was read or appended before.
            return
        if end <= offset:
            raise self._make_short_error(end, offset + 1, is_standby=is_standby)
        # `again` is None if the record was trimmed.
        if again is not None and zlib.crc32(again) != crc:
            raise Halted(
                f"Record {offset} of {self._log}_record is not what was there before: this PostgreSQL has "
                "lost the log's end, and it has grown again."
            )

    def _verify_log_end(self, connection: psycopg.Connection[Any], offset: int) -> None:
        """Verify that a reader at `offset` has reached the end of the log.

        A successful check is valid for `END_CHECK_SECONDS`. If the log ends before `offset`, raise
        `EngineUnavailable`, or `Halted` after `LOST_SECONDS`. Also raise `EngineUnavailable` if the head
        includes the record at `offset` but the table does not. Later reads determine whether the record is
        still missing.
        """
        now = time.monotonic()
        if self._end_checked_at is not None and now < self._end_checked_at + END_CHECK_SECONDS:
            return
        is_standby, end, next_one = self._fetch_row(connection, _READ_LAST, (offset,))
        if end < offset:
            raise self._make_short_error(end, offset, is_standby=is_standby)
        self._short_since = None
        if end > offset and next_one is None:
            raise EngineUnavailable(
                f"Record {offset} of {self._log}_record is missing: {self._log}_head has {end - 1} as the "
                "last one. PostgreSQL has lost the table's end. To see it: tidewheel cluster doctor URL"
            )
        self._end_checked_at = now

    def _make_short_error(self, end: int, known_end: int, *, is_standby: bool) -> Halted | EngineUnavailable:
        """Return the exception for a log that ends before a known record."""
        said = (
            f"The log {self._log} of this PostgreSQL ends at record {end}, and reached to {known_end} before"
        )
        if is_standby:
            return EngineUnavailable(f"{said}: it is a standby, and behind.")
        now = time.monotonic()
        self._short_since = now if self._short_since is None else self._short_since
        if now - self._short_since < LOST_SECONDS:
            return EngineUnavailable(f"{said}: asked anew.")
        return Halted(
            f"{said}: it has lost the log's end, as a standby has that was promoted without all that was "
            "acknowledged."
        )

    def _open_connection(self) -> psycopg.Connection[Any]:
        import psycopg

        given = psycopg.conninfo.conninfo_to_dict(self._conninfo)
        if self._password_file is not None:
            given["password"] = self._password_file.read()
        options = f"{given.pop('options', os.environ.get('PGOPTIONS', ''))} {_OPTIONS}".lstrip()
        asked = psycopg.conninfo.make_conninfo("", **(_CONNECTION | given))
        self._require_not_aborted()
        connection = psycopg.connect(asked, autocommit=True, options=options)
        try:
            with self._sessions_lock:
                self._require_not_aborted()
                self._sessions.add(connection)
        except EngineUnavailable:
            connection.close()
            raise
        return connection

    def _require_not_aborted(self) -> None:
        if self._is_aborted:
            raise EngineUnavailable("This process ends, and waits for PostgreSQL no longer.")

    def _make_connection_error(self, error: psycopg.Error) -> EngineUnavailable:
        """Return the exception for an error that was reported by the server or by libpq."""
        said = _error_text(error)
        if not _is_refusal(error):
            return EngineUnavailable(f"PostgreSQL did not answer: {said}")
        file = self._password_file
        where = f" Its password is read from {file} for each connection." if file is not None else ""
        return SessionRefused(f"PostgreSQL says: {said}.{where}")

    def _read_settings(self) -> Settings:
        """Return the settings of a new session, and the state of the standbys.

        Raise `EngineUnavailable` if PostgreSQL does not respond.
        """
        with self._open_check_connection() as connection:
            rows = connection.execute(_SETTINGS, [list(SETTINGS)]).fetchall()
            standbys = connection.execute(_STANDBYS).fetchone()
        assert standbys is not None, "a sum without a row"
        values = {name: value for name, value, _ in rows}
        return Settings(values, {name: source for name, _, source in rows}, *standbys)

    def _record_notice(self, notice: psycopg.errors.Diagnostic) -> None:
        """Store a warning that the server has sent.

        Only a warning indicates that a commit did not wait for the standbys.
        """
        # The severity in field V is not localized, unlike the severity in field S and the message text.
        if notice.severity_nonlocalized == "WARNING":
            self._warned = notice.message_primary or "(without a text)"

    def _close_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _format_sql(self, statement: str, **numbers: int) -> Any:
        return statement.format(log=self._log, **numbers)


def _is_refusal(error: psycopg.Error) -> bool:
    """Return whether an error means that the server has responded and rejected the session.

    libpq provides no error code for a rejected session, and the message may be localized. A request for a
    password proves that the server has responded. The word FATAL is not localized in most languages.
    """
    failed = error.pgconn
    if failed is None or error.sqlstate is not None:
        return False
    return failed.used_password or failed.needs_password or "FATAL" in str(error)


def _error_text(error: psycopg.Error) -> str:
    """Return the text of an error as a single line.

    For a failed connection, the text from libpq contains one line per address.
    """

    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return error.diag.message_primary or "; ".join(lines) or type(error).__name__


def _head_values(head: Head) -> tuple[int, bytes, int, bytes]:
    chain = head.position.chain.to_bytes(_CHAIN_BYTES, "big")
    return head.epoch, head.holder, head.position.end, chain


def _make_damage_error(error: psycopg.Error) -> LogDamaged:
    return LogDamaged(f"PostgreSQL cannot read its own tables: {_error_text(error)}.")
