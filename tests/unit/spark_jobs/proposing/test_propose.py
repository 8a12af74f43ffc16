"""What is proposed for services whose names are not the shop's: the mapping that their writer would give."""

from __future__ import annotations

import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, create_engine, text

from spark_jobs.errors import NothingProposed
from spark_jobs.inputs.mapping import COLUMNS, as_mapping
from spark_jobs.proposing import mapping_file
from spark_jobs.proposing.facts import LogFacts, Message, Topic
from spark_jobs.proposing.orders import keys_to_look_for
from spark_jobs.proposing.proposal import Proposal
from spark_jobs.proposing.propose import propose
from spark_jobs.proposing.tables import look
from tests.postgresql import running_postgresql
from tests.unit.spark_jobs.proposing.tongues import OURS, TONGUES, TOPICS, Tongue, Written, write


@pytest.fixture(scope="module")
def postgresql_url() -> Iterator[str]:
    with running_postgresql() as url:
        yield url


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path / 'own.db'}")
    yield engine
    engine.dispose()


def proposed(engine: Engine, written: Written) -> Proposal:
    url = engine.url.render_as_string(hide_password=False)
    return propose(look(url, "--db", keys_to_look_for(written.log.topics)).tables, written.log)


def is_theirs(proposal: Proposal, tongue: Tongue) -> None:
    """The proposal is what the service's writer would have written, and nothing stands in an audit's way."""
    document = proposal.document()
    lacking = {ours: "" for ours in COLUMNS["orders"] if ours not in tongue.by_ours}
    assert document["orders"] == {
        "table": tongue.table,
        **tongue.by_ours,
        **lacking,
        "statuses": dict(zip(OURS, tongue.statuses, strict=True)),
    }
    assert document["topics"] == dict(zip(TOPICS, tongue.topics, strict=True)) | {"pushes": ""}
    assert document["groups"] == {"order_created": "stage", "order_timeouts": "clock"}
    assert document["bodies"]["order_id"] == "id"
    assert document["bodies"]["customer_id"] == "who"
    assert proposal.is_auditable, proposal.doubts
    assert as_mapping(document, "proposal").orders.name == tongue.table
    assert [one for one in proposal.choices if not one.why and one.value] == []


