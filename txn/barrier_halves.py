"""The half messages of one barrier transaction: sent together before it, ended together after it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from commitlog.errors import ClientMistake

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rocketmq import Message, Producer, Transaction

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
        """End it as the table says; what cannot be told now is asked for later by the check-back."""
        try:
            if outcome is Outcome.COMMITTED:
                self.transaction.commit()
            elif outcome is Outcome.ROLLED_BACK:
                self.transaction.rollback()
        except Exception as error:  # the official client raises bare Exceptions, gRPC errors and its own
            log.warning(
                "The check-back will tell that %s is %s, now: %s", self.message_id, outcome.value, error
            )


def send_halves(producer: Producer, messages: Sequence[Message]) -> list[Half]:
    """Send all halves, in order; when one cannot be sent, those before it are rolled back.

    No row of theirs can exist yet, so this end needs no look at the table.

    Raises:
        ClientMistake: when one message object is given twice (it can carry only one id).
    """
    if len({id(message) for message in messages}) < len(messages):
        raise ClientMistake("One message is given twice to a transaction. Make one for each.")
    halves: list[Half] = []
    try:
        for message in messages:
            transaction = producer.begin_transaction()
            halves.append(Half(producer.send(message, transaction).message_id, transaction))
    except BaseException:
        end_halves(halves, lambda _: Outcome.ROLLED_BACK)
        raise
    return halves


def end_halves(halves: Sequence[Half], outcome_of: Callable[[str], Outcome]) -> None:
    """End each half by the outcome of its message id."""
    for half in halves:
        half.end(outcome_of(half.message_id))


def ids_of(halves: Sequence[Half]) -> str:
    """The message ids, for people."""
    return ", ".join(half.message_id for half in halves)
