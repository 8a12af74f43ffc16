"""Timers through the official client and nothing else: every way to set one, every verb, every verdict.

The broker's clock is virtual, so a test of thirty days takes a moment; what is due is due in real time as the
client says it. One broker serves all tests, each in a namespace of its own.
"""

from __future__ import annotations

import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from grpc import RpcError
from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Producer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.v5.exception import BadRequestException, NotFoundException

from tidewheel.testing.kit import Tidewheel
from tidewheel.testing.process import BrokerProcess

TOPIC = "timeouts"
HALF_AN_HOUR = timedelta(minutes=30)
LEVELS = [
    *(timedelta(seconds=count) for count in (1, 5, 10, 30)),
    *(timedelta(minutes=count) for count in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
    *(timedelta(hours=count) for count in (1, 2)),
]
A_MOMENT = timedelta(seconds=2)
SLACK = timedelta(seconds=5)
"""How long a call may take on a busy machine."""
RECONNECT_SECONDS = 20


class Shop:
    """The official client in one namespace, and the clock."""

    def __init__(
        self, tidewheel: Tidewheel, process: BrokerProcess, new_message: Any, take: Any, stack: ExitStack
    ) -> None:
        self.tidewheel, self._process, self._stack = tidewheel, process, stack
        self._new_message, self._take = new_message, take
        self._configuration = ClientConfiguration(tidewheel.endpoint, Credentials(), tidewheel.namespace)
        self.producer = self._started(Producer(self._configuration, (TOPIC,), checker=Undecided()))

    def message(self, body: str, delivery: timedelta | None = None, **given: str) -> Any:
        """A message with user properties; `delivery` is the protocol's timestamp, from now."""
        message = self._new_message(TOPIC, body)
        if delivery is not None:
            message.delivery_timestamp = int(time.time() + delivery.total_seconds())
        for name, value in given.items():
            message.add_property(name, value)
        return message

    def send(self, body: str, delivery: timedelta | None = None, **given: str) -> Any:
        """Send a message and return its receipt."""
        return self.producer.send(self.message(body, delivery, **given))

    def recall(self, handle: str, topic: str = TOPIC) -> str:
        """Recall by a handle and return the message id."""
        return str(self.producer.recall_message(topic, handle))

    def taken(self, count: int, *, fired: str = "") -> list[Any]:
        """Receive and acknowledge so many messages, by their bodies; one that was fired may be early."""
        consumer = SimpleConsumer(self._configuration, "shop", {TOPIC: FilterExpression("*")}, 5)
        with ExitStack() as stack:
            consumer.startup()
            stack.callback(consumer.shutdown)
            got: list[Any] = self._take(consumer, count)
        early = [one.body.decode() for one in got if one.decode_message_timestamp < one.delivery_timestamp]
        assert early == ([fired] if fired else [])
        return sorted(got, key=lambda one: one.body)

    def bodies(self, count: int, *, fired: str = "") -> list[str]:
        """The bodies of so many messages."""
        return [one.body.decode() for one in self.taken(count, fired=fired)]

    def stored(self, topic: str = TOPIC) -> list[str]:
        """The bodies of everything that was delivered to the topic, in its order."""
        return [one["body"] for one in self.records(topic)]

    def records(self, topic: str = TOPIC) -> list[Any]:
        """Everything that was delivered to the topic, as the JSON interface shows it."""
        path = "/api/topics/" + quote(f"{self.tidewheel.namespace}%{topic}", safe="")
        queues = self._process.get(path)["queues"]
        after = ",".join(f"{queue['queue_id']}:{queue['min_offset']}" for queue in queues)
        return list(self._process.get(f"{path}/arrivals", after=after, limit="1000")["messages"])

    def post(self, path: str, **body: str) -> Any:
        """Hand something in over the JSON interface."""
        return self._process.post(path, {"topic": f"{self.tidewheel.namespace}%{TOPIC}", **body})

    def restart(self, *, crash: bool = False) -> None:
        """Start the broker again, and let the client find it again in its own time."""
        if crash:
            self.tidewheel.crash()
        self.tidewheel.restart()
        ends = time.monotonic() + RECONNECT_SECONDS
        while not self._is_answered():
            assert time.monotonic() < ends, "the client does not find the broker again"
            time.sleep(0.05)

    def _is_answered(self) -> bool:
        """Whether what cannot be is refused again: recalls and sends go over connections of their own."""
        try:
            with pytest.raises(BadRequestException):
                self.recall("nonsense")
            with pytest.raises(BadRequestException):
                self.send("probe", DELAY="nonsense")
        except RpcError:
            return False
        return True

    def due_in(self) -> list[timedelta]:
        """In how long each waiting timer is due."""
        return [one.due_in for one in self.tidewheel.pending()]

    def _started(self, client: Any) -> Any:
        client.startup()
        self._stack.callback(client.shutdown)
        return client


class Undecided(TransactionChecker):
    """Never knows how a transaction ended."""

    def check(self, message: Any) -> Any:
        return TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED


@pytest.fixture
def shop(
    tidewheel: Tidewheel, tidewheel_process: BrokerProcess, new_message: Any, take: Any
) -> Iterator[Shop]:
    """A producer and a consumer of the official client."""
    with ExitStack() as stack:
        yield Shop(tidewheel, tidewheel_process, new_message, take, stack)


def in_ms(delay: timedelta) -> str:
    """A moment in milliseconds since 1970."""
    return str(time.time_ns() // 1_000_000 + round(delay.total_seconds() * 1000))


# How a timer is set


WAYS: dict[str, Callable[[timedelta], dict[str, Any]]] = {
    "delivery timestamp": lambda delay: {"delivery": delay},
    "__STARTDELIVERTIME": lambda delay: {"__STARTDELIVERTIME": in_ms(delay)},
    "TIMER_DELIVER_MS": lambda delay: {"TIMER_DELIVER_MS": in_ms(delay)},
    "TIMER_DELAY_SEC": lambda delay: {"TIMER_DELAY_SEC": str(int(delay.total_seconds()))},
    "TIMER_DELAY_MS": lambda delay: {"TIMER_DELAY_MS": str(int(delay.total_seconds()) * 1000)},
}


@pytest.mark.parametrize("delay", [HALF_AN_HOUR, timedelta(days=30)], ids=["30 minutes", "30 days"])
@pytest.mark.parametrize("way", WAYS)
def test_a_message_arrives_when_it_was_said_and_not_before(shop: Shop, way: str, delay: timedelta) -> None:
    receipt = shop.send("x", **WAYS[way](delay))
    [waiting] = shop.tidewheel.pending()
    assert waiting.message_id == receipt.message_id
    assert delay - SLACK < waiting.due_in <= delay
    shop.tidewheel.advance(waiting.due_in - A_MOMENT)
    assert len(shop.tidewheel.pending()) == 1
    assert shop.stored() == []
    shop.tidewheel.advance(A_MOMENT)
    [got] = shop.taken(1)
    assert (got.body, got.message_id) == (b"x", receipt.message_id)
    assert not got.properties
    assert shop.due_in() == []


def test_a_message_of_nine_years_arrives(shop: Shop) -> None:
    nine_years = timedelta(days=9 * 365)
    receipts = [shop.send(way, **WAYS[way](nine_years)) for way in WAYS]
    shop.tidewheel.advance("3284d")
    assert {one.message_id for one in shop.tidewheel.pending()} == {one.message_id for one in receipts}
    shop.tidewheel.advance("1d")
    assert shop.bodies(len(WAYS)) == sorted(WAYS)


def test_each_level_of_rocketmq_4_has_its_pause(shop: Shop) -> None:
    for level in range(len(LEVELS), 0, -1):
        shop.send(f"{level:02}", DELAY=str(level))
    while waiting := shop.tidewheel.pending():
        first = waiting[0]
        if first.due_in > A_MOMENT:
            shop.tidewheel.advance(first.due_in - A_MOMENT)
            assert first.message_id in {one.message_id for one in shop.tidewheel.pending()}
        shop.tidewheel.advance(A_MOMENT)
    got = shop.taken(len(LEVELS))
    assert [one.body for one in got] == [b"%02d" % level for level in range(1, len(LEVELS) + 1)]
    for one, pause in zip(got, LEVELS, strict=True):
        took = timedelta(milliseconds=one.delivery_timestamp - one.born_timestamp)
        assert pause <= took < pause + A_MOMENT, one.body


def test_a_level_above_the_last_is_the_last_and_level_0_is_none(shop: Shop) -> None:
    shop.send("last", DELAY="19")
    shop.send("none", DELAY="0")
    assert shop.bodies(1) == ["none"]
    [due_in] = shop.due_in()
    assert LEVELS[-1] - SLACK < due_in <= LEVELS[-1]


@pytest.mark.parametrize("name", ["__STARTDELIVERTIME", "TIMER_DELIVER_MS"])
def test_a_time_that_has_passed_means_at_once(shop: Shop, name: str) -> None:
    shop.send("now", **{name: in_ms(-HALF_AN_HOUR)})
    assert shop.bodies(1) == ["now"]


def test_a_delay_counts_from_the_brokers_now_however_far_its_clock_was_advanced(shop: Shop) -> None:
    shop.tidewheel.advance("3h")
    for number, way in enumerate(WAYS):
        shop.send(str(number), **WAYS[way](HALF_AN_HOUR))
    assert all(HALF_AN_HOUR - SLACK < due_in <= HALF_AN_HOUR for due_in in shop.due_in())
    shop.tidewheel.advance(HALF_AN_HOUR)
    assert shop.bodies(len(WAYS)) == [str(number) for number in range(len(WAYS))]


@pytest.mark.parametrize(
    "given",
    [
        {"DELAY": "-1"},
        {"DELAY": "soon"},
        {"TIMER_DELAY_SEC": "-1"},
        {"TIMER_DELAY_SEC": "1.5"},
        {"TIMER_DELAY_MS": "30m"},
        {"TIMER_DELAY_SEC": "9" * 18},
        {"TIMER_DELAY_MS": "9" * 30},
        {"TIMER_DELAY_SEC": str(11 * 366 * 86_400)},
        {"TIMER_DELIVER_MS": "-1"},
        {"TIMER_DELIVER_MS": "1763700000"},
        {"TIMER_DELIVER_MS": "9" * 18},
        {"__STARTDELIVERTIME": "tomorrow"},
        {"__STARTDELIVERTIME": "9" * 18},
        {"delivery": timedelta(days=11 * 366)},
        {"DELAY": "3", "TIMER_DELAY_SEC": "60"},
        {"delivery": HALF_AN_HOUR, "DELAY": "3"},
    ],
    ids=str,
)
def test_a_time_that_cannot_be_is_refused_and_nothing_is_stored(shop: Shop, given: dict[str, Any]) -> None:
    with pytest.raises(BadRequestException, match="TW-138"):
        shop.send("x", **given)
    assert shop.due_in() == []
    assert shop.stored() == []


def test_a_delay_inside_a_transaction_begins_with_the_send_and_needs_the_commit(shop: Shop) -> None:
    """The client refuses a delivery timestamp there; a property passes it."""
    transaction = shop.producer.begin_transaction()
    shop.producer.send(shop.message("x", TIMER_DELAY_SEC="1800"), transaction)
    assert shop.due_in() == []
    transaction.commit()
    [due_in] = shop.due_in()
    assert HALF_AN_HOUR - SLACK < due_in <= HALF_AN_HOUR
    shop.tidewheel.advance(due_in)
    assert shop.bodies(1) == ["x"]


# The client's own retry


class Lossy:
    """Loses the first answer, after the broker has given it; what happens then is up to `between`."""

    def __init__(self, producer: Any, between: Callable[[], None]) -> None:
        self._send, self._between = producer.rpc_client.send_message_async, between
        self.message_ids: list[str] = []

    def __call__(self, endpoints: Any, request: Any, *more: Any, **named: Any) -> Any:
        if request.messages[0].body == b"probe":
            return self._send(endpoints, request, *more, **named)
        self.message_ids += [message.system_properties.message_id for message in request.messages]
        answer = self._send(endpoints, request, *more, **named)
        if len(self.message_ids) > 1:
            return answer
        assert answer.result().entries[0].recall_handle
        self._between()
        lost: Future[Any] = Future()
        lost.set_exception(ConnectionError("the answer is lost"))
        return lost


@pytest.mark.parametrize("way", WAYS)
def test_a_send_that_the_client_repeats_makes_one_timer(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    lossy = Lossy(shop.producer, lambda: time.sleep(0.01))
    monkeypatch.setattr(shop.producer.rpc_client, "send_message_async", lossy)
    receipt = shop.send("once", **WAYS[way](HALF_AN_HOUR))
    assert lossy.message_ids == [receipt.message_id] * 2
    assert [one.message_id for one in shop.tidewheel.pending()] == [receipt.message_id]
    assert shop.recall(receipt.recall_handle) == receipt.message_id
    assert shop.due_in() == []


def test_a_send_repeated_after_a_crash_makes_one_timer(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    lossy = Lossy(shop.producer, lambda: shop.restart(crash=True))
    monkeypatch.setattr(shop.producer.rpc_client, "send_message_async", lossy)
    shop.send("once", TIMER_DELAY_SEC="1800")
    assert len(set(lossy.message_ids)) == 1
    assert len(lossy.message_ids) > 1
    assert len(shop.due_in()) == 1
    shop.tidewheel.advance(HALF_AN_HOUR)
    assert shop.bodies(1) == ["once"]
    assert shop.stored() == ["once"]


# Recall


def test_a_recalled_message_does_not_arrive_and_recalling_it_again_is_fine(shop: Shop) -> None:
    receipt = shop.send("recalled", HALF_AN_HOUR)
    shop.send("kept", HALF_AN_HOUR)
    for _ in range(2):
        assert shop.recall(receipt.recall_handle) == receipt.message_id
    shop.tidewheel.advance(HALF_AN_HOUR)
    assert shop.bodies(1) == ["kept"]
    assert shop.stored() == ["kept"]
    assert shop.recall(receipt.recall_handle) == receipt.message_id


def test_a_message_is_recalled_after_a_crash(shop: Shop) -> None:
    receipt = shop.send("recalled", HALF_AN_HOUR)
    shop.restart(crash=True)
    assert shop.recall(receipt.recall_handle) == receipt.message_id
    assert shop.due_in() == []
    shop.restart()
    assert shop.recall(receipt.recall_handle) == receipt.message_id
    shop.tidewheel.advance("1h")
    assert shop.stored() == []


def test_a_message_that_was_delivered_is_not_recalled(shop: Shop) -> None:
    receipt = shop.send("gone", HALF_AN_HOUR)
    shop.tidewheel.advance(HALF_AN_HOUR)
    for _ in range(2):
        with pytest.raises(Exception, match=r"TW-162 .*TOO_LATE.* was delivered at"):
            shop.recall(receipt.recall_handle)
        shop.restart()
    assert shop.bodies(1) == ["gone"]


def test_a_delivery_older_than_the_history_is_forgotten(shop: Shop) -> None:
    receipt = shop.send("gone", HALF_AN_HOUR)
    shop.tidewheel.advance("9d")
    shop.restart()
    with pytest.raises(NotFoundException, match="FORGOTTEN"):
        shop.recall(receipt.recall_handle)


def forged(handle: str, **fields: str) -> str:
    """A handle with other fields."""
    names = ("version", "topic", "broker", "due_ms", "message_id")
    given = dict(zip(names, urlsafe_b64decode(handle).decode().split(" "), strict=True))
    return urlsafe_b64encode(" ".join((given | fields).values()).encode()).decode()


def test_a_handle_that_nobody_gave_out_recalls_nothing(shop: Shop) -> None:
    handle = shop.send("kept", HALF_AN_HOUR).recall_handle
    for nonsense in ("nonsense", handle[:-1], forged(handle, version="v9"), forged(handle, due_ms="soon")):
        with pytest.raises(BadRequestException, match="TW-147"):
            shop.recall(nonsense)
    for message_id in ("0123", "0" * 34):
        with pytest.raises(NotFoundException, match="NEVER_SET"):
            shop.recall(forged(handle, message_id=message_id))
    assert len(shop.due_in()) == 1


def test_a_handle_of_another_topic_recalls_nothing(shop: Shop) -> None:
    receipt = shop.send("kept", HALF_AN_HOUR)
    with pytest.raises(BadRequestException, match="TW-147"):
        shop.recall(receipt.recall_handle, "other")
    other = f"{shop.tidewheel.namespace}%other"
    with pytest.raises(NotFoundException, match="NEVER_SET"):
        shop.recall(forged(receipt.recall_handle, topic=other), "other")
    assert len(shop.due_in()) == 1


# Verbs as properties


def verdict(shop: Shop, body: str, **given: str) -> str:
    """Send a message that carries a verb and return the verdict on it, as its consumer sees it."""
    message_id = shop.send(body, **given).message_id
    [record] = [one for one in shop.records() if one["message_id"] == message_id]
    return str(record["properties"]["TW_TIMER_VERDICT"]).split()[0]


@pytest.fixture(params=["key", "message id"])
def order(request: pytest.FixtureRequest, shop: Shop) -> str:
    """A timer of half an hour; what a verb may call it by."""
    receipt = shop.send("order", HALF_AN_HOUR, TW_TIMER_KEY="order-1")
    return "order-1" if request.param == "key" else str(receipt.message_id)


def test_a_property_cancels(shop: Shop, order: str) -> None:
    assert verdict(shop, "paid", TW_TIMER_CANCEL=order) == "CANCELLED"
    assert shop.due_in() == []
    assert verdict(shop, "paid again", TW_TIMER_CANCEL=order) == "ALREADY"
    shop.tidewheel.advance("1h")
    paid, again = shop.taken(2)
    assert paid.properties["TW_TIMER_VERDICT"].startswith("CANCELLED")
    assert again.properties["TW_TIMER_VERDICT"].startswith("ALREADY")
    assert sorted(shop.stored()) == ["paid", "paid again"]


@pytest.mark.parametrize("to", ["2h", "a moment"])
def test_a_property_moves(shop: Shop, order: str, to: str) -> None:
    two_hours = timedelta(hours=2)
    shop.tidewheel.advance("10m")
    when = in_ms(two_hours) if to == "a moment" else to
    assert verdict(shop, "wait", TW_TIMER_MOVE=order, TW_TIMER_TO=when) == "MOVED"
    [due_in] = shop.due_in()
    assert two_hours - SLACK < due_in <= two_hours
    shop.tidewheel.advance(due_in - A_MOMENT)
    assert shop.stored() == ["wait"]
    shop.tidewheel.advance(A_MOMENT)
    assert shop.bodies(2) == ["order", "wait"]


def test_a_property_fires(shop: Shop, order: str) -> None:
    assert verdict(shop, "now", TW_TIMER_FIRE=order) == "FIRED"
    assert shop.due_in() == []
    assert shop.bodies(2, fired="order") == ["now", "order"]
    assert verdict(shop, "again", TW_TIMER_FIRE=order) == "TOO_LATE"
    shop.tidewheel.advance("1h")
    assert sorted(shop.stored()) == ["again", "now", "order"]


@pytest.mark.parametrize(
    "verb",
    [{"TW_TIMER_CANCEL": ""}, {"TW_TIMER_FIRE": ""}, {"TW_TIMER_MOVE": "", "TW_TIMER_TO": "30m"}],
    ids=["cancel", "fire", "move"],
)
def test_a_verb_after_the_delivery_is_too_late(shop: Shop, order: str, verb: dict[str, str]) -> None:
    shop.tidewheel.advance(HALF_AN_HOUR)
    named = {name: value or order for name, value in verb.items()}
    assert verdict(shop, "late", **named) == "TOO_LATE"
    assert sorted(shop.stored()) == ["late", "order"]
    assert shop.due_in() == []


@pytest.mark.parametrize(
    "verb",
    [{"TW_TIMER_CANCEL": ""}, {"TW_TIMER_FIRE": ""}, {"TW_TIMER_MOVE": "", "TW_TIMER_TO": "30m"}],
    ids=["cancel", "fire", "move"],
)
def test_a_verb_on_what_was_never_set_says_so(shop: Shop, verb: dict[str, str]) -> None:
    named = {name: value or "nobody" for name, value in verb.items()}
    assert verdict(shop, "x", **named) == "NEVER_SET"
    assert shop.stored() == ["x"]


def test_a_verb_names_a_timer_of_another_topic(shop: Shop) -> None:
    elsewhere = shop.message("push", HALF_AN_HOUR, TW_TIMER_KEY="k")
    elsewhere.topic = "pushes"
    shop.producer.send(elsewhere)
    assert verdict(shop, "here", TW_TIMER_CANCEL="k") == "NEVER_SET"
    assert verdict(shop, "there", TW_TIMER_CANCEL="k", TW_TIMER_TOPIC="pushes") == "CANCELLED"
    assert shop.due_in() == []
    got = {one.body: one.properties for one in shop.taken(2)}
    assert got[b"there"]["TW_TIMER_TOPIC"] == "pushes"


def test_a_verb_inside_a_transaction_waits_for_the_commit(shop: Shop, order: str) -> None:
    rolled_back, committed = shop.producer.begin_transaction(), shop.producer.begin_transaction()
    shop.producer.send(shop.message("not paid", TW_TIMER_CANCEL=order), rolled_back)
    rolled_back.rollback()
    shop.producer.send(shop.message("paid", TW_TIMER_CANCEL=order), committed)
    assert len(shop.due_in()) == 1
    committed.commit()
    assert shop.due_in() == []
    [paid] = shop.taken(1)
    assert paid.properties["TW_TIMER_VERDICT"].startswith("CANCELLED")
    shop.tidewheel.advance("1h")
    assert shop.stored() == ["paid"]


@pytest.mark.parametrize(
    ("verb", "stored"),
    [
        ({"TW_TIMER_CANCEL": "order-1"}, {"carrier"}),
        ({"TW_TIMER_MOVE": "order-1", "TW_TIMER_TO": "2h"}, {"carrier", "order"}),
        ({"TW_TIMER_FIRE": "order-1"}, {"carrier", "order"}),
    ],
    ids=["cancel", "move", "fire"],
)
@pytest.mark.parametrize("delayed", [False, True], ids=["at once", "delayed"])
def test_what_a_property_did_is_done_once_and_holds_after_a_crash(
    shop: Shop, verb: dict[str, str], stored: set[str], delayed: bool
) -> None:
    """The message that carries the verb may be a timer itself, and be moved in its turn."""
    shop.send("order", HALF_AN_HOUR, TW_TIMER_KEY="order-1")
    shop.send("carrier", timedelta(hours=1) if delayed else None, **verb, TW_TIMER_KEY="carrier")
    if delayed:
        shop.send("another", timedelta(hours=4), TW_TIMER_KEY="order-1")
        assert verdict(shop, "mover", TW_TIMER_MOVE="carrier", TW_TIMER_TO="90m") == "MOVED"
        stored = stored | {"mover"}
    if delayed and "TW_TIMER_MOVE" in verb:
        stored = stored - {"order"}  # another has taken its place
    shop.restart(crash=True)
    shop.tidewheel.advance("3h")
    assert sorted(shop.stored()) == sorted(stored)
    assert len(shop.due_in()) == delayed


def test_a_delayed_message_in_a_transaction_carries_a_verb(shop: Shop, order: str) -> None:
    transaction = shop.producer.begin_transaction()
    half = shop.message("reminder", TIMER_DELAY_SEC="3600", TW_TIMER_CANCEL=order, TW_TIMER_KEY="reminder-1")
    shop.producer.send(half, transaction)
    assert len(shop.due_in()) == 1
    transaction.commit()
    [due_in] = shop.due_in()
    assert timedelta(hours=1) - SLACK < due_in <= timedelta(hours=1)
    shop.restart(crash=True)
    assert verdict(shop, "sooner", TW_TIMER_MOVE="reminder-1", TW_TIMER_TO="1m") == "MOVED"
    shop.tidewheel.advance("2m")
    assert sorted(shop.stored()) == ["reminder", "sooner"]
    reminder, _ = shop.taken(2)
    assert reminder.properties["TW_TIMER_VERDICT"].startswith("CANCELLED")


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"TW_TIMER_CANCEL": "a", "TW_TIMER_FIRE": "b"}, "TW-135"),
        ({"TW_TIMER_MOVE": "a"}, "TW-135"),
        ({"TW_TIMER_CANCEL": "a", "TW_TIMER_TO": "30m"}, "TW-135"),
        ({"TW_TIMER_CANCEL": "k" * 1_000}, "TW-135"),
        ({"TW_TIMER_TOPIC": "t"}, "TW-135"),
        ({"TW_TIMER_VERDICT": "CANCELLED"}, "TW-135"),
        ({"TW_TIMER_MOVE": "order-1", "TW_TIMER_TO": "soon"}, "TW-138"),
        ({"TW_TIMER_MOVE": "order-1", "TW_TIMER_TO": "-5m"}, "TW-138"),
        ({"TW_TIMER_MOVE": "order-1", "TW_TIMER_TO": "1763700000"}, "TW-138"),
        ({"TW_TIMER_MOVE": "order-1", "TW_TIMER_TO": "4026d"}, "TW-138"),
        ({"TW_TIMER_MOVE": "order-1", "TW_TIMER_TO": "9" * 18}, "TW-138"),
    ],
    ids=lambda given: str(given)[:60],
)
def test_a_verb_that_cannot_be_is_refused_and_nothing_is_stored(
    shop: Shop, given: dict[str, str], code: str
) -> None:
    shop.send("order", HALF_AN_HOUR, TW_TIMER_KEY="order-1")
    with pytest.raises(BadRequestException, match=code):
        shop.send("x", **given)
    [due_in] = shop.due_in()
    assert HALF_AN_HOUR - SLACK < due_in <= HALF_AN_HOUR
    assert shop.stored() == []


