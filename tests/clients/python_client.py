"""The official Python client behind the verbs of `official`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from threading import Lock
from typing import Any

import rocketmq
from rocketmq import ConsumeResult, FilterExpression, MessageListener, TransactionChecker
from rocketmq import TransactionResolution as Resolution

from tests.clients.official import Got, Plan, Refused, Seen, Sent

SQL = 2
SETTINGS_SECONDS = 10
ANSWERS = {
    "commit": Resolution.COMMIT,
    "rollback": Resolution.ROLLBACK,
    "unknown": Resolution.TRANSACTION_RESOLUTION_UNSPECIFIED,
}


class PythonClient:
    """One producer for the session; consumers come and go."""

    name = "python"

    def __init__(self, listen: str, access_key: str = "", secret: str = "") -> None:
        self._configuration = rocketmq.ClientConfiguration(listen, rocketmq.Credentials(access_key, secret))
        self._checker = Checker()
        self._producer = rocketmq.Producer(self._configuration, (), checker=self._checker)
        self._producer.startup()
        self._halves: dict[str, Any] = {}
        self._started = ExitStack()

    def send(self, topic: str, body: str, **attributes: Any) -> Sent:
        message = new_message(topic, body, attributes)
        receipt = told(lambda: self._producer.send(message))
        return Sent(receipt.message_id, receipt.recall_handle or "")

    def recall(self, topic: str, recall_handle: str) -> str:
        return str(told(lambda: self._producer.recall_message(topic, recall_handle)))

    def send_half(self, topic: str, name: str) -> None:
        transaction = self._producer.begin_transaction()
        message = new_message(topic, name, {"keys": [name]})
        told(lambda: self._producer.send(message, transaction))
        self._halves[name] = transaction

    def end_half(self, name: str, how: str) -> None:
        told(getattr(self._halves[name], how))

    def answer_checks(self, name: str, *how: str) -> None:
        self._checker.answers[name] = list(how)

    def simple(
        self, topic: str, group: str, filter_: str = "*", *, is_sql: bool = False, await_seconds: int = 5
    ) -> Simple:
        wanted = {topic: expression(filter_, is_sql)}
        consumer = rocketmq.SimpleConsumer(self._configuration, group, wanted, await_seconds)
        return Simple(self._begun(consumer), self._started.enter_context(ThreadPoolExecutor(1)))

    def push(
        self, topic: str, group: str, plan: Plan | None = None, filter_: str = "*", *, is_sql: bool = False
    ) -> Listener:
        listener, wanted = Listener(plan or Plan()), {topic: expression(filter_, is_sql)}
        self._begun(rocketmq.PushConsumer(self._configuration, group, listener, wanted))
        return listener

    def lite_simple(self, topic: str, group: str, *, await_seconds: int = 5) -> LiteSimple:
        consumer = rocketmq.LiteSimpleConsumer(topic, self._configuration, group, await_seconds)
        return LiteSimple(self._begun(consumer), self._started.enter_context(ThreadPoolExecutor(1)))

    def lite_push(self, topic: str, group: str, plan: Plan | None = None) -> LiteListener:
        listener = LiteListener(plan or Plan())
        listener.consumer = self._begun(
            rocketmq.LitePushConsumer(self._configuration, group, topic, listener)
        )
        return listener

    def close(self) -> None:
        self._started.close()

    def stop(self) -> None:
        """Shut the producer down."""
        self.close()
        self._producer.shutdown()

    def _begun(self, consumer: Any) -> Any:
        told(consumer.startup)
        self._started.callback(lambda: consumer.is_running and consumer.shutdown())
        return consumer


class Simple:
    """A simple consumer; receives that were begun run in a thread of its own."""

    def __init__(self, consumer: Any, background: ThreadPoolExecutor) -> None:
        self.consumer, self._background = consumer, background

    def receive(self, count: int = 32, lease_seconds: int = 30) -> list[Got]:
        return [got(one) for one in told(lambda: self.consumer.receive(count, lease_seconds))]

    def receiving(self, count: int = 32, lease_seconds: int = 30) -> Future[list[Got]]:
        return self._background.submit(self.receive, count, lease_seconds)

    def ack(self, got: Got) -> None:
        got.native.receipt_handle = got.handle
        told(lambda: self.consumer.ack(got.native))

    def change_invisible(self, got: Got, seconds: int) -> Got:
        got.native.receipt_handle = got.handle
        told(lambda: self.consumer.change_invisible_duration(got.native, seconds))
        return replace(got, handle=got.native.receipt_handle)


class Listener(MessageListener):  # type: ignore[misc] # the official client carries no types
    """Does what it was told, and notes when."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._calls = plan, Counter[str]()
        self._seen: list[Seen] = []
        self._lock = Lock()

    def consume(self, message: Any) -> ConsumeResult:
        body, group = message.body.decode(), message.message_group or ""
        with self._lock:
            place, now_ms = len(self._seen), time.time() * 1000
            seen = Seen(body, message.delivery_attempt, group, now_ms, 0, message.lite_topic or "")
            self._seen.append(seen)
            self._calls[body] += 1
            is_failing = self._calls[body] <= self._plan.failures or body == self._plan.poison
        time.sleep(self._plan.seconds)
        self._seen[place] = replace(seen, ended_ms=time.time() * 1000)
        return ConsumeResult.FAILURE if is_failing else ConsumeResult.SUCCESS

    def seen(self) -> Sequence[Seen]:
        return list(self._seen)


