"""Half messages of a barrier transaction. All are sent before the transaction and ended after it.

`Prepare` is the interface between the barrier and a client. It validates a message and returns a function
that sends the half message. A half message has an id, a commit and a rollback. Implementations:

    the official producer       `begin_transaction`, `send`; for asyncio in threads
    tidewheel.Client            over HTTP; for asyncio in threads
    tidewheel.AsyncClient       over HTTP, in the application's loop

The official client is imported only if its producer is used.
"""

from __future__ import annotations

import asyncio
import logging
import time
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
from tidewheel.database_arguments import kind_of, sending_of
from tidewheel.delay_properties import WAYS, contradiction, without_delay
from tidewheel.errors import (
    BodyEmpty,
    BodyTooLarge,
    ClientMistake,
    ConfigurationError,
    IllegalTopic,
    TransactionEnded,
)
from tidewheel.extras import needing
from tidewheel.property_names import DELIVER_MS

if TYPE_CHECKING:
    from rocketmq import Message, Producer, Transaction

    from tidewheel.client.exchange import Steps

BARRIER = "TW_BARRIER"
"""Message property that contains the name of the database with the row."""
REFUSED = TransactionEnded.code
BODY_BYTES_MAX = 4 * 1024 * 1024
"""The broker's limit (`commitlog/limits.py`)."""

log = logging.getLogger(__name__)


class Outcome(Enum):
    """Outcome of a transaction in the table. UNKNOWN is never stored."""

    COMMITTED = "COMMITTED"
    ROLLED_BACK = "ROLLED_BACK"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True)
class Half:
    """A half message with its commit and rollback, which return awaitables for asynchronous clients."""

    message_id: str
    commit: Callable[[], Any]
    rollback: Callable[[], Any]

    def end_by(self, outcome: Outcome) -> Callable[[], Any] | None:
        """Return the function that applies an outcome, or None for UNKNOWN, which is left to a check-back."""
        return {Outcome.COMMITTED: self.commit, Outcome.ROLLED_BACK: self.rollback}.get(outcome)


Prepare = Callable[[Any, str], Callable[[], Half]]
"""Validates a message for a database and returns a function that sends the half message.

Raises `ClientMistake`.
"""
AsyncPrepare = Callable[[Any, str], Callable[[], Awaitable[Half]]]


def prepare_by(producer: Client | Producer) -> Prepare:
    """Return the `Prepare` of a blocking client.

    Raises:
        ConfigurationError: If the producer is an AsyncClient.
        ClientMistake: If the argument is neither a client nor a producer.
    """
    if isinstance(producer, AsyncClient):
        raise ConfigurationError(
            "An AsyncClient is awaited: use barrier.async_transaction with it, or give a Client."
        )
    if isinstance(producer, Client):
        return partial(prepared_by_client, producer)
    sending_of(producer, "begin_transaction")
    return partial(prepared_by_producer, producer)


def async_prepare_by(producer: AsyncClient | Client | Producer) -> AsyncPrepare:
    """Return the `AsyncPrepare` of a client. Blocking clients are called in threads."""
    if isinstance(producer, AsyncClient):
        return partial(prepared_by_async_client, producer)
    prepare = prepare_by(producer)
    return lambda message, database: partial(sent_in_a_thread, prepare(message, database))


def prepared_by_producer(producer: Producer, message: Message, database: str) -> Callable[[], Half]:
    """Validate a message of the official client and return a function that sends it as a half message."""
    if isinstance(message, NewMessage):
        raise ClientMistake("The official producer takes its own Message; a NewMessage is for a Client.")
    if not hasattr(message, "delivery_timestamp"):
        raise ClientMistake(f"The official producer takes its own Message, and this is {kind_of(message)}.")
    refuse_unsendable(message.topic, message.body)
    refuse_unfit_for_half(message)
    return partial(sent_by_producer, producer, message, database)


def sent_by_producer(producer: Producer, message: Message, database: str) -> Half:
    """Send a half message with the official client."""
    message.add_property(BARRIER, database)
    transaction = begin(producer)
    with delivery_time_as_property(message):
        message_id = producer.send(message, transaction).message_id
    return Half(message_id, transaction.commit, transaction.rollback)


@contextmanager
def delivery_time_as_property(message: Message) -> Iterator[None]:
    """Replace the delivery time by a property.

    The official client refuses `delivery_timestamp` in a transaction.

    The message is restored afterwards.
    """
    deliver_s = message.delivery_timestamp
    if deliver_s is None:
        yield
        return
    before = message.properties.get(DELIVER_MS)
    message.delivery_timestamp = None
    message.add_property(DELIVER_MS, str(deliver_s * 1000))
    try:
        yield
    finally:
        message.delivery_timestamp = deliver_s
        message.properties.pop(DELIVER_MS)
        if before is not None:
            message.add_property(DELIVER_MS, before)


def begin(producer: Producer) -> Transaction:
    """Begin a transaction of the official client for one half message.

    Raises:
        ConfigurationError: If the producer has no checker.
    """
    with needing("rocketmq"):
        from rocketmq.v5.exception import IllegalArgumentException
    try:
        return producer.begin_transaction()
    except IllegalArgumentException as error:
        raise ConfigurationError(
            "The producer has no checker for check-backs. Make it as Producer(..., checker=barrier)."
        ) from error


