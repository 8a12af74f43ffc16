"""A shared log in PostgreSQL: one table of records, and one row that holds the head of the log.

    log_head      one row: the newest epoch and holder, the accepted position, the last offset, and the number
                  of offsets in a partition
    log_record    one row a record: offset, bytes, time of the append; partitioned by ranges of offsets

An append is one statement: it updates the head if that equals the writer's head, and inserts the records only
then. The row lock serializes appends. A reader sees an offset only after all lower ones, because each commit
held the lock on the head. The statement of a deposed leader updates no row.

A commit counts once the server reports it. With `synchronous_standby_names` the standbys then have it. A
server that stops waiting for them reports this in a WARNING, which is no acknowledgement: `Unknown`. The
outcome is also `Unknown` if the connection breaks before the answer.

A network that drops packets silently leaves half-open connections. So each side closes a connection without
traffic for `SILENT_SECONDS`; an append in flight is then `Unknown`. The server terminates a session that is
idle in a transaction: its node may be partitioned or stopped, and its locks would block all other nodes.

Trimming drops whole partitions, which requires no vacuum; up to one partition of unneeded records remains.

A stopped server, or one that waits for standbys, may never answer although its machine responds. `give_up`
ends all waiting for it, when the node shuts down.

`trouble` uses a connection of its own: an append may wait for standbys for as long as they are down, and an
operator needs the reason during that time.

A server that was promoted without the last rows has an older history. So on each new connection the adapter
reads the last record again that it read or appended. If it differs, `Halted` is raised; also if the log ends
before it for `LOST_SECONDS`. A standby may merely lag.

A page that PostgreSQL cannot read (a wrong checksum) is skipped, record by record: `LogDamaged` names the
first record on the page, and later records can be read. The check on a new connection tolerates such a page.
An append for which PostgreSQL chooses such a page, since it has room, is retried.

Cost: one round trip and one commit an append, and one more to check the partitions: on a new connection and
each 10,000 records. Records are transferred in binary: as text, in hex, 25 KB cost the writer 250 us of CPU
time and the server 550 us, instead of 70 and 190 us. Memory: the rows of one read. Weak spot: a loss is
detected from the records that this process has seen, and from its node's checkpoint: a node restarted since
its checkpoint, on a server without the later rows, cannot detect it. If the last page of the table is
unreadable, PostgreSQL adds no record, since it would use that page.
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
    Halted,
    LogDamaged,
    NoCluster,
    Refused,
    RightMissing,
    SessionRefused,
    Unknown,
)
from sharedlog.fold import Position
from sharedlog.password_file import PasswordFile
from sharedlog.postgres_rows import INDEX_MS, counted, make_unique
from sharedlog.postgres_settings import COMMITS_KEPT, SETTINGS, Settings, notes_of, trouble_of
from sharedlog.scrub import Counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

PARTITION_RECORDS: Final = 10_000
"""The number of offsets in a partition of a new log: more than other nodes append while an append, which
has checked the partitions before, waits for the lock."""
READ_RECORDS_MAX: Final = 10_000
FEWER_RECORDS: Final = (1_000, 100, 10, 1)
"""Batch sizes to retry with after a batch with an unreadable record."""
DROP_WAIT_MS: Final = 50
"""How long trimming waits for readers: appends wait behind it."""
MAKE_TRIES: Final = 3
ADD_TRIES: Final = 8
"""Attempts to add records, if PostgreSQL chooses an unreadable page for them."""
CONNECT_SECONDS: Final = 5
SILENT_SECONDS: Final = 4
"""How long the peer may send nothing, not even a TCP acknowledgement."""
IDLE_SECONDS: Final = 2
"""How long a session may be idle in a transaction: the statements of a transaction are sent without delay."""
CHECK_MS: Final = 10_000
"""Statement timeout of the connections for checks."""
TRY_MS: Final = 200
"""How long a test append waits for another one: later appends wait as long."""
LOST_SECONDS: Final = 20.0
"""How long the log must end too early before its end counts as lost."""
END_SECONDS: Final = 1.0
"""How often a reader at the end of the log checks that the head has the same end."""
_CHAIN_BYTES: Final = 8
_PROBES: Final = SILENT_SECONDS - 1
"""Keepalive probes, a second apart, before a silent connection is closed."""
_OPTIONS: Final = (
    "-c synchronous_commit=on -c statement_timeout=0 -c default_transaction_isolation=read\\ committed "
    "-c enable_seqscan=off -c enable_bitmapscan=off -c jit=off "
    f"-c idle_in_transaction_session_timeout={IDLE_SECONDS}s -c tcp_user_timeout={SILENT_SECONDS}s "
    f"-c tcp_keepalives_idle=1 -c tcp_keepalives_interval=1 -c tcp_keepalives_count={_PROBES}"
)
"""Server parameters of a session, after those of the URL (`options`) or PGOPTIONS: the last one applies.

