"""The half messages of one barrier transaction: sent together before it, ended together after it.

What the barrier needs of a client is one function, `Prepare`: it looks at a message, and returns how its half
is sent; a half is an id and two ends. It is made here for each client:

    the official producer       `begin_transaction`, `send`; for asyncio in threads
    tidewheel.Client            over HTTP; for asyncio in threads
    tidewheel.AsyncClient       over HTTP, in the application's loop

The official client is imported only where its producer is used.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

from tidewheel.client import halves as calls
from tidewheel.client.bodies import body_bytes
from tidewheel.client.clients import AsyncClient, Client, new_id
from tidewheel.client.values import NewMessage, TimerResult
from tidewheel.errors import (
    BodyEmpty,
    BodyTooLarge,
    ClientMistake,
    ConfigurationError,
    IllegalTopic,
    TransactionEnded,
)
from tidewheel.extras import needing

if TYPE_CHECKING:
    from rocketmq import Message, Producer, Transaction

    from tidewheel.client.exchange import Steps

BARRIER = "TW_BARRIER"
"""The message property that names the database in which the row is to be looked for."""
REFUSED = TransactionEnded.code
BODY_BYTES_MAX = 4 * 1024 * 1024
"""What the broker takes (`commitlog/limits.py`)."""

log = logging.getLogger(__name__)


class Outcome(Enum):
    """How a transaction ended, as the table says; UNKNOWN is never stored."""

    COMMITTED = "COMMITTED"
    ROLLED_BACK = "ROLLED_BACK"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True)
class Half:
    """One half message, and its two ends; of an asynchronous client they are awaited."""

    message_id: str
    commit: Callable[[], Any]
    rollback: Callable[[], Any]

    def end_by(self, outcome: Outcome) -> Callable[[], Any] | None:
        """Return the end for an outcome; None where the broker is to ask later."""
        return {Outcome.COMMITTED: self.commit, Outcome.ROLLED_BACK: self.rollback}.get(outcome)


Prepare = Callable[[Any, str], Callable[[], Half]]
"""Of a message and the name of its database: return how its half is sent; raise `ClientMistake` before."""
AsyncPrepare = Callable[[Any, str], Callable[[], Awaitable[Half]]]


def prepare_by(producer: Client | Producer) -> Prepare:
    """Return how halves are sent by a client that blocks.

    Raises:
        ConfigurationError: for an AsyncClient.
    """
    if isinstance(producer, AsyncClient):
        raise ConfigurationError(
            "An AsyncClient is awaited: use barrier.async_transaction with it, or give a Client."
        )
    if isinstance(producer, Client):
        return partial(prepared_by_client, producer)
    return partial(prepared_by_producer, producer)


def async_prepare_by(producer: AsyncClient | Client | Producer) -> AsyncPrepare:
    """Return how halves are sent in a loop; a client that blocks is called in threads."""
    if isinstance(producer, AsyncClient):
        return partial(prepared_by_async_client, producer)
    prepare = prepare_by(producer)
    return lambda message, database: partial(sent_in_a_thread, prepare(message, database))


def prepared_by_producer(producer: Producer, message: Message, database: str) -> Callable[[], Half]:
    """Look at a message of the official client's, and return how its half is sent."""
    if isinstance(message, NewMessage):
        raise ClientMistake("The official producer takes its own Message; a NewMessage is for a Client.")
    refuse_unsendable(message.topic, message.body)
    return partial(sent_by_producer, producer, message, database)


def sent_by_producer(producer: Producer, message: Message, database: str) -> Half:
    """Send a half by the official client."""
    message.add_property(BARRIER, database)
    transaction = begin(producer)
    message_id = producer.send(message, transaction).message_id
    return Half(message_id, transaction.commit, transaction.rollback)


def begin(producer: Producer) -> Transaction:
    """Return a transaction of the official client's, for one half.

    Raises:
        ConfigurationError: when the producer has no checker to answer check-backs.
    """
    with needing("rocketmq"):
        from rocketmq.v5.exception import IllegalArgumentException
    try:
        return producer.begin_transaction()
    except IllegalArgumentException as error:
        raise ConfigurationError(
            "The producer has nobody to answer check-backs. Make it as Producer(..., checker=barrier)."
        ) from error


def prepared_by_client(client: Client, message: NewMessage, database: str) -> Callable[[], Half]:
    """Look at a message, and return how its half is sent over HTTP."""
    steps = half_steps(client, message, database)
    return lambda: half_of(client, message, client.run(steps))


def prepared_by_async_client(
    client: AsyncClient, message: NewMessage, database: str
) -> Callable[[], Awaitable[Half]]:
    """Look at a message, and return how its half is sent over HTTP in a loop."""
    steps = half_steps(client, message, database)

    async def send() -> Half:
        return half_of(client, message, await client.run(steps))

    return send


def half_of(client: Client | AsyncClient, message: NewMessage, begun: calls.Begun) -> Half:
    """Return a half that was sent over HTTP."""
    return Half(
        begun.message_id,
        lambda: client.run(calls.commit(begun.transaction_id, message)),
        lambda: client.run(calls.end(begun.transaction_id, "rollback")),
    )