# Recall after a move


@pytest.fixture(params=["property", "JSON"])
def move(request: pytest.FixtureRequest, shop: Shop) -> Callable[[str, str], None]:
    """Moves a timer by its message id to so long from now."""

    def by_property(message_id: str, to: str) -> None:
        assert verdict(shop, f"move {message_id}", TW_TIMER_MOVE=message_id, TW_TIMER_TO=to) == "MOVED"

    def by_json(message_id: str, to: str) -> None:
        assert shop.post("/api/timers/move", id=message_id, to=to)["verdict"] == "MOVED"

    return by_property if request.param == "property" else by_json


@pytest.mark.parametrize("to", ["2h", "5m"], ids=["later", "sooner"])
def test_a_moved_message_is_recalled_by_the_handle_of_its_send(
    shop: Shop, move: Callable[[str, str], None], to: str
) -> None:
    receipt = shop.send("moved", HALF_AN_HOUR)
    move(receipt.message_id, to)
    move(receipt.message_id, to)
    assert len(shop.due_in()) == 1
    shop.restart()
    for _ in range(2):
        assert shop.recall(receipt.recall_handle) == receipt.message_id
    shop.tidewheel.advance("3h")
    assert "moved" not in shop.stored()


def test_a_moved_message_that_was_delivered_is_not_recalled(
    shop: Shop, move: Callable[[str, str], None]
) -> None:
    receipt = shop.send("moved", HALF_AN_HOUR)
    move(receipt.message_id, "2h")
    shop.tidewheel.advance("2h")
    with pytest.raises(Exception, match=r"TW-162 .*TOO_LATE.* was delivered at"):
        shop.recall(receipt.recall_handle)
    assert shop.stored().count("moved") == 1