Records are read by index scans only: a sequential scan would read every damaged page. JIT is off, as a plan
with a high cost estimate would be compiled, for 100 ms, at each statement.
"""
_CONNECTION: Final = {
    "connect_timeout": CONNECT_SECONDS,
    "tcp_user_timeout": SILENT_SECONDS * 1000,
    "keepalives": 1,
    "keepalives_idle": 1,
    "keepalives_interval": 1,
    "keepalives_count": _PROBES,
}
"""libpq connection parameters, overridden by those in the URL."""
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
# Created separately and then attached: PARTITION OF would wait for readers of the table, such as a dump.
_PARTITION: Final = """
CREATE TABLE IF NOT EXISTS {log}_record_{number} (LIKE {log}_record INCLUDING DEFAULTS);
ALTER TABLE {log}_record ATTACH PARTITION {log}_record_{number} FOR VALUES FROM ({first}) TO ({end})
"""
_IS_PARTITION: Final = (
    "SELECT count(*) FROM pg_inherits WHERE inhrelid = to_regclass('{log}_record_{number}')"
)
_FOUND: Final = """
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
_NOTE: Final = """
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
"""All rows of a record or none, in case there are duplicates: a reader compares them."""
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
"""For a first record on an unreadable page: trimming removes whole partitions."""
_AGAIN: Final = """
SELECT pg_is_in_recovery(), last_record + 1, (SELECT stored FROM {log}_record WHERE record = %s)
FROM {log}_head
"""
_OWNS: Final = (
    "Name the user in the URL that ran cluster create, or let this one be it: GRANT OWNER TO USER; ALTER "
    "ROLE USER SET role = OWNER;"
)
_MAKES: Final = "Let the user make tables: GRANT CREATE ON SCHEMA public TO USER; or let it own the database."
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
    """A shared log in the database given by `conninfo` (libpq); its table names begin with `log`.

    Each connection reads `password_file`, if given, for its password.

    Calls may come from any thread; they run one at a time over one connection, which is opened on demand, and
    again after a failure.
    """

    is_dense = True
    """The row of the head numbers the records contiguously."""

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
        """The offset up to which partitions exist, less one partition for concurrent appends of others."""
        self._has_lax_commits = self._is_void = False
        """Whether commits were lax at the last check; whether the session must be reopened."""
        self._last: tuple[int, int] | None = None
        """The offset and the CRC-32 of the newest record that was read or appended."""
        self._end_checked_at: float | None = None
        """When this connection last confirmed that the log ends where the reader is."""
        self._short_since: float | None = None
        self._sessions: WeakSet[psycopg.Connection[Any]] = WeakSet()
        self._sessions_lock, self._is_given_up = Lock(), False

    def found(self, head: Head) -> None:
        """Create the tables of a new log; raise `ClusterExists` if they exist."""
        from psycopg.errors import DuplicateTable

        with self._answered(_MAKES) as connection, connection.transaction():
            try:
                connection.execute(self._sql(_TABLES))
            except DuplicateTable as error:
                raise ClusterExists(
                    f"Its tables are {self._log}_head and {self._log}_record. Run nodes of it, or give the "
                    "URL another ?log=NAME."
                ) from error
            connection.execute(self._sql(_FOUND), (*_fields(head), PARTITION_RECORDS))

    def head(self) -> Head:
        """Return the head that the next record must follow; raise `Unknown`."""
        with self._answered() as connection:
            row = self._only_row(connection, _HEAD)
        epoch, holder, end_offset, chain = row
        return Head(epoch, bytes(holder), Position(end_offset, int.from_bytes(chain, "big")))

    def append_if(self, head: Head, stored: Sequence[bytes], following: Head) -> int:
        """Append all records if the head is `head`, and set the head to `following`; else append none.

        Return the offset of the last record. Raise `Refused` if nothing was added, or `Unknown`.
        """
        count = len(stored)
        with self._answered() as connection:
            self._make_partitions(connection, count)
            values = (*_fields(following), count, *_fields(head), count, list(stored))
            last = self._add(connection, _APPEND, values, count)
            if last is None:
                self._only_row(connection, _HEAD)  # raises if the head is gone
            elif not self._warned:
                self._saw(last, stored[-1])
        if last is None:
            raise Refused("Another node has written since.")
        return last

    def note(self, stored: bytes) -> None:
        """Append a record, whatever the head is; the head stays. Raise `Unknown`."""
        with self._answered() as connection:
            self._make_partitions(connection, 1)
            if self._add(connection, _NOTE, (stored,), 1) is None:
                raise self._no_head()

    def read(self, offset: int, bytes_max: int) -> list[Stored]:
        """Return records from `offset` on, or from the first one left; at least one if there is any.

        Raise `Unknown`, `Halted` if the log has lost its end, or `LogDamaged` if `offset` cannot be read.
        """
        with self._answered() as connection:
            rows = self._rows(connection, offset, bytes_max)
            found = [Stored(record, bytes(stored), taken_ms) for record, stored, taken_ms in rows]
            if found:
                self._saw(found[-1].offset, found[-1].stored)
            else:
                self._require_end(connection, offset)
        return found

    def _rows(self, connection: psycopg.Connection[Any], offset: int, bytes_max: int) -> list[Any]:
        """Return the rows of a read, up to an unreadable one; raise `LogDamaged` if that is the first."""
        from psycopg.errors import DataCorrupted, IndexCorrupted

        try:
            return self._read(connection, offset, READ_RECORDS_MAX, bytes_max)
        except (DataCorrupted, IndexCorrupted) as error:
            reason = _said(error)
        rows, has_all = list[Any](), False
        for count in FEWER_RECORDS:
            with suppress(DataCorrupted, IndexCorrupted):
                while (left := bytes_max - sum(len(row[1]) for row in rows)) > 0:
                    at = rows[-1][0] + 1 if rows else offset
                    more = self._read(connection, at, count, left)
                    if not more:
                        break
                    rows += more
                has_all = True
                break
        self._warned = ""  # a warning about the unreadable page
        if not rows and not has_all:
            raise LogDamaged(f"PostgreSQL cannot read record {offset}: {reason}.", offset)
        return rows

    def _read(
        self, connection: psycopg.Connection[Any], offset: int, count: int, bytes_max: int
    ) -> list[Any]:
        """Return up to `count` rows, in order; for a count of 1, only the row of `offset` itself."""
        if count == 1:
            return connection.execute(self._sql(_READ_ONE), (offset,), binary=True).fetchall()
        values = offset, count, bytes_max
        return connection.execute(self._sql(_READ), values, binary=True).fetchall()

    def bounds(self) -> tuple[int, int]:
        """Return the first offset left, and the offset after the last record; raise `Unknown`."""
        from psycopg.errors import DataCorrupted

        with self._answered() as connection:
            try:
                row = self._only_row(connection, _BOUNDS)
            except DataCorrupted:
                row = self._only_row(connection, _BOUNDS_OF_PARTITIONS)
                self._warned = ""  # a warning about the unreadable page
        return int(row[0]), int(row[1])

    def trim(self, offset: int) -> None:
        """Drop the partitions that end at or before `offset`; raise `Unknown`.

        While another session reads the log, such as a dump, nothing is dropped: appends would wait for it.
        """
        first, _ = self.bounds()
        with self._answered() as connection:
            (size,) = self._only_row(connection, "SELECT partition_records FROM {log}_head")
            for number in range(first // size, offset // size):
                self._drop_partition(connection, number)

    def trouble(self) -> list[str]:
        """Return a sentence for each setting under which records may be lost; raise `Unknown`."""
        found = self._settings()
        is_lax = found.values["synchronous_commit"] not in COMMITS_KEPT
        # A session opened before the setting was fixed keeps the lax value, so it is reopened.
        self._is_void = self._is_void or is_lax or self._has_lax_commits
        self._has_lax_commits = is_lax
        return trouble_of(found)

    def try_append(self) -> None:
        """Append a record and roll it back; raise `Unknown` if the append fails."""
        from psycopg.errors import LockNotAvailable

        head = self.head()
        with self._answered() as connection, connection.transaction(force_rollback=True):
            try:
                connection.execute(f"SET LOCAL lock_timeout = {TRY_MS}")
                self._make_partitions(connection, 1)
                connection.execute(self._sql(_APPEND), (*_fields(head), 1, *_fields(head), 1, [b""]))
            except LockNotAvailable as error:
                raise Unknown("Another append is under way for long: it waits for standbys.") from error
            finally:
                self._forget_partitions()

    def notes(self) -> list[str]:
        """Return a sentence for each choice that an operator may be unaware of; raise `Unknown`."""
        return notes_of(self._settings())

    def try_session(self) -> int:
        """Open and close another session; return the server's clock, in ms since 1970.

        Raise `Unknown`; its subclass `SessionRefused` if the server responds and refuses the session.
        """
        with self._beside(CHECK_MS) as connection:
            row = connection.execute(_CLOCK).fetchone()
        assert row is not None, "a value without a row"
        return int(row[0])

    def close(self) -> None:
        """Close the connection, if it is open."""
        with self._lock:
            self._drop_connection()

    def give_up(self) -> None:
        """Make each call raise `Unknown` from now on, including calls in progress; return at once."""
        import psycopg

        with self._sessions_lock:
            self._is_given_up, sessions = True, list(self._sessions)
        for one in sessions:
            with suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(one.fileno())) as line:
                line.shutdown(socket.SHUT_RDWR)

    def count_rows(self, from_record: int) -> Counted:
        """Compare the rows of a range with their record numbers; raise `Unknown` or `NoCluster`.

        The count does not wait for appends, and appends do not wait for it.
        """
        with self._beside(CHECK_MS) as connection:
            return counted(connection, self._log, from_record)

    def make_unique(self) -> list[str]:
        """Continue to build the unique index of an older log (`sharedlog.postgres_rows`); raise `Unknown`."""
        with self._beside(INDEX_MS) as connection:
            return make_unique(connection, self._log)

    @contextmanager
    def _beside(self, statement_ms: int) -> Iterator[psycopg.Connection[Any]]:
        """Open a second connection; raise `Unknown`, `NoCluster` or `LogDamaged`."""
        import psycopg

        try:
            with closing(self._opened()) as connection:
                connection.execute(f"SET statement_timeout = {statement_ms}")
                yield connection
        except psycopg.errors.UndefinedTable as error:
            raise self._no_tables() from error
        except (psycopg.errors.DataCorrupted, psycopg.errors.IndexCorrupted) as error:
            raise _damaged(error) from error
        except psycopg.Error as error:
            raise self._unanswered(error) from error

    def _add(
        self, connection: psycopg.Connection[Any], statement: str, values: tuple[Any, ...], count: int
    ) -> int | None:
        """Add records; return the number of the last one, or None if the head has changed.

        Raise `LogDamaged` if the table did not store exactly these records.
        """
        from psycopg.errors import UniqueViolation

        try:
            row = self._added(connection, statement, values)
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

    def _added(
        self, connection: psycopg.Connection[Any], statement: str, values: tuple[Any, ...]
    ) -> tuple[Any, ...] | None:
        """Run a statement that adds records, and return its row; a failed attempt has added nothing.

        PostgreSQL finds a page with room in its free space map, and does not remove an unreadable page from
        the map; the next attempt finds another page.
        """
        from psycopg.errors import DataCorrupted

        for _ in range(ADD_TRIES - 1):
            with suppress(DataCorrupted):
                return connection.execute(self._sql(statement), values).fetchone()
            self._warned = ""  # a warning about the unreadable page
        return connection.execute(self._sql(statement), values).fetchone()

    def _drop_partition(self, connection: psycopg.Connection[Any], number: int) -> None:
        from psycopg.errors import LockNotAvailable

        try:
            with connection.transaction():
                connection.execute(f"SET LOCAL lock_timeout = {DROP_WAIT_MS}")
                connection.execute(self._sql("DROP TABLE IF EXISTS {log}_record_{number}", number=number))
        except LockNotAvailable as error:
            raise Unknown("Somebody reads the shared log, a dump maybe: it is trimmed later.") from error
        self._partitions.discard(number)

    def _make_partition(self, connection: psycopg.Connection[Any], number: int, size: int) -> None:
        """Create a partition if it is missing; another node may create it concurrently."""
        from psycopg import errors

        bounds = {"first": number * size, "end": (number + 1) * size}
        for tries_left in reversed(range(MAKE_TRIES)):
            (count,) = self._only_row(connection, self._sql(_IS_PARTITION, number=number))
            if count:
                return
            try:
                with connection.transaction():
                    connection.execute(self._sql(_PARTITION, number=number, **bounds))
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
        """Create the partitions that the next `count` records need, and two more.

        The head is queried only if the newest known record is within one partition of the last one created.
        """
        if self._last is not None and self._last[0] + count < self._made_to:
            return
        last_record, size = self._only_row(
            connection, "SELECT last_record, partition_records FROM {log}_head"
        )
        first, last = last_record // size, (last_record + count) // size + 2
        for number in range(max(0, first), last + 1):
            if number not in self._partitions:
                self._make_partition(connection, number, size)
                self._partitions.add(number)
        self._made_to = last * size

    def _forget_partitions(self) -> None:
        """Forget the known partitions: their creation may have been rolled back with the session."""
        self._partitions.clear()
        self._made_to = 0

    def _only_row(
        self, connection: psycopg.Connection[Any], statement: str, values: tuple[int, ...] = ()
    ) -> Any:
        """Return the single row of a query on the head; raise `NoCluster` if it is gone."""
        row = connection.execute(self._sql(statement), values or None).fetchone()
        if row is None:
            raise self._no_head()
        return row

    def _no_head(self) -> NoCluster:
        return NoCluster(f"The table {self._log}_head is empty.")

    @contextmanager
    def _answered(self, right: str = _OWNS) -> Iterator[psycopg.Connection[Any]]:
        """Provide the connection for statements; raise `Unknown` if it breaks, or the server warned.

        Raise `NoCluster` if the log's tables are missing; `right` explains how to grant a missing privilege.
        """
        import psycopg

        with self._lock:
            self._warned = ""
            try:
                yield self._connected()
            except psycopg.errors.UndefinedTable as error:
                raise self._no_tables() from error
            except psycopg.errors.InsufficientPrivilege as error:
                raise RightMissing(f"PostgreSQL refuses: {_said(error)}. {right}") from error
            except (psycopg.errors.DataCorrupted, psycopg.errors.IndexCorrupted) as error:
                self._drop_connection()
                raise _damaged(error) from error
            except psycopg.Error as error:
                self._drop_connection()
                raise self._unanswered(error) from error
            if self._warned:
                raise Unknown(f"PostgreSQL warned: {self._warned}")

    def _no_tables(self) -> NoCluster:
        return NoCluster(f"This database has no tables {self._log}_head and {self._log}_record.")

    def _connected(self) -> psycopg.Connection[Any]:
        if self._is_void:
            self._is_void = False
            self._drop_connection()
        if self._connection is None:
            connection = self._opened()
            try:
                self._look_back(connection)
            except BaseException:
                connection.close()
                raise
            connection.add_notice_handler(self._notice)
            self._connection, self._end_checked_at = connection, None
            self._forget_partitions()
        return self._connection

    def _saw(self, offset: int, stored: bytes) -> None:
        """Remember the newest record that was read or appended."""
        if self._last is None or offset >= self._last[0]:
            self._last = offset, zlib.crc32(stored)

    def _look_back(self, connection: psycopg.Connection[Any]) -> None:
        """Read the newest record again; raise `Halted` if it has changed, or is gone for LOST_SECONDS."""
        from psycopg.errors import DataCorrupted, IndexCorrupted

        if self._last is None:
            return
        offset, crc = self._last
        try:
            is_standby, end, again = self._only_row(connection, _AGAIN, (offset,))
        except (DataCorrupted, IndexCorrupted):
            self._last = None  # it exists, and this reader has already passed it
            return
        if end <= offset:
            raise self._short(end, offset + 1, is_standby=is_standby)
        if again is not None and zlib.crc32(again) != crc:  # None: it was trimmed
            raise Halted(
                f"Record {offset} of {self._log}_record is not what was there before: this PostgreSQL has "
                "lost the log's end, and it has grown again."
            )

    def _require_end(self, connection: psycopg.Connection[Any], offset: int) -> None:
        """Raise `Unknown`, or `Halted` after LOST_SECONDS, if the log ends before the next record to read.

        Raise `Unknown` also if the head includes that record and the table does not have it; later reads show
        whether it stays missing, and whether others are.
        """
        now = time.monotonic()
        if self._end_checked_at is not None and now < self._end_checked_at + END_SECONDS:
            return
        is_standby, end, next_one = self._only_row(connection, _AGAIN, (offset,))
        if end < offset:
            raise self._short(end, offset, is_standby=is_standby)
        self._short_since = None
        if end > offset and next_one is None:
            raise Unknown(
                f"Record {offset} of {self._log}_record is missing: {self._log}_head has {end - 1} as the "
                "last one. PostgreSQL has lost the table's end. To see it: tidewheel cluster doctor URL"
            )
        self._end_checked_at = now

    def _short(self, end: int, known_end: int, *, is_standby: bool) -> Halted | Unknown:
        """Return the exception for a log that ends before its known end."""
        said = (
            f"The log {self._log} of this PostgreSQL ends at record {end}, and reached to {known_end} before"
        )
        if is_standby:
            return Unknown(f"{said}: it is a standby, and behind.")
        now = time.monotonic()
        self._short_since = now if self._short_since is None else self._short_since
        if now - self._short_since < LOST_SECONDS:
            return Unknown(f"{said}: asked anew.")
        return Halted(
            f"{said}: it has lost the log's end, as a standby has that was promoted without all that was "
            "acknowledged."
        )

    def _opened(self) -> psycopg.Connection[Any]:
        import psycopg

        given = psycopg.conninfo.conninfo_to_dict(self._conninfo)
        if self._password_file is not None:
            given["password"] = self._password_file.read()
        options = f"{given.pop('options', os.environ.get('PGOPTIONS', ''))} {_OPTIONS}".lstrip()
        asked = psycopg.conninfo.make_conninfo("", **(_CONNECTION | given))
        self._require_not_given_up()
        connection = psycopg.connect(asked, autocommit=True, options=options)
        try:
            with self._sessions_lock:
                self._require_not_given_up()
                self._sessions.add(connection)
        except Unknown:
            connection.close()
            raise
        return connection

    def _require_not_given_up(self) -> None:
        if self._is_given_up:
            raise Unknown("This process ends, and waits for PostgreSQL no longer.")

    def _unanswered(self, error: psycopg.Error) -> Unknown:
        """Return the exception for an error of the server, or of libpq if no server responds."""
        said = _said(error)
        if not _is_refusal(error):
            return Unknown(f"PostgreSQL did not answer: {said}")
        file = self._password_file
        where = f" Its password is read from {file} for each connection." if file is not None else ""
        return SessionRefused(f"PostgreSQL says: {said}.{where}")

    def _settings(self) -> Settings:
        """Return the settings of this PostgreSQL and of a session; raise `Unknown`."""
        with self._beside(CHECK_MS) as connection:
            rows = connection.execute(_SETTINGS, [list(SETTINGS)]).fetchall()
            standbys = connection.execute(_STANDBYS).fetchone()
        assert standbys is not None, "a sum without a row"
        values = {name: value for name, value, _ in rows}
        return Settings(values, {name: source for name, _, source in rows}, *standbys)

    def _notice(self, notice: psycopg.errors.Diagnostic) -> None:
        """Keep a warning: the server reports only by a warning that a commit did not wait for standbys."""
        # Field V is not translated, unlike the text and field S.
        if notice.severity_nonlocalized == "WARNING":
            self._warned = notice.message_primary or "(without a text)"

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _sql(self, statement: str, **numbers: int) -> Any:
        return statement.format(log=self._log, **numbers)


def _is_refusal(error: psycopg.Error) -> bool:
    """Return whether an error means that a server responds, and refuses the session.

    libpq returns no code for a refusal, and the server's message is translated. A request for a password is
    certain evidence; the word FATAL is the same in most languages.
    """
    failed = error.pgconn
    if failed is None or error.sqlstate is not None:
        return False
    return failed.used_password or failed.needs_password or "FATAL" in str(error)


def _said(error: psycopg.Error) -> str:
    """Return an error message as one line: libpq writes a line for each address it tried."""

    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return error.diag.message_primary or "; ".join(lines) or type(error).__name__


def _fields(head: Head) -> tuple[int, bytes, int, bytes]:
    chain = head.position.chain.to_bytes(_CHAIN_BYTES, "big")
    return head.epoch, head.holder, head.position.end, chain


def _damaged(error: psycopg.Error) -> LogDamaged:
    return LogDamaged(f"PostgreSQL cannot read its own tables: {_said(error)}.")
