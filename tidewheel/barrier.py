"""Messages committed atomically with a database transaction, without a hand-written checker.

    barrier, client = Barrier(sessionmaker(engine)), Client()
    created = NewMessage("order-created", {"order": 7})
    deadline = NewMessage("deadlines", {"order": 7}, delay="30m", key="order:7")
    with barrier.answering(client, "order-created", "deadlines"):         # as long as the service runs
        with barrier.transaction(client, created, deadline) as session:
            session.add(order)

The messages commit or roll back together. For asyncio over the same database: `Barrier(sessionmaker(engine),
async_sessionmaker(async_engine))`, an AsyncClient, and the `async_` variants of both methods. RocketMQ's
official producer replaces the client, with its own messages and the barrier as its checker:
`Producer(configuration, ["order-created"], barrier)`.

Principle: the first statement of the user's transaction inserts the ids of the half messages into
`tidewheel_barrier`. These rows exist if and only if the user's rows exist, so a transaction check-back
requires one lookup.

Rules:
1. A transaction sends the half messages, inserts their rows, runs the user's statements, commits the database
   transaction, and then ends the half messages.
2. The table alone determines the outcome. After any failure (in the user's code, a statement, or the commit,
   whose reply may be lost), each half message is ended according to the table, not according to the
   exception.
3. If a message has no row, the check-back inserts a row with the outcome ROLLED_BACK, called the fence. Both
   inserts use the same primary key, so a transaction that runs after the fence fails with `TransactionEnded`
   and does not commit rows without a message. Several ids are inserted by one statement, so a fence for one
   message rejects all of them.
4. The fence insert waits for locks for at most `FENCE_LOCK_MS`. After a lock timeout, or if the database is
   unreachable, the answer is UNKNOWN. The half message stays open and the broker repeats the check-back.
5. After the database commit, a failure to reach the broker is logged and not raised. The check-back then
   commits the half message.
6. A half message contains the name of its database (`tidewheel_database`). A barrier answers UNKNOWN for a
   different name or a missing name. The broker then sends the check-back to another producer of the topic, so
   several services can share a topic.
7. Check-backs end after a limited time (55 minutes by default). A block that takes longer than `longest_s` is
   rolled back instead of committed, because its message may have expired.
8. The following cases are refused before the first half message is sent: a session or connection that is
   already in a transaction, an engine in autocommit mode, and a topic over HTTP without `answering` in this
   process. A pooled connection in autocommit mode is refused before the first row is inserted.

Cost: one insert of about 100 bytes per message in the user's transaction, and one primary-key read per
check-back. Databases other than PostgreSQL also run one query without a table. Rows may be deleted (`forget`)
after their half messages have ended or expired.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from tidewheel.barrier_answers import answers_in_a_thread, answers_in_this_loop
from tidewheel.barrier_blocks import AsyncBlock, Block
from tidewheel.barrier_halves import (
    BARRIER,
    Half,
    Outcome,
    async_end_halves,
    async_prepare_by,
    async_send_halves,
    committed,
    end_halves,
    ids_of,
    prepare_by,
    send_halves,
)
from tidewheel.barrier_table import (
    barrier_sql,
    barrier_table,
    create_tables,
    database_name,
    draw_database_name,
    explained,
    lock_timeout_of,
    metadata,
    refuse_autocommit,
    refuse_unfit_table,
)
from tidewheel.client.calls import spaced
from tidewheel.client.clients import AsyncClient, Client
from tidewheel.client.values import NewMessage
from tidewheel.database_arguments import (
    kind_of,
    refuse_no_async_factory,
    refuse_no_engine,
    refuse_no_name,
    session_from,
)
from tidewheel.database_errors import told_to_repeat
from tidewheel.errors import ConfigurationError, RefusedByState, TransactionEnded
from tidewheel.extras import needing
from tidewheel.one_transaction import async_one_transaction, one_database, one_transaction
from tidewheel.own_transactions import delete_before, own_transaction

with needing("txn"):
    from sqlalchemy import Connection, insert, select
    from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
    from sqlalchemy.orm import Session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence

    from rocketmq import Message, Producer
    from sqlalchemy import Engine, Insert
    from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
    from sqlalchemy.orm import sessionmaker

    from tidewheel.client.values import TimerResult

__all__ = ["Barrier", "Outcome", "barrier_sql", "barrier_table", "metadata"]

LONGEST_S = 1_800
FORGET_ROWS = 10_000
REMEDY = (
    "Call barrier.create_table() once, or with Alembic put the tables of tidewheel.barrier.metadata "
    "beside your models and migrate."
)

log = logging.getLogger(__name__)


class Barrier:
    """The barrier of one database. It can be used as the checker of an official producer.

    Raises:
        UnknownChoice: If the database is not supported. The lock timeout of the fence is not portable.
        ConfigurationError: If the asynchronous sessions use a different database.
    """

    def __init__(
        self,
        sessions: sessionmaker[Session],
        async_sessions: async_sessionmaker[AsyncSession] | None = None,
        *,
        longest_s: float = LONGEST_S,
        clock_ms: Callable[[], int] | None = None,
    ) -> None:
        self._sessions = sessions
        self._async_sessions = async_sessions
        self._engine = engine_of(sessions)
        refuse_no_engine(self._engine)
        self._lock_timeout = lock_timeout_of(self._engine)
        self._clock_ms = clock_ms or wall_clock_ms
        self._longest_s = longest_s
        self._database = ""
        self._found_async_fit = False
        self._answered = Counter[str]()
        """The number of open `answering` blocks per topic. Keys include the namespace prefix."""
        if async_sessions is not None:
            refuse_no_async_factory(async_sessions)
            refuse_other_database(self._engine, async_sessions().get_bind().engine)

    def create_table(self) -> None:
        """Create the barrier's tables if they do not exist.

        Raises:
            ConfigurationError: If an existing table is outdated, or has an unsuitable engine or collation in
                MySQL.
        """
        create_tables(self._engine, metadata, REMEDY)

    @contextmanager
    def answering(self, client: Client, *topics: str) -> Iterator[None]:
        """Answer check-backs of topics in a thread while the block is open.

        Keep the block open for the lifetime of the service. It also answers for half messages of processes
        that have crashed.

        Raises:
            ConfigurationError: If no topic is given, or the client is an AsyncClient.
            TidewheelError: If the broker refuses the call because of an illegal topic or a missing
                permission.
        """
        if not isinstance(client, Client):
            raise ConfigurationError(
                f"barrier.answering takes a Client, and this is {kind_of(client)}. An AsyncClient has "
                "barrier.async_answering; an official producer is made as Producer(..., checker=barrier)."
            )
        wire_topics = wire_names(client, topics)
        with answers_in_a_thread(client, wire_topics, self.answer), self._answers(wire_topics):
            yield

    @asynccontextmanager
    async def async_answering(self, client: AsyncClient, *topics: str) -> AsyncIterator[None]:
        """Answer check-backs in tasks of the current event loop. Raises the errors of `answering`."""
        if not isinstance(client, AsyncClient):
            raise ConfigurationError(
                f"barrier.async_answering takes an AsyncClient, and this is {kind_of(client)}. "
                "A Client has barrier.answering."
            )
        wire_topics = wire_names(client, topics)
        async with answers_in_this_loop(client, wire_topics, self.answer):
            with self._answers(wire_topics):
                yield

    @contextmanager
    def _answers(self, wire_topics: Sequence[str]) -> Iterator[None]:
        self._answered.update(wire_topics)
        try:
            yield
        finally:
            self._answered.subtract(wire_topics)

    def transaction(
        self, producer: Client | Producer, message: NewMessage | Message, *more: NewMessage | Message
    ) -> Block[Session]:
        """Return a context manager whose session commits together with the messages.

        A Client takes NewMessage instances; an official producer takes its own Message class. An exception
        raised in the block rolls back the session and the messages.

        Raises:
            ConfigurationError: If the barrier's table is missing or outdated, the engine is in autocommit
                mode, or no `answering` block is open for a topic.
            ClientMistake: If a message is invalid. Nothing is sent.
            TransactionEnded: If a check-back has inserted the fence first.
            RefusedByState: If the session is already in a transaction, the block ended it, or the block
                took longer than `longest_s` (seconds).
        """
        verdicts: list[TimerResult | None] = []
        return Block(self._transaction(producer, (message, *more), verdicts), verdicts)

    @contextmanager
    def _transaction(
        self,
        producer: Client | Producer,
        messages: Sequence[NewMessage | Message],
        verdicts: list[TimerResult | None],
    ) -> Iterator[Session]:
        session, prepare = self._sessions(), prepare_by(producer)
        refuse_joined(session)
        self._refuse_unanswered(producer, messages)
        self._refuse_unfit_database()
        with session:
            ends_s = time.monotonic() + self._longest_s
            halves = send_halves(prepare, messages, self._database)
            try:
                with session.begin() as transaction:
                    refuse_autocommit(session.connection())
                    with fence_is_an_end(halves):
                        session.execute(self._rows(halves))
                    connection = session.connection()
                    with one_transaction(connection), one_database(session, connection.engine):
                        yield session
                        refuse_early_end(transaction.is_active, halves)
                    refuse_late_commit(ends_s, halves)
            except BaseException as error:
                end_halves(halves, self.outcome)
                if isinstance(error, DBAPIError):
                    told_to_repeat(error)
                raise
        verdicts += end_halves(halves, committed)

    def async_transaction(
        self,
        producer: AsyncClient | Client | Producer,
        message: NewMessage | Message,
        *more: NewMessage | Message,
    ) -> AsyncBlock[AsyncSession]:
        """Return an asynchronous context manager like `transaction`. Blocking clients run in threads."""
        verdicts: list[TimerResult | None] = []
        return AsyncBlock(self._async_transaction(producer, (message, *more), verdicts), verdicts)

    @asynccontextmanager
    async def _async_transaction(
        self,
        producer: AsyncClient | Client | Producer,
        messages: Sequence[NewMessage | Message],
        verdicts: list[TimerResult | None],
    ) -> AsyncIterator[AsyncSession]:
        if self._async_sessions is None:
            raise ConfigurationError(
                "This barrier has no asynchronous sessions. "
                "Make it as Barrier(sessionmaker(engine), async_sessionmaker(async_engine))."
            )
        session, prepare = self._async_sessions(), async_prepare_by(producer)
        refuse_joined(session.sync_session)
        self._refuse_unanswered(producer, messages)
        async with session:
            await self._refuse_unfit_async_database(session)
            ends_s = time.monotonic() + self._longest_s
            halves = await async_send_halves(prepare, messages, self._database)
            try:
                async with session.begin() as transaction:
                    await (await session.connection()).run_sync(refuse_autocommit)
                    with fence_is_an_end(halves):
                        await session.execute(self._rows(halves))
                    connection = await session.connection()
                    async with async_one_transaction(connection):
                        with one_database(session.sync_session, connection.sync_engine):
                            yield session
                            refuse_early_end(transaction.is_active, halves)
                    refuse_late_commit(ends_s, halves)
            except BaseException as error:
                await async_end_halves(halves, self.outcome)
                if isinstance(error, DBAPIError):
                    told_to_repeat(error)
                raise
        verdicts += await async_end_halves(halves, committed)

    def _refuse_unanswered(self, producer: object, messages: Iterable[Any]) -> None:
        """Refuse messages over HTTP if no `answering` block is open for their topic."""
        if not isinstance(producer, Client | AsyncClient):
            return
        for topic in {message.topic: None for message in messages if isinstance(message, NewMessage)}:
            if topic and not self._answered[spaced(producer.namespace, topic)]:
                raise ConfigurationError(
                    f"No check-backs of topic {topic} are answered here. Do so as long as the service runs: "
                    f"with barrier.answering(client, {topic!r}), or async_answering."
                )

    def check(self, message: Message) -> Any:
        """Answer a transaction check-back. The official client calls this method."""
        with needing("rocketmq"):
            from rocketmq import TransactionResolution
        resolutions = {
            Outcome.COMMITTED: TransactionResolution.COMMIT,
            Outcome.ROLLED_BACK: TransactionResolution.ROLLBACK,
            Outcome.UNKNOWN: TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED,
        }
        return resolutions[self.answer(message.message_id, message.properties)]

    def answer(self, message_id: str, properties: Mapping[str, str]) -> Outcome:
        """Return the outcome for a check-back, or UNKNOWN for half messages of other databases."""
        database = properties.get(BARRIER)
        return self.outcome(message_id) if database and self._is_here(database) else Outcome.UNKNOWN

    def _is_here(self, database: str) -> bool:
        """Return whether a database name belongs to this barrier.

        Returns False as long as the name cannot be read.
        """
        try:
            self._refuse_unfit_database()
        except (SQLAlchemyError, ConfigurationError) as error:
            log.warning("The barrier's database cannot be asked now: %s", error)
        return database == self._database

    def outcome(self, message_id: str) -> Outcome:
        """Return the outcome of a transaction. If it has no row, insert the fence and return ROLLED_BACK."""
        try:
            found = self._look(message_id) or self._fence(message_id) or self._look(message_id)
        except SQLAlchemyError as error:
            log.warning("The outcome of message %s is unknown for now: %s", message_id, error)
            return Outcome.UNKNOWN
        return found or Outcome.UNKNOWN

    def forget(self, before_ms: int) -> int:
        """Delete rows created before a time in milliseconds since 1970. Returns the number of deleted rows.

        Keep rows for at least the check-back interval of the broker times the number of check-backs. A
        check-back for a message without a row rolls it back, even if its transaction was committed. Rows are
        deleted in batches of `FORGET_ROWS` to keep lock times short.

        Raises:
            ConfigurationError: If the table is missing or outdated.
        """
        with explained(barrier_table, REMEDY):
            return delete_before(self._engine, barrier_table.c.created_ms, before_ms, FORGET_ROWS)

    def _look(self, message_id: str) -> Outcome | None:
        query = select(barrier_table.c.outcome).where(barrier_table.c.message_id == message_id)
        with own_transaction(self._engine) as connection:
            found = connection.execute(query).scalar_one_or_none()
        return None if found is None else Outcome(found)

    def _fence(self, message_id: str) -> Outcome | None:
        """Insert the fence. Returns None if a row already exists."""
        fence = insert(barrier_table).values(self._row(message_id, Outcome.ROLLED_BACK))
        try:
            with own_transaction(self._engine) as connection, self._lock_timeout(connection):
                connection.execute(fence)
        except IntegrityError:
            return None
        return Outcome.ROLLED_BACK

    def _rows(self, halves: Sequence[Half]) -> Insert:
        rows = [self._row(half.message_id, Outcome.COMMITTED) for half in halves]
        return insert(barrier_table).values(rows)

    def _row(self, message_id: str, outcome: Outcome) -> dict[str, object]:
        return {"message_id": message_id, "outcome": outcome.value, "created_ms": self._clock_ms()}

    def _refuse_unfit_database(self) -> None:
        """Check the database once, before the first half message is sent, so that an error leaves no half
        message open.
        """
        if not self._database:
            with self._engine.begin() as connection:
                refuse_unfit(connection)
            with own_transaction(self._engine) as connection:
                name = database_name(connection)
            if name is None:
                with own_transaction(self._engine) as connection:
                    name = draw_database_name(connection)
            # set after the commit, because a concurrent process may have inserted another name
            self._database = name

    async def _refuse_unfit_async_database(self, session: AsyncSession) -> None:
        if not self._found_async_fit:
            async with session.begin():
                await (await session.connection()).run_sync(refuse_unfit)
            await asyncio.to_thread(self._refuse_unfit_database)
            self._found_async_fit = True


def wire_names(client: Client | AsyncClient, topics: Sequence[str]) -> list[str]:
    """Return topic names with the client's namespace prefix; raise `ConfigurationError` if there are none.

    Raises `ClientMistake` if a topic is not a non-empty str.
    """
    if not topics:
        raise ConfigurationError(
            "The call names no topic. Give those of the transactions: barrier.answering(client, 'orders')."
        )
    for topic in topics:
        refuse_no_name(topic, "A topic")
    return list(dict.fromkeys(spaced(client.namespace, topic) for topic in topics))


def refuse_unfit(connection: Connection) -> None:
    """Raise `ConfigurationError` if the database is in autocommit mode or a table is unsuitable."""
    refuse_autocommit(connection)
    for table in metadata.sorted_tables:
        refuse_unfit_table(connection, table, REMEDY)


@contextmanager
def fence_is_an_end(halves: Sequence[Half]) -> Iterator[None]:
    """Raise `TransactionEnded` for a duplicate key, which means that a check-back has inserted the fence."""
    try:
        yield
    except IntegrityError as error:
        raise TransactionEnded(
            f"A check-back of message {ids_of(halves)} found no commit and rolled it back. "
            "Repeat the whole transaction with new messages."
        ) from error


def refuse_joined(session: Session) -> None:
    """Refuse a session in an open transaction, because the session's commit would not commit the database
    transaction.
    """
    bind = session.get_bind()
    if session.in_transaction() or (isinstance(bind, Connection) and bind.in_transaction()):
        raise RefusedByState(
            "The session is in a transaction already, so the barrier cannot commit it. "
            "Give the barrier a sessionmaker over an engine, and let it open the session."
        )


def refuse_early_end(is_active: bool, halves: Sequence[Half]) -> None:
    """Refuse a block that ended or invalidated its transaction. SQLAlchemy reports no error for it."""
    if not is_active:
        raise RefusedByState(
            f"The session of message {ids_of(halves)} was ended or left broken inside its block. "
            "Leave the end to the block, and let exceptions out of it."
        )


def refuse_late_commit(ends_s: float, halves: Sequence[Half]) -> None:
    """Refuse a commit after `ends_s`, because the half message may have expired."""
    if time.monotonic() > ends_s:
        raise RefusedByState(
            f"The block of message {ids_of(halves)} took so long that its half may have expired. "
            "Make it shorter, or raise the topic's check-backs (tidewheel txn policy) and longest_s."
        )


def refuse_other_database(engine: Engine, other: Engine) -> None:
    """Refuse asynchronous sessions that use a different database than the synchronous sessions."""
    ours, theirs = (
        (
            url.get_backend_name().replace("mariadb", "mysql"),
            url.host or url.query.get("host") or url.query.get("unix_socket"),
            url.port,
            url.database,
        )
        for url in (engine.url, other.url)
    )
    if ours != theirs or (ours[0] == "sqlite" and ours[-1] in (None, "", ":memory:")):
        raise ConfigurationError(
            f"The barrier's two session factories lead to different databases, {engine.url!r} and "
            f"{other.url!r}. A check-back would look where the rows are not."
        )


def wall_clock_ms() -> int:
    """Return the current time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def engine_of(sessions: sessionmaker[Session]) -> Engine:
    """Return the engine of a session factory. Raises `ClientMistake` for other objects."""
    return session_from(sessions).get_bind().engine
