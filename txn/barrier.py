"""A message and a database transaction that agree, without a hand-written checker.

    barrier = Barrier(sessionmaker(engine))
    producer = Producer(configuration, ["order-created"], checker=barrier)
    ...
    with barrier.transaction(producer, message) as session:
        session.add(order)

The idea: the half message's id is inserted into `tidewheel_barrier` as the first statement of the user's own
transaction, so that the row is there exactly when the user's rows are. Whoever wants to know later how the
transaction went looks for the row.

Rules:
1. Half first, then the row, then the user's statements, then the database commit, then the end of the half.
2. The table decides, always. When anything fails (the user's code, a statement, the commit itself, whose
   answer may have been lost), the half is ended as the table says, never as the exception suggests.
3. Asked about a message without a row, the answerer inserts the row itself, as ROLLED_BACK: the fence. Both
   insert the same primary key, so a slow transaction that comes behind the fence fails with
   `TransactionEnded` instead of committing rows whose message is gone.
4. The fence waits for locks no longer than `FENCE_LOCK_MS`. A lock that is held longer, a busy or unreachable
   database: the answer is UNKNOWN, the half stays open and the broker asks again.
5. Once the database has committed, a failure to tell the broker is not the user's failure: it is logged, and
   the check-back commits the half.

Cost: one insert of about 100 bytes per transaction, in a transaction that is written anyway; one primary-key
read per check-back. Rows may be deleted (`forget`) once their halves have ended or expired.
"""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Any

from rocketmq import TransactionChecker, TransactionResolution
from sqlalchemy import BigInteger, Column, Connection, MetaData, String, Table, delete, insert, select, text
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from commitlog.errors import RefusedByState, TransactionEnded, UnknownChoice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rocketmq import Message, Producer, Transaction
    from sqlalchemy import Engine
    from sqlalchemy.orm import Session, SessionTransaction, sessionmaker

FENCE_LOCK_MS = 1_000

metadata = MetaData()
barrier_table = Table(
    "tidewheel_barrier",
    metadata,
    Column("message_id", String(128), primary_key=True),
    Column("outcome", String(16), nullable=False),
    Column("created_ms", BigInteger, nullable=False),
)

log = logging.getLogger(__name__)


class Outcome(Enum):
    """How a transaction ended, as the table says; UNKNOWN is never stored."""

    COMMITTED = "COMMITTED"
    ROLLED_BACK = "ROLLED_BACK"
    UNKNOWN = "UNKNOWN"


RESOLUTIONS = {
    Outcome.COMMITTED: TransactionResolution.COMMIT,
    Outcome.ROLLED_BACK: TransactionResolution.ROLLBACK,
    Outcome.UNKNOWN: TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED,
}


