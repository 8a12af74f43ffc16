"""A barrier with the official producer: a delivery time, which that refuses in a transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rocketmq import ClientConfiguration, Credentials, FilterExpression, Producer, SimpleConsumer
from sqlalchemy import create_engine, text
from sqlalchemy.orm import sessionmaker

from tidewheel import Barrier
from tidewheel.errors import ClientMistake, IllegalDeliveryTime
from tidewheel.testing.kit import Tidewheel

HALF_AN_HOUR_S = 1_800


@pytest.fixture
def barrier(tmp_path: Path) -> Barrier:
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    made = Barrier(sessionmaker(engine))
    made.create_table()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY)"))
    return made


@pytest.fixture
def producer(tidewheel: Tidewheel, barrier: Barrier) -> Iterator[Producer]:
    config = ClientConfiguration(tidewheel.endpoint, Credentials(), tidewheel.namespace)
    started = Producer(config, ("deadlines",), checker=barrier)
    started.startup()
    yield started
    started.shutdown()


def test_a_delivery_time_arms_its_timer_at_the_commit(
    tidewheel: Tidewheel,
    barrier: Barrier,
    producer: Producer,
    new_message: Callable[..., Any],
    take: Callable[..., list[Any]],
) -> None:
    due_s = int(time.time()) + HALF_AN_HOUR_S
    deadline = new_message("deadlines", "order 7", delivery_timestamp=due_s)
    with barrier.transaction(producer, deadline) as session:
        session.execute(text("INSERT INTO orders VALUES (7)"))
        assert tidewheel.pending() == []
    [pending] = tidewheel.pending()
    assert pending.message_id == deadline.message_id
    assert deadline.delivery_timestamp == due_s, "the message is the caller's"
    assert "TIMER_DELIVER_MS" not in deadline.properties
    tidewheel.advance("30m")
    config = ClientConfiguration(tidewheel.endpoint, Credentials(), tidewheel.namespace)
    consumer = SimpleConsumer(config, "shop", {"deadlines": FilterExpression("*")})
    consumer.startup()
    assert [one.body for one in take(consumer, 1)] == [b"order 7"]
    consumer.shutdown()


def test_a_rollback_arms_nothing_and_the_message_may_be_sent_again(
    tidewheel: Tidewheel, barrier: Barrier, producer: Producer, new_message: Callable[..., Any]
) -> None:
    deadline = new_message("deadlines", "order 7", delivery_timestamp=int(time.time()) + HALF_AN_HOUR_S)
    with pytest.raises(ZeroDivisionError), barrier.transaction(producer, deadline):
        raise ZeroDivisionError
    assert tidewheel.pending() == []
    deadline.delivery_timestamp += 60
    with barrier.transaction(producer, deadline):
        pass
    assert [one.message_id for one in tidewheel.pending()] == [deadline.message_id]


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        (
            {"TIMER_DELIVER_MS": "2000000000000"},
            "several ways: TIMER_DELIVER_MS means 2000000000000 ms, the delivery",
        ),
        ({"TIMER_DELAY_SEC": "7"}, "several ways: TIMER_DELAY_SEC means"),
    ],
)
def test_two_times_are_refused_before_a_half_is_sent(
    barrier: Barrier,
    producer: Producer,
    new_message: Callable[..., Any],
    properties: dict[str, str],
    said: str,
) -> None:
    due_s = int(time.time()) + HALF_AN_HOUR_S
    first = new_message("deadlines", "order 7")
    deadline = new_message("deadlines", "order 8", delivery_timestamp=due_s)
    for name, value in properties.items():
        deadline.add_property(name, value)
    with pytest.raises(IllegalDeliveryTime, match=said), barrier.transaction(producer, first, deadline):
        pytest.fail("the block runs")
    assert first.message_id is None, "a half was sent"


def test_what_no_half_may_have_is_refused_by_name_before_one_is_sent(
    barrier: Barrier, producer: Producer, new_message: Callable[..., Any]
) -> None:
    first, second = (
        new_message("deadlines", "order 7"),
        new_message("deadlines", "order 8", message_group="g"),
    )
    with pytest.raises(ClientMistake, match="message_group"), barrier.transaction(producer, first, second):
        pytest.fail("the block runs")
    assert first.message_id is None, "a half was sent"
