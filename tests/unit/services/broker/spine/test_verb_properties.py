"""A verb that a message carries: read, judged, and its time kept right on every clock."""

from __future__ import annotations

import pytest

from commitlog import limits
from commitlog.records.message import Message
from services.broker.spine.errors import IllegalDeliveryTime, IllegalProperty
from services.broker.spine.verb_properties import CarriedTimerVerb, VerbKind, parse_verb, with_shifted_time
from services.broker.timers.delays import with_absolute_times
from services.live.clock import Clock, StoredClockOffset
from tests.memory_disk import MemoryDisk
from tidewheel.errors import ClientMistake

NOW_MS = 1_763_700_000_000
LATER_MS = NOW_MS + 1_800_000


def message(**given: str) -> Message:
    return Message(topic="orders", body=b"x", message_id="1", properties=given)


@pytest.mark.parametrize(
    ("given", "verb"),
    [
        ({"colour": "blue", "TW_TIMER_KEY": "k"}, None),
        ({"TW_TIMER_CANCEL": "k"}, CarriedTimerVerb(VerbKind.CANCEL, "orders", "k")),
        ({"TW_TIMER_FIRE": "k", "TW_TIMER_TOPIC": "u"}, CarriedTimerVerb(VerbKind.FIRE, "u", "k")),
        (
            {"TW_TIMER_MOVE": "k", "TW_TIMER_TO": str(LATER_MS)},
            CarriedTimerVerb(VerbKind.MOVE, "orders", "k", LATER_MS),
        ),
        (
            {"TW_TIMER_MOVE": "k", "TW_TIMER_TO": "30m"},
            CarriedTimerVerb(VerbKind.MOVE, "orders", "k", LATER_MS),
        ),
        ({"TW_TIMER_MOVE": "k", "TW_TIMER_TO": "0s"}, CarriedTimerVerb(VerbKind.MOVE, "orders", "k", NOW_MS)),
    ],
)
def test_a_verb_is_read(given: dict[str, str], verb: CarriedTimerVerb | None) -> None:
    assert parse_verb(message(**given), NOW_MS) == verb


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"TW_TIMER_CANCEL": "a", "TW_TIMER_FIRE": "b"}, "one verb.*TW_TIMER_CANCEL, TW_TIMER_FIRE"),
        ({"TW_TIMER_TO": "30m"}, "one verb.*none"),
        ({"TW_TIMER_TOPIC": "u"}, "one verb.*none"),
        ({"TW_TIMER_MOVE": "k"}, "TW_TIMER_TO"),
        ({"TW_TIMER_CANCEL": "k", "TW_TIMER_TO": "30m"}, "TW_TIMER_TO"),
        ({"TW_TIMER_CANCEL": ""}, "TW_TIMER_CANCEL is ''"),
        ({"TW_TIMER_FIRE": "  "}, "TW_TIMER_FIRE is '  '"),
        ({"TW_TIMER_FIRE": "k" * (limits.TIMER_NAME_CHARACTERS_MAX + 1)}, "at most 128 characters"),
        ({"TW_TIMER_FIRE": "k", "TW_TIMER_TOPIC": ""}, "TW_TIMER_TOPIC is empty"),
        ({"TW_TIMER_VERDICT": "CANCELLED"}, "broker's answer"),
        ({"TW_TIMER_CANCEL": "k", "TW_TIMER_VERDICT": "CANCELLED"}, "broker's answer"),
    ],
)
def test_what_is_no_verb_is_refused(given: dict[str, str], complaint: str) -> None:
    with pytest.raises(IllegalProperty, match=complaint):
        parse_verb(message(**given), NOW_MS)


@pytest.mark.parametrize(
    "to", ["", "soon", "-5m", "30 m", "30", "1763700000", "9" * 18, "9" * 30, "999999999999999d", "3661d"]
)
def test_a_move_to_what_is_no_time_is_refused(to: str) -> None:
    with pytest.raises(IllegalDeliveryTime, match="TW_TIMER_TO is"):
        parse_verb(
            with_absolute_times(message(TW_TIMER_MOVE="k", TW_TIMER_TO=to), NOW_MS),
            NOW_MS,
            limits.DELAY_MS_MAX,
        )


def test_a_move_that_no_timer_can_make_is_refused_by_whoever_takes_it() -> None:
    with pytest.raises(IllegalDeliveryTime, match="no timer can be set for that"):
        parse_verb(message(TW_TIMER_MOVE="k", TW_TIMER_TO="9" * 18), NOW_MS)


def test_the_brokers_own_limit_holds_for_a_move() -> None:
    far = message(TW_TIMER_MOVE="k", TW_TIMER_TO="2h")
    assert parse_verb(far, NOW_MS, 7_200_000) is not None
    with pytest.raises(IllegalDeliveryTime, match="the limit is 1h59m59s"):
        parse_verb(far, NOW_MS, 7_199_999)


def test_a_span_counts_from_when_the_message_came_in() -> None:
    """A half may be committed long after: the move means the time that its producer meant."""
    came = with_absolute_times(message(TW_TIMER_MOVE="k", TW_TIMER_TO="30m"), NOW_MS)
    assert came.properties["TW_TIMER_TO"] == str(LATER_MS)
    verb = parse_verb(came, NOW_MS + 600_000)
    assert verb is not None
    assert verb.to_ms == LATER_MS


def test_the_time_of_a_move_is_the_brokers_inside_and_the_callers_outside() -> None:
    offset_ms = 5_000_000
    clock = Clock(lambda: NOW_MS, StoredClockOffset(MemoryDisk(), offset_ms))
    sent = message(TW_TIMER_MOVE="k", TW_TIMER_TO=str(LATER_MS))
    inside = clock.to_broker_time(sent)
    assert inside.properties["TW_TIMER_TO"] == str(LATER_MS + offset_ms)
    assert clock.to_real_time(inside).properties == sent.properties


@pytest.mark.parametrize("to", ["", "soon", "30m", "9" * 19])
def test_what_is_no_absolute_time_is_not_shifted_but_refused_later(to: str) -> None:
    given = {"TW_TIMER_MOVE": "k", "TW_TIMER_TO": to}
    assert with_shifted_time(given, 1_000) is given


def test_every_refusal_is_the_clients_to_mend() -> None:
    assert issubclass(IllegalProperty, ClientMistake)
    assert issubclass(IllegalDeliveryTime, ClientMistake)
