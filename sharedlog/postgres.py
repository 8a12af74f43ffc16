"""A shared log in PostgreSQL: one table of records, and one row that says what the next must follow.

    log_head      one row: the newest epoch and holder, the position behind what is accepted, the last offset,
                  and how many offsets a partition has
    log_record    one row a record: offset, bytes, when the server took it; partitioned by ranges of offsets

An append is one statement: it changes the head if that is what the writer says, and inserts the records only
then. PostgreSQL locks the row, so appends come one after the other; a reader sees an offset only when all
before it are there, because each commit had the head to itself. A zombie's statement changes no row.

A commit counts when the server reports it. With `synchronous_standby_names` that is when the standbys have
it; a server that gives up waiting for them says so in a WARNING, and that is no acknowledgement: `Unknown`.
So is a connection that breaks before the answer.

A network that drops what it is given, in silence, leaves connections that nobody ends. So a side that hears
nothing of the other for `SILENT_SECONDS` ends its own: an append that was under way is `Unknown` then. And a
session that stands still amid a transaction, which others wait for, is ended by the server: the node that
has it may be cut off or stopped, and its locks would hold up every other node for ever.

Trimming drops whole partitions, which costs no vacuum; up to one partition's records stay that could go.

A server that is stopped, or waits for standbys, may owe an answer for ever, while its machine says that it is
there. `give_up` ends all waiting for it: a node that is to end asks for that.

`trouble` asks over a connection of its own: an append may wait for standbys for as long as they are away, and
just then somebody wants to know why.

A server that is promoted without the last rows begins an older history. So with each new connection the
adapter reads again the record that it read or appended last: another one there is `Halted`, and so is a log
that ends before it for `LOST_SECONDS`; a standby may only be behind.

A page that PostgreSQL cannot read (a wrong checksum) is read around, record by record: `LogDamaged` names
the first one that is on it, and those behind it can be read. Where the adapter looks back at one, nothing
follows. An append for which PostgreSQL chooses such a page, as it has room, is tried again.

Cost: one round trip and one commit an append, and one more to learn of partitions: on a new connection and
each 10,000 records. Records go both ways in binary: as text, in hex, 25 KB take the writer 250 us of the
processor and the server 550, instead of 70 and 190. Memory: what one read returns. Weak spot: what was lost
is known from what this process has seen, and where its node goes on from: a node that was started again since
its checkpoint, on a server without the rows after that, cannot tell. And where the table's last page cannot
be read PostgreSQL adds no record, as that is where it would.
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
"""How many offsets a partition of a new log has: more than come while an append waits for another's, as it
knows the partitions of before."""
READ_RECORDS_MAX: Final = 10_000
FEWER_RECORDS: Final = (1_000, 100, 10, 1)
"""How many are asked for at once where one of more cannot be read."""
DROP_WAIT_MS: Final = 50
"""How long trimming waits for readers: an append waits behind it."""
MAKE_TRIES: Final = 3
ADD_TRIES: Final = 8
"""How often records are added where PostgreSQL chooses a page for them that it cannot read."""
CONNECT_SECONDS: Final = 5
SILENT_SECONDS: Final = 4
"""How long nothing may come from the other machine, not even that it has what was sent."""
IDLE_SECONDS: Final = 2
"""How long a session may stand still amid a transaction: the statements of one follow each other at once."""
CHECK_MS: Final = 10_000
"""How long one statement about the settings may take."""
TRY_MS: Final = 200
"""How long an append that is taken back waits for another: those behind it wait as long."""
LOST_SECONDS: Final = 20.0
"""How long the log's end must be before what was read until that is believed."""
END_SECONDS: Final = 1.0
"""How often a reader that has all looks whether the log's end is where the head says."""
_CHAIN_BYTES: Final = 8
_PROBES: Final = SILENT_SECONDS - 1
"""How many questions, a second apart, a silent connection gets before it is ended."""
_OPTIONS: Final = (
    "-c synchronous_commit=on -c statement_timeout=0 -c default_transaction_isolation=read\\ committed "
    "-c enable_seqscan=off -c enable_bitmapscan=off -c jit=off "
    f"-c idle_in_transaction_session_timeout={IDLE_SECONDS}s -c tcp_user_timeout={SILENT_SECONDS}s "
    f"-c tcp_keepalives_idle=1 -c tcp_keepalives_interval=1 -c tcp_keepalives_count={_PROBES}"
)
"""What a session asks of the server, behind what the URL (`options`) or PGOPTIONS asks: the last counts.

Records are found by the index alone: a scan of the table meets each page that is bad there. A plan whose scan
is called dear must not be compiled, for 100 ms, at each statement.
"""
_CONNECTION: Final = {
    "connect_timeout": CONNECT_SECONDS,
    "tcp_user_timeout": SILENT_SECONDS * 1000,
    "keepalives": 1,
    "keepalives_idle": 1,
    "keepalives_interval": 1,
    "keepalives_count": _PROBES,
}
"""What libpq asks of a connection, unless the URL says otherwise."""
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
# Made apart and then attached: to make it a partition at once would wait for whoever reads, as a dump does.
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
"""All rows of a record or none, should there be two: a reader compares them."""
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
"""For a first record on a page that cannot be read: what is trimmed are whole partitions."""
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
    """A shared log in the database that `conninfo` names (libpq); its tables begin with `log`.

    With a `password_file` each connection has the password that is in there by then.

    Calls may come from any thread; they run one after the other over one connection, which is opened when it
    is needed, and anew after it broke.
    """

    is_dense = True
    """The head's row numbers the records, one after the other."""

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
        """The record before which there are partitions, one of them for what others append meanwhile."""
        self._has_lax_commits = self._is_void = False
        """Whether sessions were lax when they were last looked at; whether this one is to be opened anew."""
        self._last: tuple[int, int] | None = None
        """The offset and the CRC-32 of the newest record that was read or appended."""
        self._end_checked_at: float | None = None
        """When this connection has told last that the log ends where it is read."""
        self._short_since: float | None = None
        self._sessions: WeakSet[psycopg.Connection[Any]] = WeakSet()
        self._sessions_lock, self._is_given_up = Lock(), False

    def found(self, head: Head) -> None:
        """Make the tables of a log that has no record yet; raise `ClusterExists` if there are some."""
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
        """Return what the next record must follow; raise `Unknown`."""
        with self._answered() as connection:
            row = self._only_row(connection, _HEAD)
        epoch, holder, end_offset, chain = row
        return Head(epoch, bytes(holder), Position(end_offset, int.from_bytes(chain, "big")))

    def append_if(self, head: Head, stored: Sequence[bytes], following: Head) -> int:
        """Append records, all or none, if the head is `head`, which then is `following`.

        Return the offset of the last record. Raise `Refused` if nothing was added, or `Unknown`.
        """
        count = len(stored)
        with self._answered() as connection:
            self._make_partitions(connection, count)
            values = (*_fields(following), count, *_fields(head), count, list(stored))
            last = self._add(connection, _APPEND, values, count)
            if last is None:
                self._only_row(connection, _HEAD)  # gone, or another's
            elif not self._warned:
                self._saw(last, stored[-1])
        if last is None:
            raise Refused("Another node has written since.")
        return last

    def note(self, stored: bytes) -> None:
        """Append a record whoever leads; the head stays. Raise `Unknown`."""
        with self._answered() as connection:
            self._make_partitions(connection, 1)
            if self._add(connection, _NOTE, (stored,), 1) is None:
                raise self._no_head()

    def read(self, offset: int, bytes_max: int) -> list[Stored]:
        """Return records from `offset` on, or from the first that is left; at least one if there is any.

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
        """Return the rows of a read, up to one that cannot be read; raise `LogDamaged` at that one."""
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
        self._warned = ""  # of the page that cannot be read
        if not rows and not has_all:
            raise LogDamaged(f"PostgreSQL cannot read record {offset}: {reason}.", offset)
        return rows

    def _read(
        self, connection: psycopg.Connection[Any], offset: int, count: int, bytes_max: int
    ) -> list[Any]:
        """Return so many rows, in order; of one, that of `offset` alone, without a look at the next."""
        if count == 1:
            return connection.execute(self._sql(_READ_ONE), (offset,), binary=True).fetchall()
        values = offset, count, bytes_max
        return connection.execute(self._sql(_READ), values, binary=True).fetchall()

    def bounds(self) -> tuple[int, int]:
        """Return the first offset that is left, and the one behind the last record; raise `Unknown`."""
        from psycopg.errors import DataCorrupted

        with self._answered() as connection:
            try:
                row = self._only_row(connection, _BOUNDS)
            except DataCorrupted:
                row = self._only_row(connection, _BOUNDS_OF_PARTITIONS)
                self._warned = ""  # of the page that cannot be read
        return int(row[0]), int(row[1])

    def trim(self, offset: int) -> None:
        """Drop the partitions that lie wholly before `offset`; raise `Unknown`.

        While somebody else reads the log, as a dump does, nothing is dropped: appends would wait for that.
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
        # A session that was opened while this was so, or before it was mended, keeps what it has.
        self._is_void = self._is_void or is_lax or self._has_lax_commits
        self._has_lax_commits = is_lax
        return trouble_of(found)

    def try_append(self) -> None:
        """Append a record and take it back; raise `Unknown` if none would be taken."""
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
        """Return a sentence for each choice that somebody may not know of; raise `Unknown`."""
        return notes_of(self._settings())

    def try_session(self) -> int:
        """Open a session beside those that stand, and end it; return the server's clock, in ms since 1970.

        Raise `Unknown`: of type `SessionRefused` where a server is there and lets nobody in.
        """
        with self._beside(CHECK_MS) as connection:
            row = connection.execute(_CLOCK).fetchone()
        assert row is not None, "a value without a row"
        return int(row[0])

    def close(self) -> None:
        """Close the connection, if there is one."""
        with self._lock:
            self._drop_connection()

    def give_up(self) -> None:
        """Let each call raise `Unknown` from now on, those that wait for an answer, too; waits for none."""
        import psycopg

        with self._sessions_lock:
            self._is_given_up, sessions = True, list(self._sessions)
        for one in sessions:
            with suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(one.fileno())) as line:
                line.shutdown(socket.SHUT_RDWR)

    def count_rows(self, from_record: int) -> Counted:
        """Count the rows of a range of records against their numbers; raise `Unknown` or `NoCluster`.

        It waits for no append, and none waits for it.
        """
        with self._beside(CHECK_MS) as connection:
            return counted(connection, self._log, from_record)

    def make_unique(self) -> list[str]:
        """Go on making the unique index of an older log (`sharedlog.postgres_rows`); raise `Unknown`."""
        with self._beside(INDEX_MS) as connection:
            return make_unique(connection, self._log)

    @contextmanager
    def _beside(self, statement_ms: int) -> Iterator[psycopg.Connection[Any]]:
        """Give a connection beside the one that appends; raise `Unknown`, `NoCluster` or `LogDamaged`."""
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
        """Add records; return the number of the last one, None if the head is another one.

        Raise `LogDamaged` if the table has not taken just these.
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
        """Return the row of a statement that adds records: a try that has failed has added nothing.

        PostgreSQL looks for a page with room in its map of free space, and does not take one that it cannot
        read out of that; the next look gives another page.
        """
        from psycopg.errors import DataCorrupted

        for _ in range(ADD_TRIES - 1):
            with suppress(DataCorrupted):
                return connection.execute(self._sql(statement), values).fetchone()
            self._warned = ""  # of the page that cannot be read
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
        """Make a partition, unless it is there; another node may be making it at the same time."""
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
        """Make the partitions that the next `count` records need, and two ahead of them.

        The head is asked only where the newest record that is known leaves less than one of these.
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
        """Ask anew which there are: the ones that were made may have been taken back with their session."""
        self._partitions.clear()
        self._made_to = 0

    def _only_row(
        self, connection: psycopg.Connection[Any], statement: str, values: tuple[int, ...] = ()
    ) -> Any:
        """Return the row of the log's head; raise `NoCluster` if it is gone."""
        row = connection.execute(self._sql(statement), values or None).fetchone()
        if row is None:
            raise self._no_head()
        return row

    def _no_head(self) -> NoCluster:
        return NoCluster(f"The table {self._log}_head is empty.")

    @contextmanager
    def _answered(self, right: str = _OWNS) -> Iterator[psycopg.Connection[Any]]:
        """Give the connection for statements; raise `Unknown` if it breaks, or the server warned.

        Raise `NoCluster` where the log's tables are missing; `right` is what gives a right that is.
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
        """Keep what the newest record is that was read or appended."""
        if self._last is None or offset >= self._last[0]:
            self._last = offset, zlib.crc32(stored)

    def _look_back(self, connection: psycopg.Connection[Any]) -> None:
        """Read the newest record again; raise `Halted` if it is another one now, or gone for good."""
        from psycopg.errors import DataCorrupted, IndexCorrupted

        if self._last is None:
            return
        offset, crc = self._last
        try:
            is_standby, end, again = self._only_row(connection, _AGAIN, (offset,))
        except (DataCorrupted, IndexCorrupted):
            self._last = None  # it is there, and this reader is behind it
            return
        if end <= offset:
            raise self._short(end, offset + 1, is_standby=is_standby)
        if again is not None and zlib.crc32(again) != crc:  # None: trimmed since
            raise Halted(
                f"Record {offset} of {self._log}_record is not what was there before: this PostgreSQL has "
                "lost the log's end, and it has grown again."
            )

    def _require_end(self, connection: psycopg.Connection[Any], offset: int) -> None:
        """Raise `Unknown`, and in time `Halted`, if the log ends before the record that is to come next.

        Raise `Unknown`, too, if the head has that record and the table does not: what else it lacks, and
        whether that stays so, the next record tells.
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
        """Return what to raise for a log that ends before what is known of it."""
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
        """Return what to raise for what a server has said, or libpq of one that is not there."""
        said = _said(error)
        if not _is_refusal(error):
            return Unknown(f"PostgreSQL did not answer: {said}")
        file = self._password_file
        where = f" Its password is read from {file} for each connection." if file is not None else ""
        return SessionRefused(f"PostgreSQL says: {said}.{where}")

    def _settings(self) -> Settings:
        """Return how this PostgreSQL is set, and how a session is; raise `Unknown`."""
        with self._beside(CHECK_MS) as connection:
            rows = connection.execute(_SETTINGS, [list(SETTINGS)]).fetchall()
            standbys = connection.execute(_STANDBYS).fetchone()
        assert standbys is not None, "a sum without a row"
        values = {name: value for name, value, _ in rows}
        return Settings(values, {name: source for name, _, source in rows}, *standbys)

    def _notice(self, notice: psycopg.errors.Diagnostic) -> None:
        """Keep a warning: a commit that did not wait for its standbys is told of so, and only so."""
        # Field V, which is not translated, as the text and field S are.
        if notice.severity_nonlocalized == "WARNING":
            self._warned = notice.message_primary or "(without a text)"

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _sql(self, statement: str, **numbers: int) -> Any:
        return statement.format(log=self._log, **numbers)


def _is_refusal(error: psycopg.Error) -> bool:
    """Return whether an error means that a server is there, and opens no session.

    libpq gives no code for that, and the server's words are of its language: that it asked for a password is
    certain, and FATAL most languages have.
    """
    failed = error.pgconn
    if failed is None or error.sqlstate is not None:
        return False
    return failed.used_password or failed.needs_password or "FATAL" in str(error)


def _said(error: psycopg.Error) -> str:
    """Return what a server or libpq has said, in one line: libpq writes one for each address it tried."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return error.diag.message_primary or "; ".join(lines) or type(error).__name__


def _fields(head: Head) -> tuple[int, bytes, int, bytes]:
    chain = head.position.chain.to_bytes(_CHAIN_BYTES, "big")
    return head.epoch, head.holder, head.position.end, chain


def _damaged(error: psycopg.Error) -> LogDamaged:
    return LogDamaged(f"PostgreSQL cannot read its own tables: {_said(error)}.")
