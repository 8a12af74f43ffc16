"""The pytest plugin as its users have it: the official client, a real broker, and half an hour in no time."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)

from tidewheel.testing.kit import Tidewheel
from tidewheel.testing.process import BrokerFailed, BrokerProcess

TIMEOUT = timedelta(minutes=30)
MANY = 1_500
TINY_TESTS = """
import time

import pytest
from rocketmq import ClientConfiguration, Credentials, Message, Producer


@pytest.mark.parametrize("number", range(100))
def test_an_order_times_out(tidewheel, number):
    config = ClientConfiguration(tidewheel.endpoint, Credentials(), tidewheel.namespace)
    producer = Producer(config, ("order-timeouts",))
    producer.startup()
    timeout = Message()
    timeout.topic, timeout.body = "order-timeouts", b"order 123"
    timeout.delivery_timestamp = int(time.time()) + 1800
    producer.send(timeout)
    assert len(tidewheel.pending()) == 1
    tidewheel.advance("30m")
    assert tidewheel.pending() == []
    producer.shutdown()
"""


LEFT_DEAD = """
def test_that_leaves_it_dead(tidewheel):
    tidewheel.crash()


def test_that_comes_next(tidewheel):
    assert tidewheel.pending() == []
"""
OPTIONS = """
import pytest


@pytest.fixture(scope="session")
def tidewheel_options():
    return ("--broker-name", "chosen")


def test_the_broker_has_the_name_that_was_chosen(tidewheel):
    assert "chosen" in {one.labels.get("node_id") for one in tidewheel.metrics()}
"""


class Committing(TransactionChecker):
    """Says that every transaction it is asked about was committed."""

    def check(self, message: Any) -> Any:
        return TransactionResolution.COMMIT


@contextmanager
def started(client: Any) -> Iterator[Any]:
    """A client that runs."""
    client.startup()
    try:
        yield client
    finally:
        client.shutdown()


class Slow(MessageListener):
    """Takes a message and works on it until it may end."""

    def __init__(self) -> None:
        self.began = 0
        self.may_end = Event()

    def consume(self, message: Any) -> Any:
        self.began += 1
        assert self.may_end.wait(60)
        return ConsumeResult.SUCCESS


def acknowledged(tidewheel: Tidewheel) -> float:
    """How many messages of this test's topic were acknowledged."""
    topic = f"{tidewheel.namespace}%orders"
    found = [one for one in tidewheel.metrics() if one.name == "mq_acknowledged_total"]
    return sum(one.value for one in found if one.labels["topic"] == topic)


def configuration(tidewheel: Tidewheel) -> ClientConfiguration:
    return ClientConfiguration(tidewheel.endpoint, Credentials(), tidewheel.namespace)


def producer(tidewheel: Tidewheel, checker: Any = None) -> Any:
    return started(Producer(configuration(tidewheel), ("orders",), checker=checker))


def consumer(tidewheel: Tidewheel, await_seconds: int = 5) -> Any:
    wanted = {"orders": FilterExpression("*")}
    return started(SimpleConsumer(configuration(tidewheel), "shop", wanted, await_seconds))


@pytest.fixture
def order_timeout(new_message: Callable[..., Any]) -> Any:
    """A message that is due in 30 minutes, as clients say it: in real time."""
    due_seconds = int(time.time() + TIMEOUT.total_seconds())
    return new_message("orders", "order 123", keys="order-123", delivery_timestamp=due_seconds)


def test_an_order_times_out_after_30_minutes(
    tidewheel: Tidewheel, order_timeout: Any, take: Callable[..., list[Any]]
) -> None:
    with producer(tidewheel) as sender, consumer(tidewheel) as receiver:
        receipt = sender.send(order_timeout)
        (waiting,) = tidewheel.pending()
        assert (waiting.message_id, waiting.topic, waiting.keys) == (
            receipt.message_id,
            "orders",
            ("order-123",),
        )
        assert waiting.due_ms == order_timeout.delivery_timestamp * 1000
        tidewheel.advance("20m")
        assert [one.message_id for one in tidewheel.pending()] == [receipt.message_id]
        assert tidewheel.pending()[0].due_in <= timedelta(minutes=10)
        tidewheel.advance(timedelta(minutes=10))
        (timeout,) = take(receiver, 1)
        assert timeout.body == b"order 123"
        assert tidewheel.pending() == []


def test_a_paid_order_does_not_time_out(tidewheel: Tidewheel, order_timeout: Any) -> None:
    with producer(tidewheel) as sender:
        receipt = sender.send(order_timeout)
        tidewheel.advance("29m")
        sender.recall_message("orders", receipt.recall_handle)
        assert tidewheel.pending() == []


def test_a_minute_after_half_an_hour_is_still_a_minute(
    tidewheel: Tidewheel, new_message: Callable[..., Any]
) -> None:
    tidewheel.advance("30m")
    with producer(tidewheel) as sender:
        sender.send(new_message("orders", "x", delivery_timestamp=int(time.time()) + 60))
        assert timedelta(seconds=30) < tidewheel.pending()[0].due_in <= timedelta(seconds=60)


