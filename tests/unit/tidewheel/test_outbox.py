"""The outbox on real databases; the producer is a double here, a real one is in the endurance tests."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from ssl import SSLCertVerificationError
from typing import TYPE_CHECKING, Any

import pytest
from rocketmq import Message
from rocketmq.v5.exception import NotFoundException
from sqlalchemy import create_engine, event, insert, select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import sessionmaker

from tidewheel import Client, NewMessage, Timer, outbox, outbox_relay
from tidewheel.errors import (
    AccessRefused,
    BodyEmpty,
    BodyTooLarge,
    BrokerUnreachable,
    Busy,
    ClientMistake,
    ConfigurationError,
    IllegalDeliveryTime,
    IllegalKey,
    IllegalMessageGroup,
    IllegalProperty,
    IllegalTag,
    IllegalTopic,
    NotFound,
    PropertiesTooLarge,
    UnknownChoice,
)
from tidewheel.idempotence import once
from tidewheel.outbox import OUTBOX_ID, Counts, Relay, Round, outbox_sql, outbox_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine


class Producing:
    """A producer that writes down what it is given, and refuses what it is told to."""

    def __init__(self, *refused: bytes) -> None:
        self.sent: list[Message] = []
        self.refused = set(refused)
        self.inside: Callable[[Message], object] = lambda message: None

    def send(self, message: Message) -> None:
        self.inside(message)
        if message.body in self.refused:
            raise ConnectionError("no broker")
        self.sent.append(message)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.sent]


def once_only(step: Callable[[], object]) -> Callable[[object], object]:
    """Return what carries out a step when it is called first."""
    steps = [step]
    return lambda _: steps and steps.pop()()


@pytest.fixture
def engine(database: Engine) -> Engine:
    outbox.create_table(database)
    return database


def message(body: bytes, key: str = "", group: str = "") -> Message:
    made = Message()
    made.topic, made.body = "orders", body
    if key:
        made.keys = key
    if group:
        made.message_group = group
    return made


def add(engine: Engine, *messages: Message) -> None:
    with sessionmaker(engine).begin() as session:
        for one in messages:
            outbox.add(session, one)


def relay(engine: Engine, producer: Producing, **settings: Any) -> Relay:
    return Relay(engine, producer, **settings)


def rows(engine: Engine) -> list[Any]:
    with engine.connect() as connection:
        return list(connection.execute(select(outbox_table).order_by(outbox_table.c.id)))


def test_a_message_comes_as_it_was_added(engine: Engine) -> None:
    full = message(b"paid", key="k1")
    full.keys = "k2"
    full.tag, full.delivery_timestamp = "t", 1_900_000_000
    full.add_property("colour", "blue ⌛")
    grouped = message(b"g", group="G")
    add(engine, full, grouped)
    producer = Producing()
    with relay(engine, producer) as sending:
        assert sending.run_once() == Round(2, 0)
        assert sending.run_once() == Round(0, 0)
    got, got_grouped = sorted(producer.sent, key=lambda one: one.body, reverse=True)
    assert (got.topic, got.body, got.tag, got.keys) == ("orders", b"paid", "t", {"k1", "k2"})
    assert (got.delivery_timestamp, got.properties["colour"]) == (1_900_000_000, "blue ⌛")
    assert got_grouped.message_group == "G"
    assert [row.outbox_id for row in rows(engine)] == [
        got.properties[OUTBOX_ID],
        got_grouped.properties[OUTBOX_ID],
    ]
    assert all(row.sent_ms for row in rows(engine))


def test_a_new_message_comes_by_the_official_producer_as_it_was_added(engine: Engine) -> None:
    timer = Timer("deadlines", "order:6", "ns%deadlines", lambda steps: steps)
    with sessionmaker(engine).begin() as session:
        at = datetime(2030, 1, 1, 0, 0, 0, 1, tzinfo=UTC)
        said = {"tag": "t", "keys": ["k"], "properties": {"by": "me"}}
        outbox.add(session, NewMessage("deadlines", {"a": 1}, at=at, key="order:7", unique=True, **said))
        outbox.add(session, NewMessage("paid", "ü", group="g", move=(timer, at)))
    producer = Producing()
    with relay(engine, producer) as sending:
        assert sending.run_once() == Round(2, 0)
    deadline, paid = sorted(producer.sent, key=lambda one: one.topic)
    assert (deadline.body, deadline.tag, deadline.keys) == (b'{"a":1}', "t", {"k"})
    assert deadline.delivery_timestamp == 1_893_456_001, "whole seconds, none of them early"
    assert without_id(deadline) == {
        "by": "me",
        "content-type": "application/json",
        "TW_TIMER_KEY": "order:7",
        "TW_TIMER_UNIQUE": "true",
    }
    assert (paid.body, paid.message_group) == ("ü".encode(), "g")
    assert without_id(paid) == {
        "TW_TIMER_MOVE": "order:6",
        "TW_TIMER_TOPIC": "ns%deadlines",
        "TW_TIMER_TO": "1893456000001",
    }
    assert [row.order_key for row in rows(engine)] == ["k", "g"]


def without_id(message: Message) -> dict[str, str]:
    return {name: value for name, value in message.properties.items() if name != OUTBOX_ID}


def test_spans_count_from_the_transaction(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "wall_clock_ms", lambda: 1_900_000_000_000)
    timer = Timer("deadlines", "order:6", "deadlines", lambda steps: steps)
    with sessionmaker(engine).begin() as session:
        outbox.add(session, NewMessage("a", "x", delay="30m", key="k"))
        outbox.add(session, NewMessage("b", "x", move=(timer, "1h")))
    delayed, moving = (json.loads(row.properties) for row in rows(engine))
    assert delayed == {"TIMER_DELIVER_MS": "1900001800000", "TW_TIMER_KEY": "k"}
    assert moving["TW_TIMER_TO"] == "1900003600000"


def test_a_client_sends_what_was_added_for_either(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    full = message(b"paid", key="k1")
    full.tag, full.delivery_timestamp = "t", 1_900_000_000
    add(engine, full)
    with sessionmaker(engine).begin() as session:
        outbox.add(session, NewMessage("orders", b"\xff", group="g"))
    sent: list[dict[str, Any]] = []
    client = Client("127.0.0.1:1", namespace="ns")
    monkeypatch.setattr(client, "run", lambda steps: sent.append(json.loads(next(steps).body)))
    with relay(engine, client) as sending:
        assert sending.run_once() == Round(2, 0)
    first, second = sorted(sent, key=lambda one: "tag" not in one)
    ids = [row.outbox_id for row in rows(engine)]
    assert [first["idempotency_key"], second["idempotency_key"]] == ids
    assert [one["properties"] for one in (first, second)] == [{OUTBOX_ID: one} for one in ids]
    assert (first["topic"], first["tag"], first["keys"]) == ("ns%orders", "t", ["k1"])
    assert first["at"] == 1_900_000_000_000
    assert (second["body_base64"], second["message_group"]) == ("/w==", "g")


def test_a_row_without_what_each_message_has_is_refused_by_the_database(engine: Engine) -> None:
    row = {"outbox_id": "1", "topic": "t", "keys": "[]", "properties": "{}", "body": b"x", "created_ms": 1}
    for name in row:
        with pytest.raises(DBAPIError), engine.begin() as connection:
            connection.execute(insert(outbox_table).values(row | {name: None}))


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (NewMessage("", "x"), IllegalTopic),
        (NewMessage("orders", ""), BodyEmpty),
        (NewMessage("orders", "x" * (4 * 1024 * 1024 + 1)), BodyTooLarge),
        (NewMessage("orders", "x", delay="30"), ClientMistake),
        (NewMessage("orders", "x", key="k"), ClientMistake),
        (NewMessage("orders", "x", idempotency_key="mine"), ClientMistake),
        (NewMessage("or\0ders", "x"), IllegalTopic),
        (NewMessage("TW_SYS_TOPIC", "x"), IllegalTopic),
        (NewMessage("orders", "x", at=datetime(2990, 1, 1, tzinfo=UTC)), IllegalDeliveryTime),
        (NewMessage("orders", "x", properties={"TIMER_DELAY_SEC": "-4"}), IllegalDeliveryTime),
        (NewMessage("orders", "x", properties={"TIMER_DELIVER_MS": "1900000000"}), IllegalDeliveryTime),
        (NewMessage("orders", "x", properties={"DELAY": "1", "TIMER_DELAY_SEC": "9"}), IllegalDeliveryTime),
        (NewMessage("orders", "x", tag="a|b"), IllegalTag),
        (NewMessage("orders", "x", tag="\0"), IllegalTag),
        (NewMessage("orders", "x", keys=["k", "  "]), IllegalKey),
        (NewMessage("orders", "x", keys=["a\nb"]), IllegalKey),
        (NewMessage("orders", "x", group=" "), IllegalMessageGroup),
        (NewMessage("orders", "x", group="g" * 64), IllegalMessageGroup),
        (NewMessage("orders", "x", delay="1m", key="k" * 129), IllegalKey),
        (NewMessage("orders", "x", properties={"KEYS": "k"}), IllegalProperty),
        (NewMessage("orders", "x", properties={"": "k"}), IllegalProperty),
        (NewMessage("orders", "x", properties={"a": "\x01"}), IllegalProperty),
        (NewMessage("orders", "x", properties={"a": "\ud800"}), ClientMistake),
        (NewMessage("orders", "x", properties={"a": 7}), ClientMistake),
        (NewMessage("orders", "x", properties={"a": "x" * 17_000}), PropertiesTooLarge),
        (NewMessage("orders", "x", keys=[f"{n} " for n in range(3_000)]), PropertiesTooLarge),
        (NewMessage("orders", "x", properties={f"p{n}": "" for n in range(128)}), PropertiesTooLarge),
    ],
)
def test_a_new_message_that_could_never_be_sent_is_refused_when_it_is_added(
    engine: Engine, bad: NewMessage, error: type[Exception]
) -> None:
    with sessionmaker(engine)() as session, pytest.raises(error):
        outbox.add(session, bad)


@pytest.mark.parametrize("name", ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "DELAY"])
@pytest.mark.parametrize("is_official", [True, False])
def test_a_delay_that_a_property_says_counts_from_add(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, name: str, is_official: bool
) -> None:
    """A row may wait for hours until a relay sends it."""
    now_ms, spans = 1_900_000_000_000, {"TIMER_DELAY_SEC": 3_000, "TIMER_DELAY_MS": 3, "DELAY": 10_000}
    monkeypatch.setattr(outbox, "wall_clock_ms", lambda: now_ms)
    official = message(b"x")
    official.add_property(name, "3")
    new = NewMessage("orders", b"x", properties={name: "3"})
    with sessionmaker(engine).begin() as session:
        outbox.add(session, official if is_official else new)
    [row] = rows(engine)
    assert json.loads(row.properties) == {"TIMER_DELIVER_MS": str(now_ms + spans[name])}


class Wrapped:
    """A connection of another library, such as django.db.connection."""

    def cursor(self) -> object:
        return object()


def test_a_session_of_another_kind_is_one_clear_sentence(engine: Engine) -> None:
    with engine.connect() as connection:
        for other in (Wrapped(), connection.connection.dbapi_connection, AsyncSession()):
            with pytest.raises(ClientMistake, match=r"takes a Session"):
                outbox.add(other, message(b"1"))
            with pytest.raises(ClientMistake, match=r"takes a Session"), once(other, "g", "orders/M1"):
                pass
        outbox.add(connection, message(b"1"))


@pytest.mark.parametrize("opened", ["session", "connection"])
def test_an_engine_that_commits_each_statement_is_refused(engine: Engine, opened: str) -> None:
    eager = engine.execution_options(isolation_level="AUTOCOMMIT")
    with sessionmaker(eager)() if opened == "session" else eager.connect() as session:
        with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
            outbox.add(session, message(b"x"))
        session.rollback()
    assert rows(engine) == []


def test_a_transaction_that_rolls_back_sends_nothing(engine: Engine) -> None:
    with sessionmaker(engine)() as session:
        outbox.add(session, message(b"x"))
        session.rollback()
    with relay(engine, Producing()) as sending:
        assert sending.run_once() == Round(0, 0)


def test_a_savepoint_of_a_transaction_that_rolls_back_sends_nothing(engine: Engine) -> None:
    """Also where the savepoint comes first, before which Python's sqlite3 begins no transaction."""
    with sessionmaker(engine)() as session:
        with session.begin_nested():
            outbox.add(session, message(b"1"))
        session.rollback()
    assert rows(engine) == []


