"""Every way to say when a message is to arrive, and everything that is no way."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies

from commitlog import limits
from commitlog.records.message import Message, MessageType
from services.broker.broker import Broker
from services.broker.spine.errors import IllegalDeliveryTime, IllegalProperty
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.verb_properties import parse_verb
from services.broker.timers import recall
from services.broker.timers.delays import LEVELS_MS, with_absolute_times, without_delay
from tests.memory_disk import MemoryDisk
from tidewheel import property_names
from tidewheel.errors import ClientMistake

NOW_MS = 1_763_700_000_000
LATER_MS = NOW_MS + 90_000
SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
LEVELS = [
    *(1 * SECOND, 5 * SECOND, 10 * SECOND, 30 * SECOND),
    *(count * MINUTE for count in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
    *(1 * HOUR, 2 * HOUR),
]


def message(delivery_ms: int | None = None, **given: str) -> Message:
    return Message(topic="t", body=b"x", message_id="1", delivery_ms=delivery_ms, properties=given)


@pytest.mark.parametrize(
    ("given", "due_ms"),
    [
        ({"__STARTDELIVERTIME": str(LATER_MS)}, LATER_MS),
        ({"TIMER_DELIVER_MS": str(LATER_MS)}, LATER_MS),
        ({"TIMER_DELIVER_MS": str(NOW_MS - 60_000)}, NOW_MS - 60_000),
        ({"TIMER_DELAY_SEC": "90"}, LATER_MS),
        ({"TIMER_DELAY_MS": "90000"}, LATER_MS),
        ({"TIMER_DELAY_MS": "0"}, NOW_MS),
        ({"DELAY": "0"}, None),
        ({"DELAY": "19"}, NOW_MS + 2 * HOUR),
        ({"DELAY": "999999"}, NOW_MS + 2 * HOUR),
        ({"TIMER_DELAY_SEC": "90", "TIMER_DELAY_MS": "90000"}, LATER_MS),
        ({"DELAY": "0", "TIMER_DELAY_SEC": "90"}, LATER_MS),
    ],
)
def test_a_property_says_when_and_is_taken_off(given: dict[str, str], due_ms: int | None) -> None:
    assert without_delay(given | {"colour": "blue"}, NOW_MS) == (due_ms, {"colour": "blue"})


def test_the_levels_are_those_of_rocketmq() -> None:
    due = [without_delay({"DELAY": str(level)}, NOW_MS)[0] for level in range(1, 19)]
    assert due == [NOW_MS + pause_ms for pause_ms in LEVELS]
    assert list(LEVELS_MS) == LEVELS


def test_a_message_that_says_nothing_of_time_stays_the_same_object() -> None:
    plain, protocol = message(colour="blue"), message(LATER_MS, colour="blue")
    assert with_absolute_times(plain, NOW_MS) is plain
    assert with_absolute_times(protocol, NOW_MS) is protocol


@pytest.mark.parametrize("value", ["", "soon", "-1", "+1", "1.5", "1e3", " 1", "٣", "²", "0x10", "9" * 19])
@pytest.mark.parametrize(
    "name", ["__STARTDELIVERTIME", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "DELAY"]
)
def test_what_is_no_number_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(IllegalDeliveryTime, match=f"{name} is .* whole number"):
        with_absolute_times(message(**{name: value}), NOW_MS)


def test_an_error_does_not_repeat_a_whole_book() -> None:
    with pytest.raises(IllegalDeliveryTime) as refused:
        with_absolute_times(message(DELAY="x" * 10_000), NOW_MS)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize("name", ["__STARTDELIVERTIME", "TIMER_DELIVER_MS"])
@pytest.mark.parametrize("value", ["0", "1763700090", str(limits.WALL_MS_MIN - 1)])
def test_seconds_where_milliseconds_are_meant_are_refused(name: str, value: str) -> None:
    with pytest.raises(IllegalDeliveryTime, match=f"{name} is {value}.*seconds"):
        with_absolute_times(message(**{name: value}), NOW_MS)


@pytest.mark.parametrize(
    ("delivery_ms", "given"),
    [
        (None, {"DELAY": "3", "TIMER_DELAY_SEC": "90"}),
        (None, {"__STARTDELIVERTIME": str(LATER_MS), "TIMER_DELIVER_MS": str(LATER_MS + 1)}),
        (LATER_MS + 1, {"TIMER_DELAY_SEC": "90"}),
    ],
)
def test_times_that_contradict_each_other_are_refused(delivery_ms: int | None, given: dict[str, str]) -> None:
    with pytest.raises(IllegalDeliveryTime, match=f"means {LATER_MS} ms.*Give one of them"):
        with_absolute_times(message(delivery_ms, **given, colour="blue"), NOW_MS)


def test_the_protocols_time_may_be_said_again() -> None:
    assert with_absolute_times(message(LATER_MS, TIMER_DELAY_SEC="90"), NOW_MS) == message(LATER_MS)
    assert with_absolute_times(message(LATER_MS, DELAY="0"), NOW_MS) == message(LATER_MS)


NAMES = ["__STARTDELIVERTIME", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "DELAY"]
VERBS = [
    "TW_TIMER_CANCEL",
    "TW_TIMER_MOVE",
    "TW_TIMER_FIRE",
    "TW_TIMER_TO",
    "TW_TIMER_TOPIC",
    "TW_TIMER_VERDICT",
]
VALUES = strategies.one_of(
    strategies.integers(-10, 10**20).map(str),
    strategies.builds(
        "{}{}".format, strategies.integers(0, 10**5), strategies.sampled_from(["ms", "m", "d", ""])
    ),
    strategies.text("07 -mk٣²", max_size=5),
)


@given(
    strategies.dictionaries(strategies.sampled_from([*NAMES, *VERBS, "colour"]), VALUES, max_size=4),
    strategies.none() | strategies.integers(-(1 << 63), 1 << 63),
)
def test_whatever_is_given_is_read_or_refused(given: dict[str, str], delivery_ms: int | None) -> None:
    try:
        read = with_absolute_times(message(delivery_ms, **given), NOW_MS)
        verb = parse_verb(read, NOW_MS)
    except ClientMistake:
        return
    assert not read.properties.keys() & set(NAMES)
    assert read.delivery_ms == delivery_ms or (read.delivery_ms or -1) >= limits.WALL_MS_MIN
    assert (verb is not None) == bool(read.properties.keys() & set(VERBS))
    if verb is not None and verb.to_ms:
        assert limits.WALL_MS_MIN <= verb.to_ms <= NOW_MS + limits.DELAY_MS_MAX


@pytest.fixture
def broker() -> Broker:
    settings = BrokerSettings(segment_bytes=1 << 16)
    return Broker.open(MemoryDisk(), settings, NOW_MS)


@pytest.mark.parametrize(
    "given",
    [
        {"TIMER_DELAY_SEC": str(limits.DELAY_MS_MAX // 1000 + 1)},
        {"TIMER_DELAY_MS": "9" * limits.TIME_DIGITS_MAX},
        {"TIMER_DELAY_SEC": "9" * limits.TIME_DIGITS_MAX},
        {"TIMER_DELIVER_MS": "9" * limits.TIME_DIGITS_MAX},
        {"__STARTDELIVERTIME": str(NOW_MS + limits.DELAY_MS_MAX + 1)},
    ],
)
def test_a_time_too_far_ahead_is_refused_and_nothing_is_stored(broker: Broker, given: dict[str, str]) -> None:
    broker.topics.create("t", MessageType.MIXED, 1, NOW_MS)
    end = broker.gauges()
    with pytest.raises(IllegalDeliveryTime, match="the limit is"):
        broker.sending.send(with_absolute_times(message(**given), NOW_MS), NOW_MS)
    assert broker.gauges() == end


def test_the_farthest_time_is_taken(broker: Broker) -> None:
    receipt = broker.sending.send(
        with_absolute_times(message(TIMER_DELAY_MS=str(limits.DELAY_MS_MAX)), NOW_MS), NOW_MS
    )
    assert recall.decode(receipt.recall_handle).due_ms == NOW_MS + limits.DELAY_MS_MAX


@pytest.mark.parametrize("name", sorted({"__STARTDELIVERTIME", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "DELAY"}))
def test_one_that_reaches_the_core_unread_is_refused_not_overlooked(broker: Broker, name: str) -> None:
    assert name in property_names.RESERVED
    with pytest.raises(IllegalProperty, match=name):
        broker.sending.send(message(**{name: "1"}), NOW_MS)
