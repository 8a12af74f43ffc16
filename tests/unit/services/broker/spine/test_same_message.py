"""A repeat is judged by meaning: permuted properties are the same, more or less is another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.records import properties
from commitlog.records.kinds import TIMER_TOPIC
from commitlog.records.message import Message
from commitlog.records.record import Record
from services.broker.sending import message_record
from services.broker.spine import verb_properties
from services.broker.spine.same_message import BROKER_PROPERTIES, PER_ATTEMPT_PROPERTIES, is_same, is_sent
from services.broker.spine.validation import check_message
from services.broker.timers.timer_records import (
    ReplacedTimer,
    delivered_record,
    moved_record,
    rebuilt_record,
    timer_record,
)
from tidewheel import property_names
from tidewheel.errors import ClientMistake
from txn.half import committed_record, committed_timer_record, half_record

DUE_MS = 1_763_700_000_000
NAMES = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=8).filter(
    lambda name: name not in property_names.RESERVED and name not in (verb_properties.VERDICT, "traceparent")
)
VALUES = st.text(st.characters(exclude_categories=("C", "Z")), max_size=8)
MESSAGES = st.builds(
    Message,
    topic=st.just("t"),
    body=st.binary(min_size=1, max_size=4),
    message_id=st.just("M1"),
    tag=st.sampled_from(["", "a"]),
    keys=st.sampled_from([(), ("k",), ("k", "order 7")]),
    message_group=st.sampled_from(["", "line"]),
    priority=st.sampled_from([None, 0, 2]),
    lite_topic=st.sampled_from(["", "one"]),
    gzip=st.booleans(),
    trace_context=st.sampled_from(["", "span 1"]),
    properties=st.dictionaries(NAMES, VALUES, max_size=5),
)


def moved(message: Message) -> Record:
    return moved_record(timer(message), 64, DUE_MS, DUE_MS + 1, "by hand")


def timer(message: Message) -> Record:
    return timer_record(replace(message, delivery_ms=DUE_MS), 3)


def marked(record: Record) -> Record:
    """Return the record with the marks of a verb, as `broker.timers.verb_executor` adds them."""
    kept = properties.decode(record.properties)
    marks = {
        verb_properties.VERDICT: "CANCELLED",
        property_names.CANCELS: "64 5",
        property_names.CANCELS_TOPIC: "t",
    }
    return replace(record, properties=properties.encode(kept | marks))


FORMS: dict[str, Callable[[Message], Record]] = {
    "plain": lambda message: message_record(message, 0),
    "carries a verb": lambda message: marked(message_record(message, 0)),
    "half": lambda message: half_record(replace(message, transactional=True), 1, DUE_MS),
    "committed": lambda message: committed_record(FORMS["half"](message), "by hand"),
    "committed timer": lambda message: committed_timer_record(
        half_record(replace(message, transactional=True, delivery_ms=DUE_MS), 1, DUE_MS), TIMER_TOPIC
    ),
    "timer": timer,
    "timer set again": lambda message: timer_record(
        replace(message, delivery_ms=DUE_MS), 3, ReplacedTimer(64, DUE_MS)
    ),
    "moved": moved,
    "moved twice": lambda message: moved_record(moved(message), 128, DUE_MS + 1, DUE_MS + 9),
    "rebuilt": lambda message: rebuilt_record(timer(message), 64, [], "timerstore/1"),
    "delivered": lambda message: delivered_record(timer(message), 64),
}
"""Every record that a message becomes or leaves in the log."""


def permuted(message: Message, draw: st.DataObject) -> Message:
    pairs = draw.draw(st.permutations(list(message.properties.items())))
    return replace(message, properties=dict(pairs))


def same(found: Record, message: Message) -> bool:
    return is_same(found, message, properties.encode_message(message))


@pytest.mark.parametrize("form", FORMS)
@given(message=MESSAGES, data=st.data())
def test_permuted_properties_make_no_other_message(form: str, message: Message, data: st.DataObject) -> None:
    found = FORMS[form](message)
    assert same(found, permuted(message, data))
    traced = message.properties | {"traceparent": "00-1-2-01", "empty": ""}
    assert same(found, replace(permuted(message, data), properties=traced, born_ms=9, trace_context="span 2"))


@pytest.mark.parametrize("form", FORMS)
@given(message=MESSAGES, name=NAMES, value=VALUES.filter(bool), data=st.data())
def test_one_property_more_or_less_makes_another_message(
    form: str, message: Message, name: str, value: str, data: st.DataObject
) -> None:
    message.properties.pop(name, None)
    more = replace(message, properties={name: value} | message.properties)
    assert not same(FORMS[form](message), permuted(more, data))
    assert not same(FORMS[form](more), permuted(message, data))
    assert not same(FORMS[form](more), replace(more, properties=more.properties | {name: f"{value}."}))


@pytest.mark.parametrize("form", FORMS)
@given(message=MESSAGES, other=st.sampled_from([
    {"body": b"other"}, {"topic": "u"}, {"message_id": "M2"}, {"tag": "b"}, {"keys": ("l",)},
    {"message_group": "another"}, {"priority": 7}, {"lite_topic": "two"},
]))  # fmt: skip
def test_another_attribute_makes_another_message(form: str, message: Message, other: dict[str, Any]) -> None:
    assert not same(FORMS[form](message), replace(message, **other))
    assert not same(FORMS[form](replace(message, **other)), message)


@pytest.mark.parametrize("left", ["tag", "keys", "message_group", "lite_topic"])
def test_an_attribute_less_makes_another_message(left: str) -> None:
    whole = Message(
        topic="t", body=b"x", message_id="M1", tag="a", keys=("k",), message_group="g", lite_topic="one"
    )
    less = replace(whole, **{left: () if left == "keys" else ""})
    assert not same(message_record(whole, 0), less)
    assert not same(message_record(less, 0), whole)


def test_another_compression_makes_another_message() -> None:
    plain = Message(topic="t", body=b"x", message_id="M1")
    assert not same(message_record(plain, 0), replace(plain, gzip=True))


@pytest.mark.parametrize("form", FORMS)
def test_what_the_broker_makes_of_a_message_is_no_try_of_it(form: str) -> None:
    found = FORMS[form](Message(topic="t", body=b"x", message_id="M1", properties={"xTW_TIMER_OFFSET": "1"}))
    assert is_sent(found) is (form not in ("committed", "committed timer", "delivered"))


def test_a_redriven_copy_is_no_try() -> None:
    copy = message_record(Message(topic="t", body=b"x", message_id="M1"), 0)
    copy.properties += properties.encode(
        {property_names.FOR_GROUP: "g", property_names.REDRIVE_OF: "%DLQ%g:0"}
    )
    assert not is_sent(copy)


@given(
    st.sampled_from(sorted((property_names.RESERVED | {verb_properties.VERDICT}) - {"UNIQ_KEY"})),
    st.booleans(),
)
def test_what_is_left_out_can_be_in_no_message(name: str, has_separator: bool) -> None:
    given_names = {f"p\x02{name}" if has_separator else name: "value"}
    message = Message(topic="t", body=b"x", message_id="M1", properties=given_names)
    if name == verb_properties.VERDICT and not has_separator:
        with pytest.raises(ClientMistake):
            verb_properties.parse_verb(message, DUE_MS)
        return
    with pytest.raises(ClientMistake):
        check_message(message, message.message_type)


@pytest.mark.parametrize("separator", ["\x01", "\x02"])
def test_a_value_that_holds_a_separator_is_refused(separator: str) -> None:
    message = Message(topic="t", body=b"x", message_id="M1", properties={"p": f"1{separator}q"})
    with pytest.raises(ClientMistake):
        check_message(message, message.message_type)


def test_the_names_left_out_are_not_content() -> None:
    message = Message(
        topic="t", body=b"x", message_id="M1", tag="a", keys=("k",), message_group="g", lite_topic="one",
        priority=1, properties={property_names.TIMER_KEY: "k", property_names.TIMER_UNIQUE: "true"},
    )  # fmt: skip
    assert BROKER_PROPERTIES.isdisjoint(properties.pairs(properties.encode_message(message)))
    assert PER_ATTEMPT_PROPERTIES.isdisjoint(properties.pairs(properties.encode_message(message)))