def test_a_keys_rows_go_out_in_order_also_over_batches(engine: Engine) -> None:
    add(engine, *(message(f"{key}{number:02}".encode(), key) for number in range(20) for key in "abc"))
    producer = Producing()
    with relay(engine, producer, batch=7) as sending:
        while sending.run_once().sent:
            pass
    for key in "abc":
        mine = [body for body in producer.bodies if body.startswith(key.encode())]
        assert mine == [f"{key}{number:02}".encode() for number in range(20)]


def test_a_row_that_fails_holds_back_its_key_only_and_says_why(engine: Engine) -> None:
    add(engine, message(b"a1", "a"), message(b"a2", "a"), message(b"b1", "b"), message(b"lone"))
    producer, now_ms = Producing(b"a1"), [1_000]
    with relay(engine, producer, clock_ms=lambda: now_ms[0]) as sending:
        assert sending.run_once() == Round(2, 1)
        assert sorted(producer.bodies) == [b"b1", b"lone"]
        assert sending.run_once() == Round(0, 0)
        first = rows(engine)[0]
        assert (first.attempts, first.last_error, first.retry_ms) == (1, "no broker", 1_500)
        producer.refused.clear()
        now_ms[0] = 1_500
        assert sending.run_once() == Round(2, 0)
    assert producer.bodies[2:] == [b"a1", b"a2"]


