"""The consumer's guard: a message that comes again has its effect once.

In a worker, or as a listener of RocketMQ's official client, one line:

    worker.consume("order-created", group="billing")(once_listener(sessions, "billing", handle))
    PushConsumer(configuration, "billing", once_listener(sessions, "billing", handle), subscriptions)

where `handle(session, message)` works in the given session. Or by hand:

    with sessions.begin() as session, once(session, "billing", identity_of(message)) as is_first:
        if is_first:
            session.add(invoice)

Strong (`once`): the row (group, identity) is inserted in the transaction of the effect, so both are there or
neither. A rival that handles the same message at the same time waits for the first one's commit and then sees
False; when the first one rolls back, the rival is the first. On MySQL and MariaDB the row says "done" only
from the end of the block: a statement that commits in the middle leaves a row that the next delivery takes.

Weak (`RedisGuard`): for effects outside a database. `SET NX EX` in two steps: "at work" for `work_s`, then
"done" for `keep_s`. A consumer that dies at work delays the message, it does not lose it; one that dies
between the effect and "done" has the effect a second time. That is the most that two systems without a common
commit can do.

The same message: `identity_of` is `TOPIC/ID`, of the topic that the message was sent to and the outbox's row
id where there is one, else the message id. A redelivery keeps all three, also a redrive to another topic; a
second send by a relay keeps topic and row id. A copy that is sent on to another topic is another message,
whatever properties it takes along, and so is the same idempotency key in another topic.

Cost: one insert of about 100 bytes per message, on MySQL and MariaDB also an update; `forget` deletes old
ones. Keep them for as long as a message may come again: the consumer's retries, or a reset of the group's
progress.
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
"""How often a listener runs a transaction that the database rolls back in favour of another."""
GROUP_CHARACTERS, IDENTITY_CHARACTERS = 255, 256
ORIGIN_TOPIC = "TW_ORIGIN_TOPIC"
"""The property that a dead letter redriven to another topic has: the topic that it was sent to."""
AT_WORK, DONE = "at work ", "done"
OPEN = 0
"""`consumed_ms` of a row whose transaction has not come to its end."""
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
    """Create `tidewheel_consumed` where it is missing (with Alembic: `consumed_table.to_metadata`).

    Raises:
        ConfigurationError: when one is there of an older version, or unfit in MySQL.
    """
    create_tables(engine, metadata, REMEDY)


def consumed_sql(dialect: str) -> str:
    """Return the statements that create the table and its index.

    Raises:
        UnknownChoice: when the dialect is none of sqlite, postgresql, mysql, mariadb.
    """
    return tables_sql(metadata, dialect)


def identity_of(message: AnyMessage) -> str:
    """Return the identity that all deliveries of one message share, also if a relay sent it twice."""
    refuse_no_message(message, "topic", "properties", "id" if isinstance(message, Message) else "message_id")
    message_id = message.id if isinstance(message, Message) else message.message_id
    topic = message.properties.get(ORIGIN_TOPIC) or message.topic
    return f"{topic}/{message.properties.get(OUTBOX_ID) or message_id}"


@contextmanager
def once(session: Session, consumer_group: str, identity: str) -> Iterator[bool]:
    """Return whether the group sees this message for the first time; stands with the session's transaction.

    An exception that leaves the block rolls the session back: the answer cannot stand without the effect.

    Raises:
        ConfigurationError: when the table is missing, or each statement commits by itself.
        ClientMistake: for what is no session, or a group or an identity that is no text or too long.
        RefusedByState: when the transaction ends inside the block (MySQL, MariaDB), or the session ends it
            and begins another there.
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
    """Yield the same for an AsyncSession."""
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
    """Refuse another transaction of the session inside the block, before its first statement.

    To end the guard's own there is fine where nothing follows: row and effect are both there or neither.

    Raises:
        RefusedByState: when it begins one.
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
    """Return the session that a scoped one stands for, whose events would be those of all its sessions."""
    return session.registry() if isinstance(session, scoped_session | async_scoped_session) else session


def first_of(connection: Connection, consumer_group: str, identity: str) -> bool:
    """Insert the row, waiting for a rival that has inserted it; False when the message is done.

    What cannot roll a row back is refused before there is one: it would stay, and the message would be
    taken for done. On MySQL and MariaDB, where a statement may commit it in the middle, it is inserted as
    `OPEN`, which is done by `close_row` only.
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
    """Return the condition for a message's row."""
    return (consumed_table.c.consumer_group == consumer_group) & (consumed_table.c.identity == identity)