class Lite:
    """Subscribes a consumer of lite topics; a simple one has its quota only once its settings have come."""

    consumer: Any

    def subscribe_lite(self, lite_topic: str) -> None:
        ends = time.monotonic() + SETTINGS_SECONDS
        while True:
            try:
                return told(lambda: self.consumer.subscribe_lite(lite_topic))
            except Refused as refusal:
                if "exceed quota: 0" not in str(refusal) or time.monotonic() > ends:
                    raise
                time.sleep(0.05)

    def unsubscribe_lite(self, lite_topic: str) -> None:
        told(lambda: self.consumer.unsubscribe_lite(lite_topic))


class LiteSimple(Simple, Lite):
    """A simple consumer of lite topics."""


class LiteListener(Listener, Lite):
    """A listener, and the push consumer of lite topics that calls it."""


class Checker(TransactionChecker):  # type: ignore[misc] # the official client carries no types
    """Answers checks as it was told to."""

    def __init__(self) -> None:
        self.answers: dict[str, list[str]] = {}

    def check(self, message: Any) -> int:
        answers = self.answers.get(message.body.decode(), ["unknown"])
        return int(ANSWERS[answers.pop(0) if len(answers) > 1 else answers[0]])


def told(call: Callable[[], Any]) -> Any:
    """What a call returns; its exception as `Refused`."""
    try:
        return call()
    except Exception as refusal:
        raise Refused(str(refusal)) from refusal


def expression(filter_: str, is_sql: bool) -> FilterExpression:
    return FilterExpression(filter_, SQL) if is_sql else FilterExpression(filter_)


def new_message(topic: str, body: str, attributes: dict[str, Any]) -> Any:
    message = rocketmq.Message()
    message.topic, message.body = topic, body.encode()
    for key in attributes.pop("keys", ()):
        message.keys = key
    for name, value in attributes.pop("properties", {}).items():
        message.add_property(name, value)
    if "deliver_at_s" in attributes:
        message.delivery_timestamp = attributes.pop("deliver_at_s")
    for name, value in attributes.items():
        setattr(message, name, value)
    return message


def got(message: Any) -> Got:
    assert not message.corrupted
    return Got(
        native=message,
        handle=message.receipt_handle,
        message_id=message.message_id,
        body=message.body.decode(),
        attempt=message.delivery_attempt,
        tag=message.tag or "",
        keys=tuple(sorted(message.keys)),
        properties=dict(message.properties),
        message_group=message.message_group or "",
        lite_topic=message.lite_topic or "",
    )