def refuse(error: Exception) -> Callable[[Message], object]:
    def inside(one: Message) -> None:
        if one.body.startswith(b"bad"):
            raise error

    return inside


@pytest.mark.parametrize("key", ["a\0b", "\ud800", 7])
def test_a_key_of_the_order_that_a_database_cannot_keep_is_refused(engine: Engine, key: Any) -> None:
    with sessionmaker(engine).begin() as session, pytest.raises(ClientMistake):
        outbox.add(session, message(b"1"), key)
    assert rows(engine) == []


REFUSALS = [NotFound("No topic."), ClientMistake("No."), NotFoundException("no topic")]


@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: type(error).__name__)
def test_a_row_that_is_refused_is_parked_and_can_be_brought_back(engine: Engine, error: Exception) -> None:
    add(engine, message(b"bad", "a"), message(b"a2", "a"), message(b"bad lone"))
    producer, now_ms = Producing(), [1_000]
    producer.inside = refuse(error)
    with relay(engine, producer, clock_ms=lambda: now_ms[0], park_after=3) as sending:
        for _ in range(3):
            assert sending.run_once() == Round(0, 2)
            now_ms[0] += 60_000
        assert sending.run_once() == Round(1, 0)
        assert producer.bodies == [b"a2"]
        bad, lone = outbox.parked(engine)
        assert (bad.body, bad.order_key, bad.attempts, bad.parked_ms) == (b"bad", "a", 3, 121_000)
        assert bad.last_error == str(error)
        assert outbox.counts(engine) == Counts(0, 2, None)
        assert outbox.replay(engine, [bad.id, 999]) == 1
        assert outbox.replay(engine, [bad.id]) == 0
        assert outbox.counts(engine).waiting == 1
        assert [row.outbox_id for row in outbox.waiting(engine)] == [bad.outbox_id]
        assert [row.id for row in outbox.parked(engine)] == [lone.id]
        producer.inside = lambda _: None
        assert sending.run_once() == Round(1, 0)
    assert producer.bodies == [b"a2", b"bad"]
    assert outbox.row_of_id(engine, bad.id) is None
    assert outbox.row_of_id(engine, lone.id) == lone


