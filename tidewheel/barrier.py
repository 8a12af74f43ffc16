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

The idea: the first statement of the user's transaction inserts the ids of the half messages into
`tidewheel_barrier`. These rows exist exactly if the user's rows do, so a check-back is one lookup.

Rules:
1. Order: halves, their rows, the user's statements, the database commit, the ends of the halves.
2. Only the table decides. After any failure (of the user's code, a statement, or the commit, whose reply may
   be lost) each half is ended by the table, not by the exception.
3. For a message without a row, the check-back inserts the row as ROLLED_BACK: the fence. Both inserts have
   the same primary key, so a transaction later than the fence fails with `TransactionEnded` instead of
   committing rows without a message. Several ids are one statement: a fence for one refuses all.
4. The fence waits for locks at most `FENCE_LOCK_MS`. After a lock timeout, or with the database unreachable,
   the answer is UNKNOWN; the half stays open and the broker repeats the check-back.
5. After the database commit, a failure to reach the broker is logged, not raised; the check-back commits the
   half.
6. A half carries the name of its database (`tidewheel_database`). A barrier answers UNKNOWN for another name,
   or for none. The broker then asks the next producer of the topic, so services may share topics.
7. Check-backs end after a limited time (by default, 55 minutes). A block longer than `longest_s` is rolled
   back before its commit, because its message may have expired.
8. Refused before the first half is sent: a session or connection already in a transaction, an engine in
   autocommit mode, a topic over HTTP without `answering` in this process. A connection in autocommit mode, be
   it one of a pool's, is refused before the first row.

Cost: one insert of about 100 bytes per message, in the user's transaction, and but for PostgreSQL one query
of no table; one primary-key read per check-back. Rows may be deleted (`forget`) once their halves have ended
or expired.
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
    """The barrier of one database; official producers take it as their checker.

    Raises:
        UnknownChoice: for any other database; the fence's lock timeout is not portable.
        ConfigurationError: when the asynchronous sessions use another database.
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
        """Number of open `answering` blocks by topic (wire name)."""
        if async_sessions is not None:
            refuse_no_async_factory(async_sessions)
            refuse_other_database(self._engine, async_sessions().get_bind().engine)

    def create_table(self) -> None:
        """Create the barrier's tables where they are missing.

        Raises:
            ConfigurationError: when one is there of an older version, or unfit in MySQL.
        """
        create_tables(self._engine, metadata, REMEDY)

    @contextmanager
    def answering(self, client: Client, *topics: str) -> Iterator[None]:
        """Answer check-backs of topics in a thread, as long as the block is open.

        Keep it open for the life of the service: it also answers for halves of processes that died.

        Raises:
            ConfigurationError: without a topic, or for an AsyncClient.
            TidewheelError: a refusal by the broker: an illegal topic, a missing right.
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
        """Answer check-backs in tasks of this loop; raise as `answering` does."""
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
        """Return a block with a session whose transaction commits together with the messages.

        A Client takes NewMessage instances, an official producer its own Message. An exception raised in the
        block rolls back everything.

        Raises:
            ConfigurationError: when the barrier's table is missing or outdated, the engine is in autocommit
                mode, or no `answering` block is open for a topic.
            ClientMistake: for an invalid message; nothing is sent.
            TransactionEnded: when a check-back inserted the fence first.
            RefusedByState: when the session is already in a transaction, the block ended it, or the block
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
        """Return a block with an AsyncSession, as `transaction` does; call blocking clients in threads."""
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
        """Refuse messages over HTTP without an open `answering` block for their topic."""
        if not isinstance(producer, Client | AsyncClient):
            return
        for topic in {message.topic: None for message in messages if isinstance(message, NewMessage)}:
            if topic and not self._answered[spaced(producer.namespace, topic)]:
                raise ConfigurationError(
                    f"No check-backs of topic {topic} are answered here. Do so as long as the service runs: "
                    f"with barrier.answering(client, {topic!r}), or async_answering."
                )

    def check(self, message: Message) -> Any:
        """Answer the broker's check-back (the official client calls this)."""
        with needing("rocketmq"):
            from rocketmq import TransactionResolution
        resolutions = {
            Outcome.COMMITTED: TransactionResolution.COMMIT,
            Outcome.ROLLED_BACK: TransactionResolution.ROLLBACK,
            Outcome.UNKNOWN: TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED,
        }
        return resolutions[self.answer(message.message_id, message.properties)]

    def answer(self, message_id: str, properties: Mapping[str, str]) -> Outcome:
        """Return the outcome for a check-back; UNKNOWN for halves of other databases."""
        database = properties.get(BARRIER)
        return self.outcome(message_id) if database and self._is_here(database) else Outcome.UNKNOWN

    def _is_here(self, database: str) -> bool:
        """Return whether that database is this barrier's; False while its name cannot be read."""
        try:
            self._refuse_unfit_database()
        except (SQLAlchemyError, ConfigurationError) as error:
            log.warning("The barrier's database cannot be asked now: %s", error)
        return database == self._database

    def outcome(self, message_id: str) -> Outcome:
        """Return a transaction's outcome; without a row, insert the fence and return ROLLED_BACK."""
        try:
            found = self._look(message_id) or self._fence(message_id) or self._look(message_id)
        except SQLAlchemyError as error:
            log.warning("The outcome of message %s is unknown for now: %s", message_id, error)
            return Outcome.UNKNOWN
        return found or Outcome.UNKNOWN

    def forget(self, before_ms: int) -> int:
        """Delete rows created before a time (milliseconds since 1970); return how many.

        Keep rows for at least the broker's check-back interval times its check count: a check-back rolls back
        a half without a row, even of a committed transaction. Rows are deleted in batches of `FORGET_ROWS`,
        which keeps locks short.

        Raises:
            ConfigurationError: when the table is missing or of an older version.
        """
        with explained(barrier_table, REMEDY):
            return delete_before(self._engine, barrier_table.c.created_ms, before_ms, FORGET_ROWS)

    def _look(self, message_id: str) -> Outcome | None:
        query = select(barrier_table.c.outcome).where(barrier_table.c.message_id == message_id)
        with own_transaction(self._engine) as connection:
            found = connection.execute(query).scalar_one_or_none()
        return None if found is None else Outcome(found)

    def _fence(self, message_id: str) -> Outcome | None:
        """Insert the fence; return None if a row exists already."""
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
        """Check the database once, before the first half is sent: an error then leaves no half open."""
        if not self._database:
            with self._engine.begin() as connection:
                refuse_unfit(connection)
            with own_transaction(self._engine) as connection:
                name = database_name(connection)
            if name is None:
                with own_transaction(self._engine) as connection:
                    name = draw_database_name(connection)
            self._database = name  # once it is committed: another's may take its place otherwise

    async def _refuse_unfit_async_database(self, session: AsyncSession) -> None:
        if not self._found_async_fit:
            async with session.begin():
                await (await session.connection()).run_sync(refuse_unfit)
            await asyncio.to_thread(self._refuse_unfit_database)
            self._found_async_fit = True