# Keys


def test_a_timer_with_a_key_replaces_the_one_that_waits(shop: Shop) -> None:
    replaced = shop.send("first", HALF_AN_HOUR, TW_TIMER_KEY="order-1")
    shop.send("second", timedelta(hours=1), TW_TIMER_KEY="order-1")
    shop.send("other", timedelta(hours=1), TW_TIMER_KEY="order-2")
    assert len(shop.due_in()) == 2
    assert shop.recall(replaced.recall_handle) == replaced.message_id
    shop.tidewheel.advance("1h")
    assert shop.bodies(2) == ["other", "second"]
    assert sorted(shop.stored()) == ["other", "second"]


def test_the_key_of_a_timer_that_has_ended_is_free(shop: Shop) -> None:
    for number in range(3):
        shop.send(str(number), HALF_AN_HOUR, TW_TIMER_KEY="order-1", TW_TIMER_UNIQUE="true")
        shop.tidewheel.advance(HALF_AN_HOUR)
    assert shop.bodies(3) == ["0", "1", "2"]


def test_a_unique_timer_is_refused_while_its_key_waits(shop: Shop) -> None:
    first = shop.send("first", HALF_AN_HOUR, TW_TIMER_KEY="order-1")
    with pytest.raises(Exception, match="order-1"):
        shop.send("second", timedelta(hours=1), TW_TIMER_KEY="order-1", TW_TIMER_UNIQUE="true")
    assert [one.message_id for one in shop.tidewheel.pending()] == [first.message_id]
    shop.tidewheel.advance("2h")
    assert shop.bodies(1) == ["first"]
    assert shop.stored() == ["first"]


