"""The half messages of one barrier transaction: sent together before it, ended together after it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from tidewheel.errors import (
    BodyEmpty,
    BodyTooLarge,
    ClientMistake,
    ConfigurationError,
    IllegalTopic,
    TransactionEnded,
)
from tidewheel.extras import needing

with needing("txn"):
    from rocketmq.v5.exception import IllegalArgumentException

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rocketmq import Message, Producer, Transaction

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


@dataclass
class Half:
    """One half message and the client's handle on it."""

    message_id: str
    transaction: Transaction

    def end(self, outcome: Outcome) -> None:
        """End the half as the table says; where the broker cannot be told, its check-back asks later.

        A refusal means that the half has ended otherwise: it expired, or somebody resolved it by hand.
        """
        try:
            if outcome is Outcome.COMMITTED:
                self.transaction.commit()
            elif outcome is Outcome.ROLLED_BACK:
                self.transaction.rollback()
        except Exception as error:  # the official client raises bare Exceptions, gRPC errors and its own
            if REFUSED in str(error):
                log.error(
                    "Message %s is %s in the database, and the broker has ended it otherwise: %s. "
                    "See tidewheel txn show, and txn resolve.",
                    self.message_id,
                    outcome.value,
                    error,
                )
            else:
                log.warning(
                    "The check-back will tell that %s is %s, now: %s", self.message_id, outcome.value, error
                )


def send_halves(producer: Producer, messages: Sequence[Message], database: str) -> list[Half]:
    """Send all halves, in order, with the name of their database.

    When one cannot be sent, those before it are rolled back. No row of theirs can exist yet, so this end
    needs no look at the table.

    Raises:
        ClientMistake: when one message object is given twice (it can carry only one id).
    """
    if len({id(message) for message in messages}) < len(messages):
        raise ClientMistake("One message is given twice to a transaction. Make one for each.")
    for message in messages:
        refuse_unsendable(message)
    halves: list[Half] = []
    try:
        for message in messages:
            message.add_property(BARRIER, database)
            transaction = begin(producer)
            halves.append(Half(producer.send(message, transaction).message_id, transaction))
    except BaseException:
        end_halves(halves, lambda _: Outcome.ROLLED_BACK)
        raise
    return halves


def begin(producer: Producer) -> Transaction:
    """Return a transaction of the client's, for one half.

    Raises:
        ConfigurationError: when the producer has no checker to answer check-backs.
    """
    try:
        return producer.begin_transaction()
    except IllegalArgumentException as error:
        raise ConfigurationError(
            "The producer has nobody to answer check-backs. Make it as Producer(..., checker=barrier)."
        ) from error


def refuse_unsendable(message: Message) -> None:
    """Refuse a message that the client or the broker would refuse later.

    Raises:
        ClientMistake: when it has no topic or body, or too large a body.
    """
    if not message.topic:
        raise IllegalTopic("It is empty. Set message.topic.")
    if not message.body:
        raise BodyEmpty("Set message.body.")
    if len(message.body) > BODY_BYTES_MAX:
        raise BodyTooLarge(f"It has {len(message.body):,} bytes of at most {BODY_BYTES_MAX:,}.")


def end_halves(halves: Sequence[Half], outcome_of: Callable[[str], Outcome]) -> None:
    """End each half by the outcome of its message id."""
    for half in halves:
        half.end(outcome_of(half.message_id))


def ids_of(halves: Sequence[Half]) -> str:
    """Return the message ids, for people."""
    return ", ".join(half.message_id for half in halves)