def prepared_by_client(client: Client, message: NewMessage, database: str) -> Callable[[], Half]:
    """Validate a message and return a function that sends it as a half message over HTTP."""
    steps = half_steps(client, message, database)
    return lambda: half_of(client, message, client.run(steps))


def prepared_by_async_client(
    client: AsyncClient, message: NewMessage, database: str
) -> Callable[[], Awaitable[Half]]:
    """Validate a message and return a coroutine function that sends it as a half message over HTTP."""
    steps = half_steps(client, message, database)

    async def send() -> Half:
        return half_of(client, message, await client.run(steps))

    return send


def half_of(client: Client | AsyncClient, message: NewMessage, begun: calls.Begun) -> Half:
    """Return the half message of a transaction begun over HTTP."""
    return Half(
        begun.message_id,
        lambda: client.run(calls.commit(begun.transaction_id, message)),
        lambda: client.run(calls.end(begun.transaction_id, "rollback")),
    )


def half_steps(client: Client | AsyncClient, message: NewMessage, database: str) -> Steps[calls.Begun]:
    """Return the operation that sends a half message.

    Raises:
        ClientMistake: If the message is invalid or has another type.
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
    """Send a half message in a thread. Its commit and rollback also run in threads."""
    half = await asyncio.to_thread(send)
    return Half(
        half.message_id, partial(asyncio.to_thread, half.commit), partial(asyncio.to_thread, half.rollback)
    )


def send_halves(prepare: Prepare, messages: Sequence[Any], database: str) -> list[Half]:
    """Send all half messages, in order, with the name of their database.

    If a send fails, the earlier half messages are rolled back. They cannot have rows yet, so the table is not
    read.

    Raises:
        ClientMistake: If a message is invalid or is passed twice.
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
    """Send all half messages in an event loop, as `send_halves` does."""
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
    """Return the outcome of a message without a row."""
    return Outcome.ROLLED_BACK


def committed(_: str) -> Outcome:
    """Return the outcome of a message with a committed row."""
    return Outcome.COMMITTED


def refuse_one_twice(messages: Sequence[Any]) -> None:
    """Refuse duplicate message objects, because a message has only one id."""
    if len({id(message) for message in messages}) < len(messages):
        raise ClientMistake("One message is given twice to a transaction. Make one for each.")


def refuse_unsendable(topic: str, body: bytes) -> None:
    """Refuse a message that the client or the broker would refuse later.

    Raises:
        ClientMistake: If the topic or the body is missing, or the body is too large.
    """
    if not topic:
        raise IllegalTopic("It is empty. Set message.topic.")
    if not body:
        raise BodyEmpty("Set message.body.")
    if len(body) > BODY_BYTES_MAX:
        raise BodyTooLarge(f"It has {len(body):,} bytes of at most {BODY_BYTES_MAX:,}.")


def refuse_unfit_for_half(message: Message) -> None:
    """Refuse options that the official client rejects in a transaction or the broker rejects in a half
    message.

    Raises:
        IllegalDeliveryTime: If the message and its properties specify different times.
        ClientMistake: If the message has a message group, a lite topic or a priority.
    """
    said = {"message_group": message.message_group, "lite_topic": message.lite_topic}
    for name in [name for name, value in said.items() if value]:
        raise ClientMistake(
            f"The official client sends no {name} in a transaction. Leave it out, or, for a group, use "
            "tidewheel.Client and NewMessage(group=...)."
        )
    if message.priority is not None:
        raise ClientMistake("A message of a transaction has no priority. Leave it out.")
    if (deliver_s := message.delivery_timestamp) is not None:
        due_ms, _ = without_delay(message.properties, time.time_ns() // 1_000_000)
        if due_ms not in (None, deliver_s * 1000):
            asking = " and ".join(sorted(WAYS.keys() & message.properties.keys()))
            raise contradiction({asking: due_ms, "the delivery timestamp": deliver_s * 1000})


def end_halves(halves: Sequence[Half], outcome_of: Callable[[str], Outcome]) -> list[TimerResult | None]:
    """End each half message by the outcome of its id, and return the verdicts on timer operations."""
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
    """End each half message in an event loop, as `end_halves` does. Outcomes are looked up in threads."""
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
    """Log a failure to end a half message. A check-back repeats the call.

    A refusal means that the half message has already ended with the other outcome, because it expired or an
    operator resolved it.
    """
    try:
        yield
    except Exception as error:  # the official client raises bare Exceptions, gRPC errors and its own errors
        if isinstance(error, TransactionEnded) or REFUSED in str(error):
            log.error(
                "Message %s is %s in the database, and the broker has ended it otherwise: %s. "
                "See tidewheel txn show, and txn resolve.",
                message_id,
                outcome.value,
                error,
            )
        else:
            log.warning("Message %s (%s) is left to its check-back: %s", message_id, outcome.value, error)


def ids_of(halves: Sequence[Half]) -> str:
    """Return the message ids as text."""
    return ", ".join(half.message_id for half in halves)
