"""Transactions: a half message is seen only when its producer commits it, by itself or when asked."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Condition
from typing import Any

import pytest
from rocketmq import TransactionChecker, TransactionResolution
from rocketmq.v5.exception import ClientException

from tests.clients.transaction_orders import KINDS, Stage

COMMIT, ROLLBACK = TransactionResolution.COMMIT, TransactionResolution.ROLLBACK
UNKNOWN = TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED
HOLD = -1
AWAIT_SECONDS = 60


class Answers(TransactionChecker):
    """Answers check-backs from a list, the last answer for ever."""

    def __init__(self, *answers: int) -> None:
        self.asked: list[str] = []
        self._answers: Iterator[int] = iter(answers)
        self._last = answers[-1] if answers else UNKNOWN

    def check(self, message: Any) -> int:
        self.asked.append(message.body.decode())
        return next(self._answers, self._last)


def orphan(producer: Any, message: Any) -> Any:
    """Send a half message and leave it alone."""
    transaction = producer.begin_transaction()
    producer.send(message, transaction)
    return transaction


def bodies(messages: list[dict[str, Any]]) -> list[str]:
    """Return what stored messages say."""
    return [message["body"] for message in messages]


def test_a_committed_message_arrives_and_a_rolled_back_one_does_not(
    broker: Any, clients: Any, topic: str, group: str, new_message: Any, take: Any
) -> None:
    producer = clients.producer(broker, topic, checker=Answers())
    orphan(producer, new_message(topic, "no")).rollback()
    orphan(producer, new_message(topic, "yes")).commit()

    [got] = take(clients.simple(broker, topic, group), 1)

    assert got.body == b"yes"
    assert bodies(broker.stored(topic)) == ["yes"]


def test_committing_twice_gives_one_message(broker: Any, clients: Any, topic: str, new_message: Any) -> None:
    transaction = orphan(clients.producer(broker, topic, checker=Answers()), new_message(topic, "once"))
    transaction.commit()
    transaction.commit()
    assert bodies(broker.stored(topic)) == ["once"]


def test_the_first_end_wins_and_the_other_is_told(
    broker: Any, clients: Any, topic: str, new_message: Any
) -> None:
    transaction = orphan(clients.producer(broker, topic, checker=Answers()), new_message(topic, "ended"))
    transaction.rollback()
    with pytest.raises(ClientException, match="TW-161"):
        transaction.commit()
    assert bodies(broker.stored(topic)) == []


def test_an_orphan_is_asked_about_and_ends_as_answered(
    broker: Any, clients: Any, topic: str, new_message: Any, wait_until: Any
) -> None:
    committing, rolling_back, hesitating = Answers(COMMIT), Answers(ROLLBACK), Answers(UNKNOWN, COMMIT)
    for name, answers in (("c", committing), ("r", rolling_back), ("u", hesitating)):
        own = f"{topic}-{name}"
        orphan(clients.producer(broker, own, checker=answers), new_message(own, name))

    wait_until(lambda: bodies(broker.stored(f"{topic}-c")) == ["c"], 15)
    wait_until(lambda: bodies(broker.stored(f"{topic}-u")) == ["u"], 15)
    wait_until(lambda: broker.metric("rocketmq_rollback_messages_total", f'topic="{topic}-r"') == [1], 15)

    assert set(committing.asked) == {"c"}
    assert len(hesitating.asked) >= 2
    assert bodies(broker.stored(f"{topic}-r")) == []


def test_a_producer_that_declared_no_topic_is_asked_too(
    broker: Any, clients: Any, topic: str, new_message: Any, wait_until: Any
) -> None:
    answers = Answers(COMMIT)
    orphan(clients.producer(broker, checker=answers), new_message(topic, "undeclared"))
    wait_until(lambda: bodies(broker.stored(topic)) == ["undeclared"], 15)
    assert set(answers.asked) == {"undeclared"}


def test_another_producer_of_the_topic_answers_for_one_that_left(
    broker: Any, clients: Any, topic: str, new_message: Any, wait_until: Any
) -> None:
    answers = Answers(COMMIT)
    clients.producer(broker, topic, checker=answers)
    leaving = clients.producer(broker, topic, checker=Answers(COMMIT))
    orphan(leaving, new_message(topic, "left behind"))
    leaving.shutdown()
    wait_until(lambda: bodies(broker.stored(topic)) == ["left behind"], 15)
    assert set(answers.asked) == {"left behind"}


class Holding(TransactionChecker):
    """Answers each check as it was told to, or holds it until it is told."""

    def __init__(self) -> None:
        self._answers: dict[str, int] = {}
        self._changed = Condition()

    def say(self, name: str, how: str) -> None:
        """What checks about a message are told from now on."""
        with self._changed:
            self._answers[name] = {"commit": COMMIT, "rollback": ROLLBACK, "hold": HOLD}.get(how, UNKNOWN)
            self._changed.notify_all()

    def check(self, message: Any) -> int:
        name = message.body.decode()
        with self._changed:
            self._changed.wait_for(lambda: self._answers[name] != HOLD, AWAIT_SECONDS)
            return self._answers[name]


class PythonProducer:
    """The official Python client, for `transaction_orders`."""

    def __init__(self, clients: Any, broker: Any, new_message: Any) -> None:
        self._checker = Holding()
        self._producer = clients.producer(broker, checker=self._checker)
        self._new_message = new_message
        self._transactions: dict[str, Any] = {}

    def send(self, topic: str, name: str) -> None:
        """Send a half."""
        self._transactions[name] = orphan(self._producer, self._new_message(topic, name, keys=name))

    def end(self, name: str, how: str) -> str:
        """End it."""
        transaction = self._transactions[name]
        try:
            transaction.commit() if how == "commit" else transaction.rollback()
        except ClientException as refused:
            return str(refused)
        return "OK"

    def answer(self, name: str, how: str) -> None:
        """Say what checks are told."""
        self._checker.say(name, how)


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_end_wins_in_every_order(
    kind: str, broker: Any, clients: Any, topic: str, new_message: Any, wait_until: Any
) -> None:
    Stage(broker, PythonProducer(clients, broker, new_message), kind, topic, wait_until).play()