def test_a_transaction_left_open_is_asked_about(
    tidewheel: Tidewheel, new_message: Callable[..., Any], take: Callable[..., list[Any]]
) -> None:
    with producer(tidewheel, Committing()) as sender, consumer(tidewheel) as receiver:
        sender.send(new_message("orders", "paid"), sender.begin_transaction())
        tidewheel.advance("30m")
        (paid,) = take(receiver, 1)
        assert paid.body == b"paid"


def test_a_push_consumer_keeps_what_it_works_on_while_time_passes(
    tidewheel: Tidewheel, new_message: Callable[..., Any], wait_until: Callable[..., None]
) -> None:
    listener = Slow()
    wanted = {"orders": FilterExpression()}
    with producer(tidewheel) as sender:
        with started(PushConsumer(configuration(tidewheel), "shop", listener, wanted)):
            sender.send(new_message("orders", "slow"))
            wait_until(lambda: listener.began == 1, 20)
            tidewheel.advance("30m")
            listener.may_end.set()
            wait_until(lambda: acknowledged(tidewheel) == 1, 20)
        assert listener.began == 1


def test_a_crash_loses_nothing_and_time_does_not_go_back(
    tidewheel: Tidewheel, order_timeout: Any, take: Callable[..., list[Any]]
) -> None:
    with producer(tidewheel) as sender:
        sender.send(order_timeout)
    tidewheel.advance("20m")
    endpoint = tidewheel.endpoint
    tidewheel.crash()
    tidewheel.restart()
    assert tidewheel.endpoint == endpoint
    assert tidewheel.pending()[0].due_in <= timedelta(minutes=10)
    with consumer(tidewheel) as receiver:
        tidewheel.advance("10m")
        assert [one.body for one in take(receiver, 1)] == [b"order 123"]


def test_a_crash_in_the_middle_of_an_advance_loses_and_repeats_nothing(
    tidewheel: Tidewheel,
    new_message: Callable[..., Any],
    take: Callable[..., list[Any]],
    wait_until: Callable[..., None],
) -> None:
    due_seconds = int(time.time()) + 60
    with producer(tidewheel) as sender:
        for number in range(MANY):
            due = {"delivery_timestamp": due_seconds + number}
            sender.send(new_message("orders", str(number), keys=f"order-{number}", **due))
    with ThreadPoolExecutor(1) as other:
        advanced = other.submit(tidewheel.advance, "1h")
        wait_until(lambda: len(tidewheel.pending()) < MANY, 20)
        tidewheel.crash()
        assert "ended, killed by SIGKILL" in str(advanced.exception())
    tidewheel.restart()
    left = len(tidewheel.pending())
    assert 0 < left < MANY
    tidewheel.advance("1h")
    with consumer(tidewheel, 1) as receiver:
        assert sorted(int(one.body) for one in take(receiver, MANY)) == list(range(MANY))
        assert receiver.receive(32, 15) == []


def test_two_tests_do_not_see_each_other(
    tidewheel: Tidewheel, tidewheel_process: BrokerProcess, order_timeout: Any, take: Callable[..., list[Any]]
) -> None:
    other = Tidewheel(tidewheel_process, f"{tidewheel.namespace}-other")
    with producer(tidewheel) as sender, consumer(other, 1) as stranger, consumer(tidewheel) as receiver:
        sender.send(order_timeout)
        assert other.pending() == []
        tidewheel.advance("30m")
        assert len(take(receiver, 1)) == 1
        assert stranger.receive(32, 15) == []


def test_a_broker_left_dead_is_started_for_the_next_test(run_tests: Callable[[str], str]) -> None:
    assert "2 passed" in run_tests(LEFT_DEAD)


def test_metrics_are_those_of_the_broker(tidewheel: Tidewheel, order_timeout: Any) -> None:
    with producer(tidewheel) as sender:
        before = pending_metric(tidewheel)
        sender.send(order_timeout)
        assert pending_metric(tidewheel) == before + 1


def pending_metric(tidewheel: Tidewheel) -> float:
    (sample,) = [one for one in tidewheel.metrics() if one.name == "rocketmq_timing_messages"]
    return sample.value


@pytest.mark.parametrize("by", ["-1m", "soon", "", "99999999d"])
def test_what_is_no_span_is_refused(tidewheel: Tidewheel, by: str) -> None:
    with pytest.raises(BrokerFailed, match=r"answered 400: .*TW-148"):
        tidewheel.advance(by)


def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(BrokerFailed, match="TW-120"):
        BrokerProcess(tmp_path, ["--queue-count", "0"]).start()


def test_flags_of_the_broker_are_chosen_by_a_fixture(run_tests: Callable[[str], str]) -> None:
    said = run_tests(OPTIONS)
    assert "1 passed" in said, said


def test_a_hundred_small_tests(
    run_tests: Callable[[str], str], record_property: Callable[[str, object], None]
) -> None:
    began = time.monotonic()
    said = run_tests(TINY_TESTS)
    record_property("seconds", time.monotonic() - began)
    assert "100 passed" in said, said


@pytest.fixture
def run_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Run a file of tests as a user would; returns what pytest says."""
    monkeypatch.setenv("HOME", str(tmp_path))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=3"]

    def run(tests: str) -> str:
        (tmp_path / "test_it.py").write_text(tests)
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        return ran.stdout

    return run
