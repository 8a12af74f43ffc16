"""What the official Python client measures of itself reaches the broker, and what asks it about that.

The client exports every minute; here twice a second (`METRIC_READER_INTERVAL`), nothing else is changed.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest
from rocketmq.v5.client.metrics import ClientMetrics
from rocketmq.v5.consumer import ConsumeResult, MessageListener

from tests.clients.libraries import LIBRARIES, require
from tests.clients.process_client import ProcessClient
from tests.clients.test_rights import Operator

EXPORT_MS = 500
SECONDS = 60
SENDS = 3


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have clients export often."""
    monkeypatch.setattr(ClientMetrics, "METRIC_READER_INTERVAL", EXPORT_MS)


class Listening(MessageListener):
    """Consumes whatever comes."""

    def consume(self, message: Any) -> Any:
        return ConsumeResult.SUCCESS


def measured(broker: Any, kind: str, group: str = "") -> dict[str, Any]:
    """What the only client of a kind and group told, by name."""
    with urlopen(f"http://{broker.http}/api/clients") as answer:
        there = json.load(answer)["clients"]
    found = [one["client_id"] for one in there if (one["kind"], one["group"]) == (kind, group)]
    if not found:
        return {}
    with urlopen(f"http://{broker.http}/api/clients/show?client={quote(found[-1])}") as answer:
        return {one["name"]: one for one in json.load(answer)["measured"]}


def test_what_a_producer_measured_is_shown_of_it_and_by_topic(
    own_broker: Any,
    clients: Any,
    topic: str,
    new_message: Callable[..., Any],
    wait_until: Callable[..., None],
) -> None:
    producer = measuring(clients.producer(own_broker, topic), wait_until)
    for number in range(SENDS):
        producer.send(new_message(topic, str(number)))
    wait_until(lambda: "rocketmq_send_cost_time" in measured(own_broker, "PRODUCER"), SECONDS)
    told = measured(own_broker, "PRODUCER")["rocketmq_send_cost_time"]
    assert (told["topic"], told["status"], told["count"]) == (topic, "success", SENDS)
    wait_until(lambda: own_broker.metric("rocketmq_send_cost_time_count", topic) == [SENDS], SECONDS)
    producer.shutdown()
    assert measured(own_broker, "PRODUCER") == {}
    assert own_broker.metric("rocketmq_send_cost_time_count", topic) == [SENDS]


def test_a_push_consumer_goes_on_reading_its_stream_and_tells_what_it_holds(
    own_broker: Any,
    clients: Any,
    topic: str,
    group: str,
    new_message: Callable[..., Any],
    wait_until: Callable[..., None],
) -> None:
    measuring(clients.push(own_broker, topic, group, Listening()), wait_until)
    clients.producer(own_broker, topic).send(new_message(topic, "one"))
    names = {
        "rocketmq_delivery_latency",
        "rocketmq_await_time",
        "rocketmq_process_time",
        "rocketmq_consumer_cached_messages",  # of these two it tells only if the reader of its stream has not
        "rocketmq_consumer_cached_bytes",  # crashed over the settings' metric (wire-protocol.md 4.6)
    }
    wait_until(lambda: measured(own_broker, "PUSH_CONSUMER", group).keys() == names, SECONDS)
    told = measured(own_broker, "PUSH_CONSUMER", group)
    assert {one["group"] for one in told.values()} == {group}
    assert told["rocketmq_process_time"]["count"] == 1
    assert own_broker.metric("rocketmq_consumer_cached_messages", group) == [0]


@pytest.mark.parametrize("name", ["localhost"])
def test_the_address_that_was_dialled_is_the_one_to_send_to(
    own_broker: Any,
    clients: Any,
    topic: str,
    new_message: Callable[..., Any],
    wait_until: Callable[..., None],
    name: str,
) -> None:
    producer = measuring(clients.producer(own_broker.dialled_as(name), topic), wait_until)
    producer.send(new_message(topic, "one"))
    wait_until(lambda: own_broker.metric("rocketmq_send_cost_time_count", topic) == [1], SECONDS)


def test_what_a_producer_has_not_told_yet_it_tells_as_it_goes_and_nothing_of_it_stays(
    own_broker: Any,
    clients: Any,
    topic: str,
    new_message: Callable[..., Any],
    wait_until: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ClientMetrics, "METRIC_READER_INTERVAL", 60_000)  # the client's own
    others = exporters()  # clients of other tests, whose brokers were killed
    producer = measuring(clients.producer(own_broker, topic), wait_until)
    producer.send(new_message(topic, "one"))
    wait_until(lambda: exporters() != others, SECONDS)
    producer.shutdown()
    wait_until(lambda: own_broker.metric("rocketmq_send_cost_time_count", topic) == [1], SECONDS)
    assert exporters() <= others, "or its process would wait for a broker that has gone, at its end"


def test_javas_producer_tells_as_it_goes_by_tls(
    own_broker: Any, topic: str, tmp_path: Any, wait_until: Callable[..., None]
) -> None:
    library = LIBRARIES["java"]
    require(library)
    client = ProcessClient(library, own_broker.listen, {**os.environ, "HOME": str(tmp_path)})
    for body in ("1", "2"):
        client.send(topic, body)
    client.stop()
    wait_until(lambda: own_broker.metric("rocketmq_send_cost_time_count", topic) == [2], SECONDS)


def measuring(client: Any, wait_until: Callable[..., None]) -> Any:
    """Return a client once its library measures.

    `ClientMetrics.reset_metrics` says that it does before it has made its histograms, of which that of
    processing is the last; what is sent in between is measured nowhere.
    """
    name = "_ClientMetrics__consume_process_time_instrument"
    wait_until(lambda: vars(client.client_metrics)[name] is not None, SECONDS)
    return client


def exporters() -> set[threading.Thread]:
    """The threads in which clients export."""
    return {one for one in threading.enumerate() if "PeriodicExportingMetricReader" in one.name}


@pytest.fixture
def asking(tmp_path: Any, serving: Any) -> Iterator[Any]:
    """A broker that asks everybody who they are."""
    yield from serving(tmp_path / "store", "--auth")


def test_a_user_signs_what_its_clients_measured(
    asking: Any,
    clients: Any,
    topic: str,
    group: str,
    new_message: Callable[..., Any],
    wait_until: Callable[..., None],
) -> None:
    operator = Operator(asking, clients, topic, group)
    operator.allow("send")
    measuring(operator.clients.producer(asking, topic), wait_until).send(new_message(topic, "one"))
    wait_until(lambda: asking.metric("rocketmq_send_cost_time_count", topic) == [1], SECONDS)
    assert operator.reasons() == []


@pytest.fixture
def silent(tmp_path: Any, serving: Any) -> Iterator[Any]:
    """A broker that asks for no metrics."""
    yield from serving(tmp_path / "store", "--client-metrics", "off")


def test_no_metrics_are_asked_for_where_they_are_off(
    silent: Any, clients: Any, topic: str, new_message: Callable[..., Any]
) -> None:
    producer = clients.producer(silent, topic)
    producer.send(new_message(topic, "one"))
    assert measured(silent, "PRODUCER") == {}
    with urlopen(f"http://{silent.http}/metrics") as answer:
        assert "rocketmq_send_cost_time" not in answer.read().decode()