def test_a_row_that_cannot_be_read_is_parked(engine: Engine) -> None:
    add(engine, message(b"1", "a"), message(b"2", "a"))
    with engine.begin() as connection:
        connection.execute(text("UPDATE tidewheel_outbox SET properties = '{' WHERE topic = 'orders'"))
        connection.execute(update(outbox_table).where(outbox_table.c.body == b"2").values(properties="{}"))
    producer = Producing()
    with relay(engine, producer, park_after=1) as sending:
        assert sending.run_once() == Round(0, 1)
        assert sending.run_once() == Round(1, 0)
    [bad] = outbox.parked(engine)
    assert "cannot be read" in str(bad.last_error)


DOWN = [
    BrokerUnreachable("It is down."),
    Busy("Later."),
    AccessRefused("No right."),
    ConnectionError("no broker"),
    SSLCertVerificationError("old"),
]


@pytest.mark.parametrize("error", DOWN, ids=lambda error: type(error).__name__)
def test_no_row_is_parked_while_no_broker_is_there(engine: Engine, error: Exception) -> None:
    add(engine, message(b"bad", "a"))
    producer, now_ms = Producing(), [1_000]
    producer.inside = refuse(error)
    with relay(engine, producer, clock_ms=lambda: now_ms[0], park_after=2) as sending:
        for _ in range(6):
            assert sending.run_once() == Round(0, 1)
            now_ms[0] += 60_000
        assert outbox.counts(engine).parked == 0
        producer.inside = lambda _: None
        assert sending.run_once() == Round(1, 0)