@pytest.mark.parametrize("unique", [{}, {"TW_TIMER_UNIQUE": "true"}], ids=["upsert", "unique"])
def test_a_repeated_send_with_a_key_makes_one_timer(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, unique: dict[str, str]
) -> None:
    monkeypatch.setattr(shop.producer.rpc_client, "send_message_async", Lossy(shop.producer, lambda: None))
    receipt = shop.send("once", TIMER_DELAY_SEC="1800", TW_TIMER_KEY="order-1", **unique)
    assert [one.message_id for one in shop.tidewheel.pending()] == [receipt.message_id]
    assert verdict(shop, "paid", TW_TIMER_CANCEL="order-1") == "CANCELLED"


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"TW_TIMER_KEY": "k" * 1_000}, "TW-134"),
        ({"TW_TIMER_KEY": "k", "TW_TIMER_UNIQUE": "yes"}, "TW-135"),
        ({"TW_TIMER_UNIQUE": "true"}, "TW-135"),
    ],
    ids=["long", "yes", "keyless"],
)
def test_a_key_that_cannot_be_is_refused_and_nothing_is_stored(
    shop: Shop, given: dict[str, str], code: str
) -> None:
    with pytest.raises(BadRequestException, match=code):
        shop.send("x", HALF_AN_HOUR, **given)
    assert shop.due_in() == []


def test_a_timer_with_a_key_is_found_after_a_crash(shop: Shop) -> None:
    shop.send("order", HALF_AN_HOUR, TW_TIMER_KEY="order-1")
    shop.restart(crash=True)
    assert verdict(shop, "paid", TW_TIMER_CANCEL="order-1") == "CANCELLED"
    shop.tidewheel.advance("1h")
    assert shop.stored() == ["paid"]