def half_steps(client: Client | AsyncClient, message: NewMessage, database: str) -> Steps[calls.Begun]:
    """Return the operation that sends a half.

    Raises:
        ClientMistake: for anything but a NewMessage that can be sent.
    """
    if not isinstance(message, NewMessage):
        raise ClientMistake(f"A Client sends a tidewheel.NewMessage, and this is a {type(message).__name__}.")
    if message.idempotency_key:
        raise ClientMistake(
            "A message of a transaction has no idempotency_key: the barrier knows it by an id of its own. "
            "Put a key that is unique into a table of the transaction."
        )
    refuse_unsendable(message.topic, body_bytes(message.body))
    return calls.begin(message, client.namespace, new_id(), {BARRIER: database})


async def sent_in_a_thread(send: Callable[[], Half]) -> Half:
    """Send a half in a thread, and have its ends there, too."""
    half = await asyncio.to_thread(send)
    return Half(
        half.message_id, partial(asyncio.to_thread, half.commit), partial(asyncio.to_thread, half.rollback)
    )


def send_halves(prepare: Prepare, messages: Sequence[Any], database: str) -> list[Half]:
    """Send all halves, in order, with the name of their database.

    When one cannot be sent, those before it are rolled back. No row of theirs can exist yet, so this end
    needs no look at the table.

    Raises:
        ClientMistake: for a message that cannot be sent, or is given twice (it can carry only one id).
    """
    refuse_one_twice(messages)
    sends = [prepare(message, database) for message in messages]
    halves: list[Half] = []
    try:
        for send in sends:
            halves.append(send())
    except BaseException:
        end_halves(halves, rolled_back)
        raise
    return halves


async def async_send_halves(prepare: AsyncPrepare, messages: Sequence[Any], database: str) -> list[Half]:
    """Send all halves in a loop, as `send_halves` does."""
    refuse_one_twice(messages)
    sends = [prepare(message, database) for message in messages]
    halves: list[Half] = []
    try:
        for send in sends:
            halves.append(await send())
    except BaseException:
        await async_end_halves(halves, rolled_back)
        raise
    return halves


def rolled_back(_: str) -> Outcome:
    """Return how a message ends that cannot have a row."""
    return Outcome.ROLLED_BACK


def committed(_: str) -> Outcome:
    """Return how a message ends whose row has been committed."""
    return Outcome.COMMITTED


def refuse_one_twice(messages: Sequence[Any]) -> None:
    """Refuse a message object that is given twice."""
    if len({id(message) for message in messages}) < len(messages):
        raise ClientMistake("One message is given twice to a transaction. Make one for each.")


def refuse_unsendable(topic: str, body: bytes) -> None:
    """Refuse a message that the client or the broker would refuse later.

    Raises:
        ClientMistake: when it has no topic or body, or too large a body.
    """
    if not topic:
        raise IllegalTopic("It is empty. Set message.topic.")
    if not body:
        raise BodyEmpty("Set message.body.")
    if len(body) > BODY_BYTES_MAX:
        raise BodyTooLarge(f"It has {len(body):,} bytes of at most {BODY_BYTES_MAX:,}.")


def end_halves(halves: Sequence[Half], outcome_of: Callable[[str], Outcome]) -> list[TimerResult | None]:
    """End each half by the outcome of its message id; return the verdicts on timers."""
    verdicts: list[TimerResult | None] = []
    for half in halves:
        outcome, done = outcome_of(half.message_id), None
        end = half.end_by(outcome)
        with failures_left_to_check_backs(half.message_id, outcome):
            done = None if end is None else end()
        verdicts.append(done if isinstance(done, TimerResult) else None)
    return verdicts


async def async_end_halves(
    halves: Sequence[Half], outcome_of: Callable[[str], Outcome]
) -> list[TimerResult | None]:
    """End each half in a loop, with outcomes looked up in threads; return the same."""
    verdicts: list[TimerResult | None] = []
    for half in halves:
        outcome, done = await asyncio.to_thread(outcome_of, half.message_id), None
        end = half.end_by(outcome)
        with failures_left_to_check_backs(half.message_id, outcome):
            done = None if end is None else await end()
        verdicts.append(done if isinstance(done, TimerResult) else None)
    return verdicts


@contextmanager
def failures_left_to_check_backs(message_id: str, outcome: Outcome) -> Iterator[None]:
    """Log that the broker could not be told how a half ends; its check-back asks later.

    A refusal means that the half has ended otherwise: it expired, or somebody resolved it by hand.
    """
    try:
        yield
    except Exception as error:  # the official client raises bare Exceptions, gRPC errors and its own
        if isinstance(error, TransactionEnded) or REFUSED in str(error):
            log.error(
                "Message %s is %s in the database, and the broker has ended it otherwise: %s. "
                "See tidewheel txn show, and txn resolve.",
                message_id,
                outcome.value,
                error,
            )
        else:
            log.warning("The check-back will tell that %s is %s, now: %s", message_id, outcome.value, error)


def ids_of(halves: Sequence[Half]) -> str:
    """Return the message ids, for people."""
    return ", ".join(half.message_id for half in halves)