@pytest.mark.parametrize("error", DOWN, ids=lambda error: type(error).__name__)
def test_an_outage_counts_for_no_row_that_is_refused_after_it(engine: Engine, error: Exception) -> None:
    """Nor does one between two refusals: a row is parked for what the broker said about it."""
    add(engine, message(b"1", "a"), message(b"2", "a"))
    no_topic = NotFoundException("no topic", 404)
    fails, producer, now_ms = [*[error] * 12, no_topic, *[error] * 12, no_topic], Producing(), [1_000]

    def fail(_: Message) -> None:
        if fails:
            raise fails.pop(0)

    producer.inside = fail
    with relay(engine, producer, clock_ms=lambda: now_ms[0], park_after=3) as sending:
        while sending.run_once().failed:
            now_ms[0] += 60_000
    assert (producer.bodies, outbox.parked(engine)) == ([b"1", b"2"], [])


def test_a_key_is_in_one_hand_when_a_row_is_brought_back(engine: Engine) -> None:
    """A relay is sending rows 2 and 3 of a key; the parked row 1 is brought back."""
    add(engine, *(message(b"%d" % number, "k") for number in (1, 2, 3)))
    one, other = (outbox_relay.claims_of(engine, outbox_relay.LEASE_MS) for _ in range(2))
    with one.claim(100, 1_000) as (taken, marks):
        marks[taken[0].id] = {"attempts": 10, "retry_ms": -1_000, "last_error": "refused"}
    with one.claim(100, 1_000) as (taken, marks):
        assert [row.body for row in taken] == [b"2", b"3"]
        assert outbox.replay(engine, [row.id for row in outbox.parked(engine)]) == 1
        with other.claim(100, 1_000) as (others, _):
            assert others == []
        marks |= {row.id: {"sent_ms": 1_000} for row in taken}
    producer = Producing()
    with relay(engine, producer) as sending:
        assert sending.run_once() == Round(1, 0)
    assert producer.bodies == [b"1"]


def test_rows_that_are_brought_back_keep_their_order(engine: Engine) -> None:
    add(engine, *(message(b"bad %d" % number, "k") for number in range(4)))
    producer = Producing()
    producer.inside = refuse(ClientMistake("No."))
    with relay(engine, producer, park_after=1) as sending:
        while sending.run_once().failed:
            pass
        producer.inside = lambda _: None
        ids = [row.id for row in outbox.parked(engine)]
        assert outbox.replay(engine, reversed(ids)) == 4
        assert outbox.replay(engine, ids[:3]) == 0
        add(engine, message(b"later", "k"))
        sending.run_once()
    assert producer.bodies == [*(b"bad %d" % number for number in range(4)), b"later"]