def is_open(connection: Connection, consumer_group: str, identity: str) -> bool:
    """Return whether a row that is there was committed before its transaction's end; if so, lock it.

    Both reads see what the snapshot hides. The first takes the lock that the failed INSERT has already.
    """
    query = select(consumed_table.c.consumed_ms).where(is_row(consumer_group, identity))
    return all(
        connection.execute(query.with_for_update(read=is_shared)).scalar_one() == OPEN
        for is_shared in (True, False)
    )


def close_row(consumer_group: str, identity: str, connection: Connection) -> None:
    """Let an open row say that its message is done.

    The row is found by its key alone: a search by `consumed_ms` too would lock a gap of the other index.
    """
    closed = update(consumed_table).where(is_row(consumer_group, identity))
    connection.execute(closed.values(consumed_ms=wall_clock_ms()))


def noop(_: Connection) -> None:
    """Leave the row of a message that was done before."""


def refuse_long(consumer_group: str, identity: str) -> None:
    """Refuse what does not fit into a row: a database that cuts it would take two messages for one."""
    refuse_no_names(consumer_group, identity)
    if len(consumer_group) > GROUP_CHARACTERS or len(identity) > IDENTITY_CHARACTERS:
        raise ClientMistake(
            f"The group has {len(consumer_group)} characters of at most {GROUP_CHARACTERS}, and the identity "
            f"{len(identity)} of at most {IDENTITY_CHARACTERS}."
        )


def refuse_no_names(consumer_group: str, identity: str) -> None:
    """Refuse what names neither a group nor a message, such as the message itself."""
    refuse_no_name(consumer_group, "The group")
    refuse_no_name(identity, "The identity", "give identity_of(message)")


def forget(engine: Engine, before_ms: int) -> int:
    """Delete what was consumed before a time (milliseconds since 1970), in steps; return how many.

    A step is short, so that consumers get their turn between two.

    Raises:
        ConfigurationError: when the table is missing or of an older version.
    """
    with explained(consumed_table, REMEDY):
        return delete_before(engine, consumed_table.c.consumed_ms, before_ms, FORGET_ROWS)


class OnceListener:
    """Hands each message once to `handle(session, message)`, in a transaction of its own.

    When that raises, the transaction rolls back, the exception goes on, and the broker delivers again later.
    One that the database rolled back in favour of another is run again first, `TRIES` times in all.

    Raises:
        ConfigurationError: for a coroutine function, which would be called and never run.
        ClientMistake: for what is no session factory, group or function.
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
        """Handle one message (a worker calls this in its threads)."""
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
        """Handle one message (the official client calls this on its own threads)."""
        with needing("rocketmq"):
            from rocketmq import ConsumeResult
        self(message)
        return ConsumeResult.SUCCESS


once_listener = OnceListener


def coroutine_refused(handle: object) -> ConfigurationError:
    """Return the refusal of what only a loop can run."""
    name = getattr(handle, "__qualname__", repr(handle))
    return ConfigurationError(
        f"once_listener takes a plain function, and {name} is async: it would be called and never "
        "run. Make it a plain def, or consume by an async def of your own with async_once("
        "session, group, identity_of(message)) in it."
    )


class RedisGuard:
    """The weak guard over one Redis; keys are `tidewheel:once:GROUP:MESSAGE`."""

    def __init__(self, redis: Redis, *, work_s: int = WORK_S, keep_s: int = KEEP_S) -> None:
        refuse_no_redis(redis)
        self._redis, self._work_s, self._keep_s = redis, work_s, keep_s
        self._close = redis.register_script(CLOSE_IF_OURS)

    @contextmanager
    def once(self, consumer_group: str, identity: str) -> Iterator[bool]:
        """Return whether the group sees this message for the first time.

        An exception that leaves the block lets the next delivery be the first. `work_s` must be longer than
        the work: after it another may begin.

        Raises:
            RefusedByState: when another is at work on it; let it out of the listener.
            ClientMistake: for a group or an identity that is no text.
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
    """Return what Redis stored, whether the client decodes or not."""
    return value.decode() if isinstance(value, bytes) else value