def wire_names(client: Client | AsyncClient, topics: Sequence[str]) -> list[str]:
    """Return topics in a client's namespace; raise `ConfigurationError` if there are none.

    Raise `ClientMistake` for what is no text.
    """
    if not topics:
        raise ConfigurationError(
            "The call names no topic. Give those of the transactions: barrier.answering(client, 'orders')."
        )
    for topic in topics:
        refuse_no_name(topic, "A topic")
    return list(dict.fromkeys(spaced(client.namespace, topic) for topic in topics))


def refuse_unfit(connection: Connection) -> None:
    """Raise `ConfigurationError` for a database in autocommit, or with a wrong table."""
    refuse_autocommit(connection)
    for table in metadata.sorted_tables:
        refuse_unfit_table(connection, table, REMEDY)


@contextmanager
def fence_is_an_end(halves: Sequence[Half]) -> Iterator[None]:
    """Raise `TransactionEnded` for a duplicate key: a check-back inserted the fence."""
    try:
        yield
    except IntegrityError as error:
        raise TransactionEnded(
            f"A check-back of message {ids_of(halves)} found no commit and rolled it back. "
            "Repeat the whole transaction with new messages."
        ) from error


def refuse_joined(session: Session) -> None:
    """Refuse a session in an open transaction: its commit would not be the database's."""
    bind = session.get_bind()
    if session.in_transaction() or (isinstance(bind, Connection) and bind.in_transaction()):
        raise RefusedByState(
            "The session is in a transaction already, so the barrier cannot commit it. "
            "Give the barrier a sessionmaker over an engine, and let it open the session."
        )


def refuse_early_end(is_active: bool, halves: Sequence[Half]) -> None:
    """Refuse a block that ended or invalidated its transaction; SQLAlchemy reports no error."""
    if not is_active:
        raise RefusedByState(
            f"The session of message {ids_of(halves)} was ended or left broken inside its block. "
            "Leave the end to the block, and let exceptions out of it."
        )


def refuse_late_commit(ends_s: float, halves: Sequence[Half]) -> None:
    """Refuse a commit after `ends_s`: the half may have expired."""
    if time.monotonic() > ends_s:
        raise RefusedByState(
            f"The block of message {ids_of(halves)} took so long that its half may have expired. "
            "Make it shorter, or raise the topic's check-backs (tidewheel txn policy) and longest_s."
        )


def refuse_other_database(engine: Engine, other: Engine) -> None:
    """Refuse asynchronous sessions of another database than the blocking ones."""
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
    """Return milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def engine_of(sessions: sessionmaker[Session]) -> Engine:
    """Return the engine that a session factory is bound to; raise `ClientMistake` if it is none."""
    return session_from(sessions).get_bind().engine