def test_a_row_may_be_tried_for_ever(engine: Engine) -> None:
    add(engine, message(b"bad", "a"))
    producer, now_ms = Producing(), [1_000]
    producer.inside = refuse(ClientMistake("No."))
    with relay(engine, producer, clock_ms=lambda: now_ms[0], park_after=None) as sending:
        for _ in range(12):
            assert sending.run_once() == Round(0, 1)
            now_ms[0] += 60_000
    assert (outbox.parked(engine), outbox.counts(engine).waiting) == ([], 1)


def test_a_second_relay_takes_other_keys_and_never_one_that_is_in_hand(engine: Engine) -> None:
    add(engine, message(b"a1", "a"), message(b"a2", "a"), message(b"b1", "b"))
    first, second = Producing(), Producing()
    other = relay(engine, second)
    first.inside = lambda _: other.run_once()
    with other, relay(engine, first, batch=1) as sending:
        assert sending.run_once() == Round(1, 0)
    assert (first.bodies, second.bodies) == ([b"a1"], [b"b1"])


def test_a_round_sends_a_batch_at_most(engine: Engine) -> None:
    add(engine, message(b"lone"), *(message(b"%d" % number, "a") for number in range(3)))
    with relay(engine, Producing(), batch=2) as sending:
        assert [sending.run_once().sent for _ in range(3)] == [2, 2, 0]


def test_a_round_looks_at_no_row_again_for_each_row_behind_it(tmp_path: Any) -> None:
    """Of a key with rows that are parked and rows that wait, and of one that pauses: thousands of each."""
    engine, steps = create_engine(f"sqlite:///{tmp_path / 'orders.db'}"), [0]

    @event.listens_for(engine, "connect")
    def count_steps(connection: Any, _: object) -> None:
        connection.set_progress_handler(lambda: steps.append(steps.pop() + 1_000), 1_000)

    outbox.create_table(engine)
    add(engine, *(message(b"%d" % number, "ab"[number % 2]) for number in range(6_000)), message(b"c", "c"))
    with engine.begin() as connection:
        connection.execute(text("UPDATE tidewheel_outbox SET retry_ms = -1 WHERE id <= 2000"))
        connection.execute(text("UPDATE tidewheel_outbox SET retry_ms = 9000 WHERE id = 2002"))
    producer = Producing()
    with relay(engine, producer, batch=2_001, clock_ms=lambda: 5_000) as sending:
        steps[0] = 0
        assert sending.run_once() == Round(2_001, 0)
        assert steps[0] < 1_500_000
    assert producer.bodies.index(b"2002") < producer.bodies.index(b"5998")
    assert b"c" in producer.bodies
    engine.dispose()


def test_a_round_reads_no_pages_where_all_rows_pause(engine: Engine) -> None:
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda _, __, statement, *___: statements.append(statement))
    counts = []
    with relay(engine, Producing(), clock_ms=lambda: 5_000) as sending:
        for count in (1, 2_500):
            add(engine, *(message(b"%d" % number, f"key {number}") for number in range(count)))
            with engine.begin() as connection:
                connection.execute(text("UPDATE tidewheel_outbox SET retry_ms = 9000"))
            statements.clear()
            assert sending.run_once() == Round(0, 0)
            counts.append(len(statements))
    assert counts[0] == counts[1]


def test_several_relays_share_the_keys(engine: Engine) -> None:
    """Each takes a whole batch, however many keys the others have in hand."""
    add(engine, *(message(b"%d" % number, f"k{number}") for number in range(5)))
    producers = [Producing() for _ in range(4)]
    relays = [relay(engine, producer, batch=2) for producer in producers]
    for producer, following in zip(producers, relays[1:], strict=False):
        producer.inside = once_only(following.run_once)
    assert relays[0].run_once() == Round(2, 0)
    for one in relays:
        one.close()
    assert [sorted(producer.bodies) for producer in producers] == [[b"0", b"1"], [b"2", b"3"], [b"4"], []]