@given(
    st.sampled_from(sorted(TONGUES)),
    st.sampled_from(["number", "text", "uuid"]),
    st.sampled_from(["ms", "iso"]),
    st.integers(0, 1 << 32),
    st.integers(16, 40),
)
@settings(max_examples=40, deadline=None)
def test_a_service_of_any_tongue_is_told_by_its_rows_and_messages(
    tongue: str, key_kind: str, time_kind: str, seed: int, orders: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        engine = create_engine(f"sqlite:///{folder}/own.db")
        written = write(engine, TONGUES[tongue], key_kind, time_kind, seed, orders)
        try:
            is_theirs(proposed(engine, written), TONGUES[tongue])
        finally:
            engine.dispose()


@pytest.mark.parametrize(
    ("tongue", "key_kind"), [("german", "uuid"), ("camel", "number"), ("french", "text")]
)
def test_a_service_in_postgresql(postgresql_url: str, tongue: str, key_kind: str) -> None:
    engine = create_engine(postgresql_url)
    with engine.begin() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    try:
        written = write(engine, TONGUES[tongue], key_kind, "iso", 7)
        is_theirs(proposed(engine, written), TONGUES[tongue])
    finally:
        engine.dispose()


def doubts(proposal: Proposal) -> str:
    return " ".join(one.said for one in proposal.doubts)


def test_statuses_that_say_nothing_wait_for_their_meaning(engine: Engine) -> None:
    written = write(engine, TONGUES["german"], "text", "ms", 1)
    with engine.begin() as connection:
        connection.execute(text("UPDATE bestellung SET zustand = 'Z9' WHERE zustand = 'verfallen'"))
        connection.execute(text("UPDATE bestellung SET zustand = NULL WHERE nummer = 'K-0004'"))
    proposal = proposed(engine, written)
    assert not proposal.is_auditable
    assert {one.value: (one.rows, one.meaning) for one in proposal.statuses} == {
        "offen": (5, "PLACED"),
        "bezahlt": (6, "PAID"),
        "storniert": (6, "CANCELLED"),
        "Z9": (6, ""),
        None: (1, ""),
    }
    assert "'Z9' (6 rows; their deadlines are over and none is paid: TIMED_OUT, or PLACED" in doubts(proposal)
    assert "NULL (1 rows" in doubts(proposal)


CHECKED = (
    "CREATE TABLE s (nr TEXT PRIMARY KEY, a TEXT CHECK (a IN ('neu', 'ist''s')), b TEXT, CHECK (a <> b))"
)


def test_statuses_that_may_come_are_known_by_what_the_database_allows(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text(CHECKED))
        connection.execute(text("INSERT INTO s VALUES ('k', 'neu', 'x')"))
    (table,) = look(str(engine.url), "--db", ["k"]).tables
    assert table.column("a").counts == {"neu": 1, "ist's": 0}
    assert table.column("b").counts == {"x": 1}


def test_enumerations_say_what_may_come(postgresql_url: str) -> None:
    engine = create_engine(postgresql_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TYPE mood AS ENUM ('open', 'paid', 'void')"))
        connection.execute(text("CREATE TABLE moods (nr TEXT PRIMARY KEY, m mood)"))
        connection.execute(text("INSERT INTO moods VALUES ('k', 'open')"))
    engine.dispose()
    found = {one.name: one for one in look(postgresql_url, "--db", ["k"]).tables}
    assert found["moods"].column("m").counts == {"open": 1, "paid": 0, "void": 0}


BROKEN = {
    "sqlite": ("CREATE VIEW broken AS SELECT * FROM nowhere", "nowhere"),
    "postgresql": (
        "CREATE VIEW broken AS SELECT 1 / (v.x - v.x) AS x FROM (VALUES (1)) AS v (x)",
        "division by zero",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_cannot_be_read_is_told_and_the_rest_is_read(
    kind: str, engine: Engine, request: pytest.FixtureRequest
) -> None:
    statement, why = BROKEN[kind]
    there = engine if kind == "sqlite" else create_engine(request.getfixturevalue("postgresql_url"))
    with there.begin() as connection:
        connection.execute(text(statement))
        connection.execute(text("CREATE TABLE zone (nr TEXT PRIMARY KEY)"))
        connection.execute(text("INSERT INTO zone VALUES ('k')"))
    there.dispose()
    looked = look(there.url.render_as_string(hide_password=False), "--db", ["k"])
    (said,) = looked.unreadable
    assert said.startswith("broken (")
    assert why in said
    assert {one.name: one for one in looked.tables}["zone"].column("nr").keys == {"k"}


def test_a_status_that_no_order_has_yet_is_asked_for(engine: Engine) -> None:
    written = write(engine, TONGUES["theatre"], "text", "ms", 1)
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM bookings WHERE state = 'held'"))
    proposal = proposed(engine, written)
    assert 'write what yours will be called as PLACED = "..." in [orders.statuses]' in doubts(proposal)
    assert proposal.is_auditable


def without_words(engine: Engine, status: str = "zz") -> Written:
    """A service whose cancellations no word tells: neither their topic nor their status."""
    written = write(engine, TONGUES["theatre"], "text", "ms", 1)
    topics = tuple(
        replace(one, name="booking-zz") if one.name == "booking-voided" else one for one in written.log.topics
    )
    written.log = replace(written.log, topics=topics)
    with engine.begin() as connection:
        connection.execute(text("UPDATE bookings SET state = :zz WHERE state = 'void'"), {"zz": status})
    return written


def test_cancellations_without_words_are_told_by_the_deadlines_that_they_cancel(engine: Engine) -> None:
    proposal = proposed(engine, without_words(engine))
    document = proposal.document()
    assert document["topics"]["order_cancelled"] == "booking-zz"
    assert document["orders"]["statuses"]["CANCELLED"] == "zz"
    assert document["orders"]["cancelled_ms"] == "voided_at"
    assert proposal.is_auditable


def test_a_topic_that_cancels_deadlines_of_orders_paid_later_is_no_cancellation(engine: Engine) -> None:
    written = without_words(engine)
    (paid,) = (one for one in written.log.topics if one.name == "booking-settled")
    (other,) = (one for one in written.log.topics if one.name == "booking-zz")
    written.log = changed(written.log, "booking-settled", messages=(*paid.messages, other.messages[0]))
    proposal = proposed(engine, written)
    assert proposal.document()["topics"]["order_cancelled"] == ""
    assert "(it may be booking-zz)" in doubts(proposal)
    said = "'zz' (6 rows; a message in booking-zz cancels their deadlines: CANCELLED, or PAID if that is a"
    assert said in doubts(proposal)
    assert "TIMED_OUT, or PLACED if they still wait" not in doubts(proposal)


def test_a_word_of_waiting_orders_gives_way_to_payments_if_no_other_status_is_paid(engine: Engine) -> None:
    written = write(engine, TONGUES["theatre"], "text", "ms", 1)
    with engine.begin() as connection:
        connection.execute(text("UPDATE bookings SET state = 'confirmed' WHERE state = 'settled'"))
    proposal = proposed(engine, written)
    statuses = proposal.document()["orders"]["statuses"]
    assert (statuses["PLACED"], statuses["PAID"]) == ("held", "confirmed")
    assert proposal.document()["orders"]["paid_ms"] == "settled_at"
    assert "'confirmed'" not in doubts(proposal)


def test_one_waiting_order_with_a_payment_is_not_taken_for_a_status_of_paid_ones(engine: Engine) -> None:
    written = write(engine, TONGUES["theatre"], "text", "ms", 1)
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM bookings WHERE state = 'held'"))
        connection.execute(text("UPDATE bookings SET state = 'held' WHERE booking_no = 'K-0001'"))
    proposal = proposed(engine, written)
    assert proposal.document()["orders"]["statuses"]["PLACED"] == "held"
    assert "Status 'held' is taken for PLACED by its word, but 1 of 1" in doubts(proposal)


def test_columns_whose_names_say_nothing_are_told_where_messages_have_them(engine: Engine) -> None:
    written = write(engine, TONGUES["theatre"], "text", "ms", 1)
    with engine.begin() as connection:
        for number, column in enumerate(("xx", "yy")):
            connection.execute(text(f"ALTER TABLE bookings ADD COLUMN {column} INTEGER"))
            connection.execute(text(f"UPDATE bookings SET {column} = price_cents + {number}"))
        connection.execute(text("ALTER TABLE bookings DROP COLUMN guest_id"))
        connection.execute(text("ALTER TABLE bookings DROP COLUMN price_cents"))
    (made,) = (one for one in written.log.topics if one.name == "booking-made")
    bodies = [replace(one, body={"id": one.key, "x": 1_000 + int(one.key[2:]) * 37}) for one in made.messages]
    written.log = changed(written.log, "booking-made", messages=tuple(bodies))
    said = doubts(proposed(engine, written))
    assert "Not found: whose order it is (it may be xx). If" in said
    assert "Not found: what an order is worth (it may be xx). If" in said


def test_a_status_that_no_order_has_is_asked_for_beside_one_that_is_not_known(engine: Engine) -> None:
    written = write(engine, TONGUES["theatre"], "text", "ms", 1)
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM bookings WHERE state = 'held'"))
        connection.execute(text("UPDATE bookings SET state = 'zz' WHERE state = 'lapsed'"))
    proposal = proposed(engine, written)
    assert "'zz' (6 rows" in doubts(proposal)
    assert 'write what yours will be called as PLACED = "..." in [orders.statuses]' in doubts(proposal)


def test_a_status_without_a_word_is_told_by_its_messages(engine: Engine) -> None:
    written = write(engine, TONGUES["german"], "text", "ms", 1)
    with engine.begin() as connection:
        connection.execute(text("UPDATE bestellung SET zustand = 'Z3' WHERE nummer IN ('K-0001', 'K-0005')"))
    proposal = proposed(engine, written)
    assert proposal.document()["orders"]["statuses"]["PAID"] == ["bezahlt", "Z3"]
    assert proposal.is_auditable


def test_a_word_against_the_messages_is_told(engine: Engine) -> None:
    written = write(engine, TONGUES["theatre"], "text", "ms", 1)
    with engine.begin() as connection:
        connection.execute(text("UPDATE bookings SET state = 'lapsed' WHERE state = 'settled'"))
        connection.execute(text("DELETE FROM bookings WHERE state = 'lapsed' AND settled_at IS NULL"))
    assert "Status 'lapsed' is taken for TIMED_OUT by its word, but 6 of 6" in doubts(
        proposed(engine, written)
    )


def test_amounts_with_decimals_are_no_total(engine: Engine) -> None:
    written = write(engine, TONGUES["spanish"], "text", "ms", 1)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE pedidos DROP COLUMN importe"))
        connection.execute(text("ALTER TABLE pedidos ADD COLUMN importe NUMERIC(9, 2)"))
        connection.execute(text("UPDATE pedidos SET importe = 12.50"))
    proposal = proposed(engine, written)
    assert proposal.document()["orders"]["total_pence"] == ""
    assert "CAST(ROUND(importe * 100) AS BIGINT)" in doubts(proposal)
    assert proposal.is_auditable


def test_several_currencies_are_told(engine: Engine) -> None:
    written = write(engine, TONGUES["theatre"], "text", "ms", 1)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE bookings ADD COLUMN currency CHAR(3) DEFAULT 'EUR'"))
        connection.execute(text("UPDATE bookings SET currency = 'CHF' WHERE booking_no > 'K-0009'"))
    proposal = proposed(engine, written)
    assert "CHF, EUR" in doubts(proposal) or proposal.document()["orders"]["currency"] == "currency"


def test_a_time_that_no_row_has_yet_is_known_by_its_name(engine: Engine) -> None:
    written = write(engine, TONGUES["theatre"], "text", "iso", 1)
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM bookings WHERE state IN ('lapsed', 'void')"))
        connection.execute(text("ALTER TABLE bookings ADD COLUMN cancelled_by TEXT"))
    orders = proposed(engine, written).document()["orders"]
    assert (orders["timed_out_ms"], orders["cancelled_ms"]) == ("lapsed_at", "voided_at")


def test_seconds_are_told(engine: Engine) -> None:
    written = write(engine, TONGUES["theatre"], "text", "ms", 1)
    with engine.begin() as connection:
        connection.execute(text("UPDATE bookings SET booked_at = booked_at / 1000"))
    proposal = proposed(engine, written)
    assert not proposal.is_auditable
    assert "booked_at * 1000" in doubts(proposal)
    assert 'Write placed_ms = "..." in [orders]' in doubts(proposal)


@pytest.mark.parametrize(("hours", "said"), [("-5", "5 h behind"), ("5.5", "5.5 h ahead of")])
def test_local_times_are_told(engine: Engine, hours: str, said: str) -> None:
    written = write(engine, TONGUES["theatre"], "text", "ms", 1)
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE bookings SET booked_at = booked_at + {hours} * 3600000"))
    proposal = proposed(engine, written)
    assert f"Column booked_at is {said} the messages: local times, it seems, and the" in doubts(proposal)
    assert "Name a view with the time in UTC." in doubts(proposal)
    assert "is_blocking=True" in str(proposal.doubts)


@pytest.mark.parametrize(("hours", "zone"), [(-5, "-05:00"), (5.5, "+05:30")])
def test_the_zone_of_times_without_one_is_proposed(engine: Engine, hours: float, zone: str) -> None:
    written = write(engine, TONGUES["theatre"], "text", "ms", 1)
    with engine.begin() as connection:
        booked: dict[str, int] = {
            row.booking_no: row.booked_at
            for row in connection.execute(text("SELECT booking_no, booked_at FROM bookings"))
        }
        connection.execute(text("ALTER TABLE bookings DROP COLUMN booked_at"))
        connection.execute(text("ALTER TABLE bookings ADD COLUMN booked_at TEXT"))
        for code, at_ms in booked.items():
            local = datetime.fromtimestamp(at_ms / 1000, UTC) + timedelta(hours=hours)
            shown = {"at": local.strftime("%Y-%m-%d %H:%M:%S"), "code": code}
            connection.execute(text("UPDATE bookings SET booked_at = :at WHERE booking_no = :code"), shown)
    proposal = proposed(engine, written)
    assert proposal.document()["orders"]["zone"] == zone
    assert proposal.document()["orders"]["placed_ms"] == "booked_at"
    assert f'zone = "{zone}" is written in [orders]. If their clocks change in summer' in doubts(proposal)
    assert proposal.is_auditable


@pytest.mark.parametrize("form", ["%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S.%f", "%Y-%m-%dT%H:%M:%SZ"])
def test_a_time_of_a_body_is_found_in_another_form_than_its_column(engine: Engine, form: str) -> None:
    written = write(engine, TONGUES["theatre"], "text", "ms", 1)
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT booking_no, booked_at, hold_until FROM bookings"))
        times = {row.booking_no: (row.booked_at, row.hold_until) for row in rows}

    def body(one: Message, place: int) -> Message:
        at = datetime.fromtimestamp(times[one.key][place] / 1000, UTC)
        return replace(one, body={**one.body, "xx": at.strftime(form), "yy": "2026-01-01T00:00:00"})

    for place, name in enumerate(("booking-made", "booking-holds")):
        (topic,) = (one for one in written.log.topics if one.name == name)
        messages = tuple(body(one, place) for one in topic.messages)
        written.log = changed(written.log, name, messages=messages)
    bodies = proposed(engine, written).document()["bodies"]
    assert (bodies["placed_ms"], bodies["due_ms"]) == ("xx", "xx")


def test_a_column_in_utc_beside_local_times_is_found_as_it_stands(engine: Engine) -> None:
    """A TIMESTAMP of MySQL is read in UTC and shows no zone, as a DATETIME shows none."""
    written = write(engine, TONGUES["theatre"], "text", "ms", 1)
    hours = {"booked_at": 2, "hold_until": 2, "settled_at": 0}
    with engine.begin() as connection:
        for column, ahead in hours.items():
            shown = f"strftime('%Y-%m-%d %H:%M:%f', {column} / 1000 + {3_600 * ahead}, 'unixepoch')"
            connection.execute(text("ALTER TABLE bookings ADD COLUMN made TEXT"))
            connection.execute(text(f"UPDATE bookings SET made = {shown}"))
            connection.execute(text(f"ALTER TABLE bookings DROP COLUMN {column}"))
            connection.execute(text(f"ALTER TABLE bookings RENAME COLUMN made TO {column}"))
    orders = proposed(engine, written).document()["orders"]
    assert orders["zone"] == "+02:00"
    assert [orders[ours] for ours in ("placed_ms", "due_ms", "paid_ms")] == list(hours)


@pytest.mark.parametrize("lead_minutes", [60, 90])
def test_a_deadline_some_hours_after_its_order_is_no_local_time(engine: Engine, lead_minutes: int) -> None:
    written = write(engine, TONGUES["theatre"], "text", "ms", 1)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE bookings RENAME COLUMN booked_at TO xx"))
        connection.execute(text("ALTER TABLE bookings RENAME COLUMN hold_until TO yy"))
        for column, minutes in (("xx", 0), ("yy", lead_minutes)):
            made = f"strftime('%Y-%m-%d %H:%M:%f', xx / 1000 + {60 * minutes}, 'unixepoch')"
            connection.execute(text(f"ALTER TABLE bookings ADD COLUMN {column}_text TEXT"))
            connection.execute(text(f"UPDATE bookings SET {column}_text = {made}"))
        for column in ("xx", "yy"):
            connection.execute(text(f"ALTER TABLE bookings DROP COLUMN {column}"))
    (holds,) = (one for one in written.log.topics if one.name == "booking-holds")
    due = [replace(one, due_ms=(one.due_ms or 0) + (lead_minutes - 30) * 60_000) for one in holds.messages]
    written.log = changed(written.log, "booking-holds", messages=tuple(due))
    orders = proposed(engine, written).document()["orders"]
    assert (orders["placed_ms"], orders["due_ms"]) == ("xx_text", "yy_text")
    assert "zone" not in orders


@pytest.mark.parametrize(
    ("timer_keys", "prefix", "is_doubted"),
    [
        ({}, None, False),
        ({"hold/": 20}, "hold/", False),
        ({"": 20}, "", False),
        ({"hold/": 19, None: 1}, "hold/", False),
        ({"hold/": 12, "keep/": 8}, None, True),
        ({None: 20}, None, True),
    ],
)
def test_what_timer_keys_begin_with_is_read_from_the_log(
    engine: Engine, timer_keys: dict[str | None, int], prefix: str | None, is_doubted: bool
) -> None:
    written = write(engine, TONGUES["theatre"], "text", "ms", 1)
    written.log = changed(written.log, "booking-holds", timer_keys=timer_keys)
    proposal = proposed(engine, written)
    assert proposal.document().get("timers", {}).get("order_timeouts") == prefix
    assert ("The timer keys of booking-holds are not one word" in doubts(proposal)) == is_doubted
    as_mapping(proposal.document(), "proposed")


def changed(log: LogFacts, name: str, **attributes: Any) -> LogFacts:
    """The log with a topic changed; without it if nothing is given."""
    topics = [
        replace(one, **attributes) if one.name == name else one
        for one in log.topics
        if one.name != name or attributes
    ]
    return replace(log, topics=tuple(topics))


def test_topics_that_are_not_there_are_left_out_of_the_judgement(engine: Engine) -> None:
    written = write(engine, TONGUES["theatre"], "text", "ms", 1)
    written.log = changed(changed(written.log, "booking-settled"), "booking-holds")
    proposal = proposed(engine, written)
    topics = proposal.document()["topics"]
    assert topics["order_paid"] == topics["order_timeouts"] == ""
    assert topics["order_cancelled"] == "booking-voided"
    assert "Not found: a topic of payments." in doubts(proposal)
    assert 'write order_timeouts = "..." in [topics]' in doubts(proposal)
    assert proposal.is_auditable


def test_messages_without_transactions_are_told(engine: Engine) -> None:
    written = write(engine, TONGUES["theatre"], "text", "ms", 1)
    written.log = changed(written.log, "booking-settled", halves=0, plain=6)
    proposal = proposed(engine, written)
    assert proposal.document()["topics"]["order_paid"] == ""
    assert "booking-settled has 6 messages that were sent without a transaction" in doubts(proposal)
    assert proposal.is_auditable
    written.log = changed(written.log, "booking-made", halves=0, plain=24)
    proposal = proposed(engine, written)
    assert not proposal.is_auditable
    assert "order-without-message" in doubts(proposal)


def test_groups_that_are_none_or_several_are_told(engine: Engine) -> None:
    written = write(engine, TONGUES["theatre"], "text", "ms", 1)
    written.log = changed(written.log, "booking-made", groups={"mail": 3, "stage": 20})
    written.log = changed(written.log, "booking-holds", groups={})
    proposal = proposed(engine, written)
    assert proposal.document()["groups"] == {"order_created": "stage"}
    assert "Groups mail acknowledge messages of booking-made as well as stage." in doubts(proposal)
    assert "Not found: a group that acknowledges messages of booking-holds." in doubts(proposal)


def test_no_table_of_orders_is_a_sentence(engine: Engine) -> None:
    written = write(engine, TONGUES["theatre"], "text", "ms", 1)
    with engine.begin() as connection:
        connection.execute(text("UPDATE bookings SET booking_no = 'x' || booking_no"))
        connection.execute(text("DELETE FROM audit_trail"))
    with pytest.raises(NothingProposed, match=r"such as 'K-0001', .* be read: .*bookings.* give it by --db"):
        proposed(engine, written)


@pytest.mark.parametrize("key_kind", ["number", "text", "uuid"])
@pytest.mark.parametrize("prefix", ["sale-", "sale:", "eu/sale_"])
def test_keys_that_begin_with_a_word_are_told_and_a_view_helps(
    engine: Engine, prefix: str, key_kind: str
) -> None:
    written = write(engine, TONGUES["theatre"], key_kind, "ms", 1)
    first = min(written.log.topics[0].keys)
    topics = [
        replace(one, messages=tuple(replace(message, key=prefix + message.key) for message in one.messages))
        for one in written.log.topics
    ]
    written.log = replace(written.log, topics=tuple(topics))
    with pytest.raises(
        NothingProposed, match=f"such as '{prefix}{first}' where booking_no of table bookings is '{first}'"
    ):
        proposed(engine, written)
    others = ", ".join(f'"{name}"' for name in written.tongue.columns[1:])
    view = f"CREATE VIEW for_audit AS SELECT '{prefix}' || booking_no AS booking_no, {others} FROM bookings"
    with engine.begin() as connection:
        connection.execute(text(view))
    assert proposed(engine, written).document()["orders"]["table"] == "for_audit"


def test_a_log_without_keys_or_messages_is_a_sentence(engine: Engine) -> None:
    written = write(engine, TONGUES["theatre"], "text", "ms", 1)
    with pytest.raises(NothingProposed, match="holds no message yet"):
        propose(look(str(engine.url), "--db", []).tables, LogFacts((), 3, 5))
    bare = LogFacts((Topic("booking-made", 3, without_key=3),), 3, 5)
    with pytest.raises(NothingProposed, match=r"No message of the log has a key .*keys=\[id\]"):
        propose(look(str(engine.url), "--db", []).tables, bare)
    with pytest.raises(NothingProposed, match="has no tables"):
        propose((), written.log)


def test_a_table_without_statuses_is_a_sentence(engine: Engine) -> None:
    written = write(engine, TONGUES["theatre"], "text", "ms", 1)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE bookings DROP COLUMN state"))
    with pytest.raises(NothingProposed, match=r"no column looks like a status .* make a view"):
        proposed(engine, written)


def test_a_second_table_with_the_same_keys_is_told(engine: Engine) -> None:
    written = write(engine, TONGUES["theatre"], "text", "ms", 1)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE bookings_archive AS SELECT * FROM bookings"))
    proposal = proposed(engine, written)
    assert proposal.document()["orders"]["table"] == "bookings"
    assert "Table bookings_archive holds such keys as well." in doubts(proposal)


ARTICLES = (
    'CREATE TABLE "bestellposition" (id INTEGER PRIMARY KEY, bestellung TEXT REFERENCES bestellung, '
    "artikel TEXT, menge INTEGER)",
    "CREATE TABLE warenkorb (kunde INTEGER, artikel TEXT, menge INTEGER, PRIMARY KEY (kunde, artikel))",
    "CREATE TABLE korb_bewegung (id INTEGER PRIMARY KEY, kunde INTEGER, vorgang TEXT, beleg TEXT, "
    "artikel TEXT, menge INTEGER, zeit BIGINT)",
)


def write_articles(engine: Engine, written: Written) -> None:
    """Lines of every order, carts, and a ledger of both."""
    with engine.begin() as connection:
        for statement in ARTICLES:
            connection.execute(text(statement))
        for number, key in enumerate(written.keys):
            values = {"n": number, "key": key, "who": 1 + (number + 1) % 7, "at": 1_795_000_000_000}
            line = "INSERT INTO bestellposition VALUES (:n, :key, 'apfel', 2)"
            put = "INSERT INTO korb_bewegung VALUES (:n * 2, :who, 'rein', 'r-' || :n, 'apfel', 2, :at)"
            out = "INSERT INTO korb_bewegung VALUES (:n * 2 + 1, :who, 'bestellt', :key, 'apfel', 2, :at)"
            for one in (line, put, out):
                names = {name: value for name, value in values.items() if f":{name}" in one}
                connection.execute(text(one), names)
        for number in range(1, 4):
            connection.execute(text("INSERT INTO warenkorb VALUES (:n, 'birne', 1)"), {"n": number})


def test_lines_carts_and_ledger_are_found(engine: Engine) -> None:
    written = write(engine, TONGUES["german"], "text", "ms", 1)
    write_articles(engine, written)
    proposal = proposed(engine, written)
    document = proposal.document()
    assert proposal.has_carts
    assert document["order_lines"] == {
        "table": "bestellposition",
        "order_id": "bestellung",
        "sku": "artikel",
        "quantity": "menge",
    }
    assert document["carts"] == {
        "table": "warenkorb",
        "customer_id": "kunde",
        "sku": "artikel",
        "quantity": "menge",
    }
    assert document["ledger"] == {
        "table": "korb_bewegung",
        "customer_id": "kunde",
        "entry": "vorgang",
        "entry_id": "beleg",
        "sku": "artikel",
        "quantity": "menge",
        "at_ms": "zeit",
        "entries": {"add": "rein", "order": "bestellt"},
    }
    as_mapping(document, "proposal")


def test_carts_without_their_ledger_are_told(engine: Engine) -> None:
    written = write(engine, TONGUES["german"], "text", "ms", 1)
    write_articles(engine, written)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE korb_bewegung"))
    proposal = proposed(engine, written)
    assert not proposal.has_carts
    assert "carts" not in proposal.document()
    assert "Table warenkorb may be carts, but their ledger was not found" in doubts(proposal)


def test_pushes_are_the_delayed_messages_of_another_table(engine: Engine) -> None:
    written = write(engine, TONGUES["theatre"], "text", "ms", 1)
    due_ms = {f"R{number}": 1_795_000_000_000 + number * 60_000 for number in range(9)}
    with engine.begin() as connection:
        connection.execute(
            text("CREATE TABLE reminder (code TEXT PRIMARY KEY, state TEXT, due BIGINT, sent_at BIGINT)")
        )
        for number, (code, due) in enumerate(due_ms.items()):
            state, sent = ("sent", due + 5) if number < 6 else ("planned", None)
            values = {"code": code, "state": state, "due": due, "sent": sent}
            connection.execute(text("INSERT INTO reminder VALUES (:code, :state, :due, :sent)"), values)
    messages = tuple(Message(code, {"reminder": code}, due - 9, due) for code, due in due_ms.items())
    topic = Topic("reminders", delayed=9, delivered=6, messages=messages, groups={"mailer": 6})
    written.log = replace(written.log, topics=(*written.log.topics, topic))
    written.keys += due_ms
    proposal = proposed(engine, written)
    document = proposal.document()
    assert proposal.has_pushes
    assert document["pushes"] == {
        "table": "reminder",
        "push_id": "code",
        "schedule_id": "",
        "message_id": "",
        "status": "state",
        "due_ms": "due",
        "delivered_ms": "sent_at",
        "statuses": {"SCHEDULED": "planned", "DELIVERED": "sent"},
    }
    assert document["topics"]["pushes"] == "reminders"
    assert document["groups"]["pushes"] == "mailer"
    assert document["bodies"]["push_id"] == "reminder"
    as_mapping(document, "proposal")


def test_the_file_is_the_proposal_with_a_reason_on_each_line(engine: Engine, tmp_path: Path) -> None:
    written = write(engine, TONGUES["french"], "text", "ms", 1)
    with engine.begin() as connection:
        connection.execute(text("UPDATE commandes SET \"état\" = 'a\nb' WHERE \"numéro\" = 'K-0004'"))
    proposal = proposed(engine, written)
    path = tmp_path / "audit.toml"
    mapping_file.write(path, proposal, "a\ndatabase")
    lines = path.read_text().splitlines()
    assert tomllib.loads(path.read_text()) == proposal.document()
    assert [line for line in lines if "=" in line and "  # " not in line and not line.startswith("#")] == []
    assert [one for one in lines if one.startswith("# ! ")] != []
