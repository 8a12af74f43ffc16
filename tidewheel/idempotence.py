"""Idempotence guard for consumers: a message that is delivered more than once takes effect once.

In a worker, or as a listener of RocketMQ's official client:

    worker.consume("order-created", group="billing")(once_listener(sessions, "billing", handle))
    PushConsumer(configuration, "billing", once_listener(sessions, "billing", handle), subscriptions)

where `handle(session, message)` uses the given session. The guard can also be used directly:

    with sessions.begin() as session, once(session, "billing", identity_of(message)) as is_first:
        if is_first:
            session.add(invoice)

Strong guard (`once`): the row (group, identity) is inserted in the same transaction as the effect, so either
both are committed or neither. A concurrent consumer of the same message waits for the commit of the first
consumer and then gets False. If the first consumer rolls back, the concurrent consumer becomes the first. On
MySQL and MariaDB, the row is marked as done only at the end of the block. If a statement commits inside the
block, the row remains open and the next delivery takes it over.

Weak guard (`RedisGuard`), for effects outside a database. `SET NX EX` is used in two steps: "at work" for
`work_s` seconds, then "done" for `keep_s` seconds. If a consumer crashes while it is at work, the message is
delayed and not lost. If it crashes between the effect and "done", the effect is repeated. Two systems without
a common commit cannot give a stronger guarantee.

Identity of a message: `identity_of` returns `TOPIC/ID`. The topic is the topic that the message was sent to.
The id is the row id in the outbox, if there is one, or the message id. The identity is unchanged by a
redelivery, by a redrive to another topic, and by a repeated send of an outbox relay. A copy that is sent to
another topic has a different identity, even if it has the same properties or the same idempotency key.

Cost: one insert of about 100 bytes per message, and one update on MySQL and MariaDB. `forget` deletes old
rows. Keep the rows for as long as a message may be delivered again, by consumer retries or by a reset of the
group's offsets.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from functools import partial
from inspect import iscoroutine, iscoroutinefunction
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from uuid import uuid4

from tidewheel.barrier import wall_clock_ms
from tidewheel.barrier_table import create_tables, explained, refuse_autocommit
from tidewheel.client.handles import Message
from tidewheel.database_arguments import (
    refuse_no_async_session,
    refuse_no_factory,
    refuse_no_function,
    refuse_no_message,
    refuse_no_name,
    refuse_no_redis,
    refuse_no_session,
)
from tidewheel.database_errors import ROLLED_BACK, says, told_to_repeat
from tidewheel.databases import (
    DIALECTS,
    EXACT,
    KNOWN,
    MYSQL,
    insert_if_new,
    tables_sql,
)
from tidewheel.errors import ClientMistake, ConfigurationError, RefusedByState, UnknownChoice
from tidewheel.extras import needing
from tidewheel.mysql_tables import refuse_unfit_mysql_table
from tidewheel.one_transaction import async_one_transaction, one_database, one_transaction
from tidewheel.outbox_table import OUTBOX_ID
from tidewheel.own_transactions import delete_before

with needing("txn"):
    from sqlalchemy import (
        BigInteger,
        Column,
        Connection,
        Index,
        MetaData,
        String,
        Table,
        event,
        select,
        update,
    )
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.ext.asyncio import async_scoped_session
    from sqlalchemy.orm import scoped_session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from redis import Redis
    from rocketmq import ConsumeResult
    from rocketmq import Message as OfficialMessage
    from sqlalchemy import ColumnElement, Engine
    from sqlalchemy.ext.asyncio import AsyncSession
    from sqlalchemy.orm import Session, sessionmaker

    AnySession = TypeVar("AnySession", Session, AsyncSession)
    AnyMessage: TypeAlias = Message[Any] | OfficialMessage

WORK_S = 60
KEEP_S = 7 * 24 * 3600
FORGET_ROWS = 10_000
TRIES = 3
"""Number of attempts of a listener for a transaction that the database rolls back because of a conflict."""
GROUP_CHARACTERS, IDENTITY_CHARACTERS = 255, 256
ORIGIN_TOPIC = "TW_ORIGIN_TOPIC"
"""The property that contains the original topic of a dead letter that was redriven to another topic."""
AT_WORK, DONE = "at work ", "done"
OPEN = 0
"""Value of `consumed_ms` in a row whose transaction has not finished."""
REMEDY = (
    "Call idempotence.create_table(engine) once, or with Alembic put "
    "consumed_table.to_metadata(Base.metadata) beside your models and migrate."
)
CLOSE_IF_OURS = """
if redis.call("GET", KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[2] == "" then return redis.call("DEL", KEYS[1]) end
redis.call("SET", KEYS[1], ARGV[2], "EX", ARGV[3])
return 1
"""

metadata = MetaData()
consumed_table = Table(
    "tidewheel_consumed",
    metadata,
    Column("consumer_group", String(GROUP_CHARACTERS), primary_key=True),
    Column("identity", String(IDENTITY_CHARACTERS), primary_key=True),
    Column("consumed_ms", BigInteger, nullable=False),
    **EXACT,
)
Index("tidewheel_consumed_when", consumed_table.c.consumed_ms)


def create_table(engine: Engine) -> None:
    """Create `tidewheel_consumed` if it does not exist. With Alembic, use `consumed_table.to_metadata`.

    Raises:
        ConfigurationError: If an existing table is outdated, or has an unsuitable engine or collation in
            MySQL.
    """
    create_tables(engine, metadata, REMEDY)


def consumed_sql(dialect: str) -> str:
    """Return the SQL statements that create the table and its index.

    Raises:
        UnknownChoice: If the dialect is not sqlite, postgresql, mysql or mariadb.
    """
    return tables_sql(metadata, dialect)


def identity_of(message: AnyMessage) -> str:
    """Return the identity that all deliveries of a message share, even if an outbox relay sent it twice."""
    refuse_no_message(message, "topic", "properties", "id" if isinstance(message, Message) else "message_id")
    message_id = message.id if isinstance(message, Message) else message.message_id
    topic = message.properties.get(ORIGIN_TOPIC) or message.topic
    return f"{topic}/{message.properties.get(OUTBOX_ID) or message_id}"


@contextmanager
def once(session: Session, consumer_group: str, identity: str) -> Iterator[bool]:
    """Yield whether the group processes this message for the first time, as part of the session's
    transaction.

    An exception that leaves the block rolls the session back, so that the row is not committed without the
    effect.

    Raises:
        ConfigurationError: If the table is missing, or the session is in autocommit mode.
        ClientMistake: If an argument has the wrong type, or the group or identity is empty or too long.
        RefusedByState: If the transaction ends inside the block (MySQL, MariaDB), or the session ends it
            and begins another transaction there.
    """
    refuse_no_session(session)
    try:
        connection = session.connection()
        is_first = first_of(connection, consumer_group, identity)
        complete = partial(close_row, consumer_group, identity) if is_first else noop
        very = the_very(session)
        with (
            one_transaction(connection, complete),
            one_database(very, connection.engine),
            no_other_transaction(very),
        ):
            yield is_first
    except BaseException as error:
        session.rollback()
        if isinstance(error, DBAPIError):
            told_to_repeat(error)
        raise


@asynccontextmanager
async def async_once(session: AsyncSession, consumer_group: str, identity: str) -> AsyncIterator[bool]:
    """Do the same as `once` for an AsyncSession."""
    refuse_no_async_session(session)
    try:
        connection = await session.connection()
        is_first = await connection.run_sync(first_of, consumer_group, identity)
        complete = partial(close_row, consumer_group, identity) if is_first else noop
        async with async_one_transaction(connection, complete):
            very = the_very(session).sync_session
            with one_database(very, connection.sync_engine), no_other_transaction(very):
                yield is_first
    except BaseException as error:
        await session.rollback()
        if isinstance(error, DBAPIError):
            told_to_repeat(error)
        raise


@contextmanager
def no_other_transaction(session: Session) -> Iterator[None]:
    """Refuse a second transaction of the session inside the block, before its first statement.

    Ending the guarded transaction inside the block is allowed if no statement follows, because the row and
    the effect are then both committed or both rolled back.

    Raises:
        RefusedByState: If the session begins a second transaction.
    """
    guarded = session.get_transaction()

    def refuse(*_: object) -> None:
        if session.get_transaction() not in (guarded, None):
            raise RefusedByState(
                "The session's transaction was ended inside its block, and what follows would stand without "
                "the guard's row, or be lost behind it. Leave the end to the block, or let nothing follow it."
            )

    event.listen(session, "after_begin", refuse)
    try:
        yield
        refuse()
    finally:
        event.remove(session, "after_begin", refuse)


def the_very(session: AnySession) -> AnySession:
    """Return the underlying session of a scoped session, because event listeners of a scoped session apply to
    all its sessions.
    """
    return session.registry() if isinstance(session, scoped_session | async_scoped_session) else session


def first_of(connection: Connection, consumer_group: str, identity: str) -> bool:
    """Insert the row and return False if the message is already done.

    The insert waits for a concurrent insert.

    A connection that cannot roll back the row is refused before the insert. Otherwise the row would remain,
    and the message would be treated as done. On MySQL and MariaDB, where a statement may commit implicitly,
    the row is inserted as `OPEN` and closed by `close_row`.
    """
    if connection.dialect.name not in DIALECTS:
        raise UnknownChoice(f"The guard works on {KNOWN}, not on {connection.dialect.name}.")
    refuse_long(consumer_group, identity)
    refuse_autocommit(connection)
    refuse_unfit_mysql_table(connection, consumed_table)
    is_closed_later = connection.dialect.name in MYSQL
    consumed_ms = OPEN if is_closed_later else wall_clock_ms()
    row = {"consumer_group": consumer_group, "identity": identity, "consumed_ms": consumed_ms}
    with explained(consumed_table, REMEDY):
        is_new = insert_if_new(connection, consumed_table, row)
        return is_new or (is_closed_later and is_open(connection, consumer_group, identity))


def is_row(consumer_group: str, identity: str) -> ColumnElement[bool]:
    """Return the SQL condition for a message's row."""
    return (consumed_table.c.consumer_group == consumer_group) & (consumed_table.c.identity == identity)


def is_open(connection: Connection, consumer_group: str, identity: str) -> bool:
    """Return whether an existing row was committed before its transaction finished. If so, lock the row.

    Both reads see rows that are not visible in the snapshot. The first read takes the shared lock that the
    failed INSERT already holds.
    """
    query = select(consumed_table.c.consumed_ms).where(is_row(consumer_group, identity))
    return all(
        connection.execute(query.with_for_update(read=is_shared)).scalar_one() == OPEN
        for is_shared in (True, False)
    )


def close_row(consumer_group: str, identity: str, connection: Connection) -> None:
    """Mark an open row as done.

    The row is found by its primary key only, because a condition on `consumed_ms` would also lock a gap in
    the other index.
    """
    closed = update(consumed_table).where(is_row(consumer_group, identity))
    connection.execute(closed.values(consumed_ms=wall_clock_ms()))


def noop(_: Connection) -> None:
    """Do nothing for a message that was already done."""


def refuse_long(consumer_group: str, identity: str) -> None:
    """Refuse a group or identity that is too long, because a database that truncates it would confuse two
    messages.
    """
    refuse_no_names(consumer_group, identity)
    if len(consumer_group) > GROUP_CHARACTERS or len(identity) > IDENTITY_CHARACTERS:
        raise ClientMistake(
            f"The group has {len(consumer_group)} characters of at most {GROUP_CHARACTERS}, and the identity "
            f"{len(identity)} of at most {IDENTITY_CHARACTERS}."
        )


def refuse_no_names(consumer_group: str, identity: str) -> None:
    """Refuse a group or identity that is not a text, such as the message itself."""
    refuse_no_name(consumer_group, "The group")
    refuse_no_name(identity, "The identity", "give identity_of(message)")


def forget(engine: Engine, before_ms: int) -> int:
    """Delete rows consumed before a time in milliseconds since 1970. Returns the number of deleted rows.

    Rows are deleted in short steps, so that consumers are not blocked.

    Raises:
        ConfigurationError: If the table is missing or outdated.
    """
    with explained(consumed_table, REMEDY):
        return delete_before(engine, consumed_table.c.consumed_ms, before_ms, FORGET_ROWS)


class OnceListener:
    """Passes each message once to `handle(session, message)`, in a separate transaction.

    If the function raises an exception, the transaction is rolled back, the exception is propagated, and the
    broker delivers the message again later. A transaction that the database rolled back because of a conflict
    is repeated first, up to `TRIES` attempts.

    Raises:
        ConfigurationError: If the function is a coroutine function, which would be called but never run.
        ClientMistake: If an argument has the wrong type.
    """

    def __init__(
        self, sessions: sessionmaker[Session], group: str, handle: Callable[[Session, Any], object]
    ) -> None:
        refuse_no_factory(sessions)
        refuse_no_name(group, "The group")
        refuse_no_function(handle)
        if iscoroutinefunction(handle) or iscoroutinefunction(type(handle).__call__):
            raise coroutine_refused(handle)
        self._sessions, self._group, self._handle = sessions, group, handle

    def __call__(self, message: AnyMessage) -> None:
        """Handle one message. A worker calls this method in its threads."""
        for _ in range(TRIES - 1):
            try:
                return self._handle_once(message)
            except DBAPIError as error:
                if not says(error, ROLLED_BACK):
                    raise
        return self._handle_once(message)

    def _handle_once(self, message: AnyMessage) -> None:
        with (
            self._sessions.begin() as session,
            once(session, self._group, identity_of(message)) as is_first,
        ):
            if is_first and iscoroutine(coroutine := self._handle(session, message)):
                coroutine.close()
                raise coroutine_refused(self._handle)

    def consume(self, message: OfficialMessage) -> ConsumeResult:
        """Handle one message. The official client calls this method in its threads."""
        with needing("rocketmq"):
            from rocketmq import ConsumeResult
        self(message)
        return ConsumeResult.SUCCESS


once_listener = OnceListener


def coroutine_refused(handle: object) -> ConfigurationError:
    """Return the error for a coroutine function."""
    name = getattr(handle, "__qualname__", repr(handle))
    return ConfigurationError(
        f"once_listener takes a plain function, and {name} is async: it would be called and never "
        "run. Make it a plain def, or consume by an async def of your own with async_once("
        "session, group, identity_of(message)) in it."
    )


class RedisGuard:
    """The weak guard, based on Redis. Keys have the form `tidewheel:once:GROUP:MESSAGE`."""

    def __init__(self, redis: Redis, *, work_s: int = WORK_S, keep_s: int = KEEP_S) -> None:
        refuse_no_redis(redis)
        self._redis, self._work_s, self._keep_s = redis, work_s, keep_s
        self._close = redis.register_script(CLOSE_IF_OURS)

    @contextmanager
    def once(self, consumer_group: str, identity: str) -> Iterator[bool]:
        """Yield whether the group processes this message for the first time.

        After an exception that leaves the block, the next delivery is processed as the first. `work_s` must
        be longer than the processing time. After `work_s` seconds, another consumer may begin.

        Raises:
            RefusedByState: If another consumer is at work on the message. Let the listener raise this
                exception.
            ClientMistake: If the group or identity is not a non-empty text.
        """
        refuse_no_names(consumer_group, identity)
        key, ours = f"tidewheel:once:{consumer_group}:{identity}", AT_WORK + uuid4().hex
        if not self._redis.set(key, ours, nx=True, ex=self._work_s):
            if text_of(self._redis.get(key)) != DONE:
                raise RefusedByState(
                    f"Another consumer of group {consumer_group} is at work on message {identity}. "
                    "Let this out of the listener, and the message comes again."
                )
            yield False
            return
        try:
            yield True
        except BaseException:
            self._close([key], [ours, "", 0])
            raise
        self._close([key], [ours, DONE, self._keep_s])


def text_of(value: Any) -> str | None:
    """Return a value stored in Redis as text, regardless of whether the client decodes responses."""
    return value.decode() if isinstance(value, bytes) else value