def test_a_relay_that_is_ended_inside_a_batch_marks_what_it_sent(engine: Engine) -> None:
    add(engine, message(b"a1", "a"), message(b"a2", "a"))
    producer = Producing()

    def interrupt(one: Message) -> None:
        if one.body == b"a2":
            raise KeyboardInterrupt

    producer.inside = interrupt
    with relay(engine, producer) as sending:
        with pytest.raises(KeyboardInterrupt):
            sending.run_once()
        producer.inside = lambda _: None
        assert sending.run_once().failed == 0
    assert producer.bodies[-1] == b"a2"


HOUR_MS = 3_600_000
STEPS = {"none": 0, "forward": HOUR_MS, "far forward": 9_000 * HOUR_MS, "back": -HOUR_MS}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("lease_ms", "rivals_lease_ms"), [(1_000, 1_000), (60_000, 5_000), (5_000, 60_000)])
@pytest.mark.parametrize("when", ["before its look", "amid the lease"])
def test_a_claim_on_sqlite_lasts_a_lease_however_the_clock_is_set(
    tmp_path: Any, step: str, lease_ms: int, rivals_lease_ms: int, when: str
) -> None:
    """Relays of other leases are those of a rolling change of `lease_ms`; the lease is the claim's own."""
    engine = create_engine(f"sqlite:///{tmp_path / 'orders.db'}")
    outbox.create_table(engine)
    add(engine, message(b"a1", "a"), message(b"a2", "a"), message(b"b1", "b"))
    clock_ms, elapsed = [5_000 * HOUR_MS], [0]
    dead = outbox_relay.claims_of(engine, lease_ms).claim(2, clock_ms[0])
    dead.__enter__()
    producer = Producing()
    clocks = {"clock_ms": lambda: clock_ms[0], "elapsed_ms": lambda: elapsed[0]}
    with relay(engine, producer, lease_ms=rivals_lease_ms, **clocks) as sending:
        clock_ms[0] += STEPS[step] if when == "before its look" else 0
        sending.run_once()
        clock_ms[0] += STEPS[step] if when == "amid the lease" else 0
        elapsed[0] = lease_ms - 1
        assert sending.run_once() == Round(0, 0)
        assert producer.bodies == [b"b1"]
        elapsed[0] = lease_ms
        assert sending.run_once() == Round(2, 0)
    assert producer.bodies == [b"b1", b"a1", b"a2"]
    engine.dispose()


def test_a_claim_that_is_made_again_lasts_a_lease_of_its_own(tmp_path: Any) -> None:
    """A rival has seen the one before, and not its end; both are of one moment of the clock."""
    engine = create_engine(f"sqlite:///{tmp_path / 'orders.db'}")
    outbox.create_table(engine)
    add(engine, message(b"1", "a"))
    elapsed, claims = [0], outbox_relay.claims_of(engine, 1_000)
    with relay(engine, Producing(), elapsed_ms=lambda: elapsed[0]) as rival:
        with claims.claim(1, 5_000):
            assert rival.run_once() == Round(0, 0)
        elapsed[0] = 999
        with claims.claim(1, 5_000):
            elapsed[0] = 1_000
            assert rival.run_once() == Round(0, 0)
    engine.dispose()


def test_a_pause_of_a_clock_that_was_ahead_is_over(engine: Engine) -> None:
    add(engine, message(b"1", key="k"))
    with relay(engine, Producing(b"1"), clock_ms=lambda: 5_000_000 + 3_600_000) as ahead:
        assert ahead.run_once() == Round(0, 1)
    with relay(engine, Producing(), clock_ms=lambda: 5_000_000) as sending:
        assert sending.run_once() == Round(1, 0)