class Barrier(TransactionChecker):  # type: ignore[misc] # the official client carries no types
    """The barrier of one database (SQLite or PostgreSQL), and the checker of every producer that uses it.

    Raises:
        UnknownChoice: when the database is neither of the two; the fence's lock timeout is not portable.
    """

    def __init__(self, sessions: sessionmaker[Session], clock_ms: Callable[[], int] | None = None) -> None:
        self._sessions = sessions
        self._engine = engine_of(sessions)
        self._lock_timeout = lock_timeout_of(self._engine)
        self._clock_ms = clock_ms or wall_clock_ms

    def create_table(self) -> None:
        """Create `tidewheel_barrier` where it is missing (with Alembic: `barrier_table.to_metadata`)."""
        metadata.create_all(self._engine)

    @contextmanager
    def transaction(self, producer: Producer, message: Message) -> Iterator[Session]:
        """Open a session whose transaction commits together with `message`.

        An exception that leaves the block rolls both back.

        Raises:
            TransactionEnded: when the broker's check-back came first and closed the door with the fence.
            RefusedByState: when the block committed or rolled back the session itself.
        """
        half = producer.begin_transaction()
        message_id: str = producer.send(message, half).message_id
        with self._sessions() as session:
            try:
                with session.begin() as transaction:
                    self._enter(session, message_id)
                    yield session
                    refuse_early_end(transaction, message_id)
            except BaseException:
                end(half, self.outcome(message_id), message_id)
                raise
        end(half, Outcome.COMMITTED, message_id)

    def _enter(self, session: Session, message_id: str) -> None:
        try:
            session.execute(insert(barrier_table).values(self._row(message_id, Outcome.COMMITTED)))
        except IntegrityError as error:
            raise TransactionEnded(
                f"A check-back of message {message_id} found no commit and rolled it back. "
                "Repeat the whole transaction with a new message."
            ) from error

    def check(self, message: Message) -> Any:
        """Answer the broker's check-back (the official client calls this)."""
        return RESOLUTIONS[self.outcome(message.message_id)]

    def outcome(self, message_id: str) -> Outcome:
        """Say how a message's transaction ended; one that left no row is fenced off and has rolled back."""
        try:
            found = self._look(message_id) or self._fence(message_id) or self._look(message_id)
        except SQLAlchemyError as error:
            log.warning("The outcome of message %s is unknown for now: %s", message_id, error)
            return Outcome.UNKNOWN
        return found or Outcome.UNKNOWN

    def _look(self, message_id: str) -> Outcome | None:
        query = select(barrier_table.c.outcome).where(barrier_table.c.message_id == message_id)
        with self._engine.connect() as connection:
            found = connection.execute(query).scalar_one_or_none()
        return None if found is None else Outcome(found)

    def _fence(self, message_id: str) -> Outcome | None:
        """Insert the fence; None when another row was there first (a second look tells which)."""
        fence = insert(barrier_table).values(self._row(message_id, Outcome.ROLLED_BACK))
        try:
            with self._engine.connect() as connection, self._lock_timeout(connection):
                connection.execute(fence)
                connection.commit()
        except IntegrityError:
            return None
        return Outcome.ROLLED_BACK

    def _row(self, message_id: str, outcome: Outcome) -> dict[str, object]:
        return {"message_id": message_id, "outcome": outcome.value, "created_ms": self._clock_ms()}

    def forget(self, before_ms: int) -> int:
        """Delete rows created before a time (milliseconds since 1970); returns how many.

        Keep at least what the broker may still ask about: its check-back interval times its check count.
        """
        old = delete(barrier_table).where(barrier_table.c.created_ms < before_ms)
        with self._engine.begin() as connection:
            return connection.execute(old).rowcount


def refuse_early_end(transaction: SessionTransaction, message_id: str) -> None:
    """Refuse a block that ended its transaction itself, or broke it and went on; SQLAlchemy says nothing."""
    if not transaction.is_active:
        raise RefusedByState(
            f"The session of message {message_id} was ended or left broken inside its block. "
            "Leave the end to the block, and let exceptions out of it."
        )


def end(half: Transaction, outcome: Outcome, message_id: str) -> None:
    """End the half as the table says; what cannot be told now is asked for later by the check-back."""
    try:
        if outcome is Outcome.COMMITTED:
            half.commit()
        elif outcome is Outcome.ROLLED_BACK:
            half.rollback()
    except Exception as error:  # the official client raises bare Exceptions, gRPC errors and its own
        log.warning("The check-back will tell that %s is %s, now: %s", message_id, outcome.value, error)


def wall_clock_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def engine_of(sessions: sessionmaker[Session]) -> Engine:
    """The engine that a session factory is bound to."""
    with sessions() as session:
        return session.get_bind().engine


@contextmanager
def sqlite_lock_timeout(connection: Connection) -> Iterator[None]:
    """Wait `FENCE_LOCK_MS` for SQLite's write lock; a pooled connection gets its own timeout back."""
    before_ms = connection.execute(text("PRAGMA busy_timeout")).scalar_one()
    connection.execute(text(f"PRAGMA busy_timeout = {FENCE_LOCK_MS}"))
    try:
        yield
    finally:
        connection.rollback()
        connection.execute(text(f"PRAGMA busy_timeout = {before_ms}"))


@contextmanager
def postgresql_lock_timeout(connection: Connection) -> Iterator[None]:
    """Wait `FENCE_LOCK_MS` for PostgreSQL's row lock; the setting ends with the transaction."""
    connection.execute(text(f"SET LOCAL lock_timeout = '{FENCE_LOCK_MS}ms'"))
    yield


LOCK_TIMEOUTS = {"sqlite": sqlite_lock_timeout, "postgresql": postgresql_lock_timeout}


def lock_timeout_of(engine: Engine) -> Callable[[Connection], Any]:
    """How this database is told to wait only shortly for a lock."""
    timeout = LOCK_TIMEOUTS.get(engine.dialect.name)
    if timeout is None:
        known = " and ".join(LOCK_TIMEOUTS)
        raise UnknownChoice(f"The barrier works on {known}, not on {engine.dialect.name}.")
    return timeout
