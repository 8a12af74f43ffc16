"""`kill -9` with messages pending: nothing acknowledged is lost, nothing is early, every half is resolved."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from grpc.aio import AioRpcError
from rocketmq import ConsumeResult, MessageListener, TransactionChecker, TransactionResolution

DELAYED, HALVES = 1_000, 50
RESOLVED_SECONDS = 60


class OddsCommit(TransactionChecker):
    """Commits what has an odd number, rolls back the rest."""

    def __init__(self) -> None:
        self.asked: set[int] = set()

    def check(self, message: Any) -> int:
        number = int(message.body)
        self.asked.add(number)
        return TransactionResolution.COMMIT if number % 2 else TransactionResolution.ROLLBACK


def test_every_pending_message_survives_kill_9(
    own_broker: Any, clients: Any, topic: str, group: str, new_message: Any, take: Any, wait_until: Any
) -> None:
    broker, checker, halves = own_broker, OddsCommit(), f"{topic}-halves"
    producer = clients.producer(broker, topic, halves, checker=checker)
    asked_for_routes = routes_answered(broker)
    due = int(time.time()) + 20
    sent = [
        producer.send_async(new_message(topic, str(number), delivery_timestamp=due + number % 10))
        for number in range(DELAYED)
    ]
    acknowledged = [future.result() for future in sent]
    # The longest wait for check-backs: the producer, which looks every 30 s, has looked for us just now.
    wait_until(lambda: routes_answered(broker) > asked_for_routes, 15)
    for number in range(HALVES):
        producer.send(new_message(halves, str(number)), producer.begin_transaction())
    assert time.time() < due, "the machine is too slow for this test to kill anything that is pending"

    broker.kill()
    broker.start()
    restarted = time.monotonic()

    got = take(clients.simple(broker, topic, group), len(acknowledged), seconds=60)
    assert {int(message.body) for message in got} == set(range(DELAYED))
    assert len(broker.stored(topic)) == DELAYED
    assert all(message.decode_message_timestamp >= message.delivery_timestamp for message in got)

    wait_until(lambda: broker.metric("rocketmq_half_messages") == [0], RESOLVED_SECONDS)
    assert time.monotonic() - restarted <= RESOLVED_SECONDS
    assert checker.asked == set(range(HALVES))
    # A half is no longer open once its end is written; what it commits can be read once that is on disk.
    wait_until(lambda: len(broker.stored(halves)) >= HALVES // 2, RESOLVED_SECONDS)
    committed = [int(message["body"]) for message in broker.stored(halves)]
    assert sorted(committed) == [number for number in range(HALVES) if number % 2]


def once_connected(call: Callable[[], Any], wait_until: Any) -> Any:
    """Return what a call returns once the client's channel, which pauses between attempts, is back."""
    answers: list[Any] = []

    def answered() -> bool:
        with suppress(AioRpcError):
            answers.append(call())
        return bool(answers)

    wait_until(answered, 15)
    return answers[0]


def routes_answered(broker: Any) -> float:
    """Return how often clients have asked the broker for routes."""
    return sum(broker.metric("rocketmq_rpc_latency_count", 'request_code="QueryRoute"'))


def test_a_push_consumer_goes_on_after_kill_9(
    own_broker: Any, clients: Any, topic: str, group: str, new_message: Any, wait_until: Any
) -> None:
    seen: list[bytes] = []

    class Listener(MessageListener):
        def consume(self, message: Any) -> ConsumeResult:
            seen.append(message.body)
            return ConsumeResult.SUCCESS

    producer = clients.producer(own_broker, topic)
    clients.push(own_broker, topic, group, Listener())
    producer.send(new_message(topic, "before"))
    wait_until(lambda: seen == [b"before"], 15)
    wait_until(lambda: own_broker.metric("mq_acknowledged_total") == [1], 15)

    own_broker.kill()
    own_broker.start()

    once_connected(lambda: producer.send(new_message(topic, "after")), wait_until)
    wait_until(lambda: seen == [b"before", b"after"], 15)


def test_a_consumer_goes_on_after_a_restart_and_gets_nothing_twice(
    own_broker: Any, clients: Any, topic: str, group: str, new_message: Any, take: Any, wait_until: Any
) -> None:
    producer = clients.producer(own_broker, topic)
    consumer = clients.simple(own_broker, topic, group)
    producer.send(new_message(topic, "before"))
    assert [message.body for message in take(consumer, 1)] == [b"before"]

    assert own_broker.stop() == 0
    own_broker.start()

    once_connected(lambda: producer.send(new_message(topic, "after")), wait_until)
    got = once_connected(lambda: take(consumer, 1), wait_until)
    assert [message.body for message in got] == [b"after"]


def test_consumers_of_lite_topics_go_on_after_kill_9_and_nothing_is_lost_or_twice(
    own_broker: Any, clients: Any, topic: str, group: str, new_message: Any, wait_until: Any
) -> None:
    seen: list[tuple[str, bytes]] = []

    class Listener(MessageListener):
        def consume(self, message: Any) -> ConsumeResult:
            seen.append((message.lite_topic, message.body))
            return ConsumeResult.SUCCESS

    own_broker.create_topic(topic, "LITE")
    producer = clients.producer(own_broker, topic)
    consumer = clients.lite_push(own_broker, topic, group, Listener())
    for name in ("session-1", "session-2"):
        consumer.subscribe_lite(name)
        producer.send(new_message(topic, "before", lite_topic=name))
    producer.send(new_message(topic, "nobody wants it yet", lite_topic="session-3"))
    wait_until(lambda: sum(own_broker.metric("mq_acknowledged_total")) == 2, 15)

    own_broker.kill()
    own_broker.start()

    once_connected(lambda: producer.send(new_message(topic, "after", lite_topic="session-1")), wait_until)
    wait_until(lambda: len(seen) >= 3, 45)  # clients say what they subscribe to every 30 s
    consumer.subscribe_lite("session-3")
    wait_until(lambda: sum(own_broker.metric("rocketmq_consumer_lag_messages")) == 0, 15)
    assert sorted(seen) == [
        ("session-1", b"after"),
        ("session-1", b"before"),
        ("session-2", b"before"),
        ("session-3", b"nobody wants it yet"),
    ]