@pytest.mark.parametrize("by", ["engine", "server"])
def test_two_relays_send_each_row_once_at_any_isolation_level(database: Engine, by: str) -> None:
    settings = {
        "postgresql": {"options": "-c default_transaction_isolation=serializable"},
        "mysql": {"init_command": "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE"},
    }
    if database.dialect.name == "sqlite":
        pytest.skip("SQLite has one level")
    options: dict[str, Any] = {"isolation_level": "SERIALIZABLE"}
    if by == "server":
        options = {"connect_args": settings[database.dialect.name.replace("mariadb", "mysql")]}
    engine = create_engine(database.url, **options)
    outbox.create_table(engine)
    add(engine, *(message(b"%d" % number, key=f"k{number % 20}") for number in range(200)))
    producer, failed = Producing(), list[Exception]()
    meeting = threading.Barrier(2)

    def run() -> None:
        with relay(engine, producer, batch=10) as sending:
            meeting.wait()
            try:
                while sending.run_once().sent:
                    pass
            except DBAPIError as error:
                failed.append(error)

    relays = [threading.Thread(target=run) for _ in range(2)]
    for one in relays:
        one.start()
    for one in relays:
        one.join()
    engine.dispose()
    assert failed == []
    assert sorted(map(int, producer.bodies)) == list(range(200))


def test_a_relay_stops_sending_at_half_of_its_lease(tmp_path: Any) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'orders.db'}")
    outbox.create_table(engine)
    add(engine, message(b"a1", "a"), message(b"a2", "a"))
    with relay(engine, Producing(), lease_ms=0) as sending:
        assert sending.run_once() == Round(0, 0)
    engine.dispose()


def test_run_goes_on_until_it_is_told_to_stop(engine: Engine) -> None:
    producer, stop, came = Producing(), threading.Event(), threading.Event()
    producer.inside = lambda _: came.set()
    with relay(engine, producer) as sending:
        running = threading.Thread(target=sending.run, args=(stop,))
        running.start()
        add(engine, message(b"x"))
        assert came.wait(60)
        stop.set()
        running.join()
    assert producer.bodies == [b"x"]


def test_forget_deletes_sent_rows_only(engine: Engine) -> None:
    add(engine, message(b"x"))
    with relay(engine, Producing(), clock_ms=lambda: 1_000) as sending:
        sending.run_once()
    add(engine, message(b"y"))
    assert (outbox.forget(engine, 1_000), outbox.forget(engine, 1_001)) == (0, 1)
    assert [bytes(row.body) for row in rows(engine)] == [b"y"]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"_Message__topic": None}, IllegalTopic),
        ({"_Message__body": None}, BodyEmpty),
        ({"body": b"x" * (4 * 1024 * 1024 + 1)}, BodyTooLarge),
        ({"priority": 1}, ClientMistake),
        ({"_Message__delivery_timestamp": -1}, IllegalDeliveryTime),
        ({"_Message__tag": "a|b"}, IllegalTag),
        ({"_Message__message_group": "g\x7f"}, IllegalMessageGroup),
    ],
)
def test_what_could_never_be_sent_is_refused_when_it_is_added(
    engine: Engine, change: dict[str, Any], error: type[Exception]
) -> None:
    bad = message(b"x")
    for name, value in change.items():
        setattr(bad, name, value)
    with sessionmaker(engine)() as session, pytest.raises(error):
        outbox.add(session, bad)


def test_a_missing_or_older_table_is_one_clear_sentence(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE tidewheel_outbox"))
    with (
        sessionmaker(engine)() as session,
        pytest.raises(ConfigurationError, match=r"no table.*create_table"),
    ):
        outbox.add(session, message(b"x"))
    with pytest.raises(ConfigurationError, match=r"no table.*create_table"):
        Relay(engine, Producing())
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE tidewheel_outbox (id INTEGER PRIMARY KEY)"))
    with sessionmaker(engine)() as session, pytest.raises(ConfigurationError, match="older version"):
        outbox.add(session, message(b"x"))
    with pytest.raises(ConfigurationError, match=r"older version(?s:.*)create_table"):
        outbox.forget(engine, 1)
    with pytest.raises(ConfigurationError, match=r"older version, without .*nothing in it is needed"):
        Relay(engine, Producing())
    with pytest.raises(ConfigurationError, match="tidewheel_outbox is of an older version, without"):
        outbox.create_table(engine)


def test_the_plain_sql_makes_the_table(engine: Engine, server: str) -> None:
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE tidewheel_outbox"))
        for statement in outbox_sql(server).split(";")[:-1]:
            connection.execute(text(statement))
    add(engine, message(b"x"))
    with pytest.raises(UnknownChoice, match="oracle"):
        outbox_sql("oracle")
