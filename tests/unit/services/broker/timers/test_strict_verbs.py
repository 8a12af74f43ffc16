"""A verb in a message on a timer that nobody knows: seen in the metrics, and refused if it is strict."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from commitlog.records.message import Message
from services.broker.broker import Broker
from services.broker.spine.errors import IllegalProperty, TimerUnknown
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import Resolution, SendReceipt
from tests.memory_disk import MemoryDisk

NOW_MS = 1_763_700_000_000
HOUR_MS = 3_600_000
STRICT = {"TW_TIMER_STRICT": "true"}
VERBS = [
    {"TW_TIMER_CANCEL": "order:7"},
    {"TW_TIMER_FIRE": "order:7"},
    {"TW_TIMER_MOVE": "order:7", "TW_TIMER_TO": str(NOW_MS + HOUR_MS)},
]


class Desk:
    """A broker whose topic `deadlines` has a timer `order:7`; `paid` is sent to `orders`."""

    def __init__(self) -> None:
        self.settings = BrokerSettings(segment_bytes=1 << 16)
        self.broker = Broker.open(MemoryDisk(), self.settings, NOW_MS)
        self._ids = map(str, count())
        self.set("order:7")

    def set(self, key: str) -> None:
        self.send("deadlines", {"TW_TIMER_KEY": key}, delivery_ms=NOW_MS + HOUR_MS)

    def send(self, topic: str, properties: dict[str, str], **more: Any) -> SendReceipt:
        message = Message(topic=topic, body=b"x", message_id=next(self._ids), properties=properties, **more)
        receipt = self.broker.sending.send(message, NOW_MS)
        self.flush()
        return receipt

    def flush(self) -> None:
        while (flush := self.broker.take_flush()) is not None:
            flush.write()
            self.broker.complete_flush(flush, NOW_MS)

    def verdicts(self) -> dict[tuple[str, str], int]:
        return dict(self.broker.statistics.carried_verdicts)

    def count(self) -> int:
        return self.broker.store.log.end_offset


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("more", [{}, {"TW_TIMER_TOPIC": "deadline"}], ids=["forgotten", "wrong"])
def test_a_verb_without_its_topic_finds_nothing_which_is_counted_by_the_messages_topic(
    desk: Desk, verb: dict[str, str], more: dict[str, str]
) -> None:
    desk.send("orders", verb | more)
    assert desk.verdicts() == {("orders", "NEVER_SET"): 1}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("more", [{}, {"TW_TIMER_TOPIC": "deadline"}], ids=["forgotten", "wrong"])
@pytest.mark.parametrize("kind", [{}, {"transactional": True}, {"delivery_ms": NOW_MS + 1}])
def test_a_strict_verb_on_an_unknown_timer_is_refused_and_nothing_is_stored(
    desk: Desk, verb: dict[str, str], more: dict[str, str], kind: dict[str, Any]
) -> None:
    before = desk.count()
    with pytest.raises(TimerUnknown, match=r"strict timer operation.*'order:7'.*TW_TIMER_TOPIC"):
        desk.send("orders", verb | more | STRICT, **kind)
    assert (desk.count(), desk.verdicts()) == (before, {})


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("strict", ["true", "TRUE", "false"])
def test_a_strict_verb_on_a_timer_that_is_there_is_carried_out(
    desk: Desk, verb: dict[str, str], strict: str
) -> None:
    desk.send("orders", verb | {"TW_TIMER_TOPIC": "deadlines", "TW_TIMER_STRICT": strict})
    [((topic, verdict), times)] = desk.verdicts().items()
    assert (topic, times) == ("orders", 1)
    assert verdict in ("CANCELLED", "FIRED", "MOVED")


def test_a_strict_cancel_that_comes_too_late_is_stored_with_its_verdict(desk: Desk) -> None:
    named = {"TW_TIMER_CANCEL": "order:7", "TW_TIMER_TOPIC": "deadlines"}
    desk.send("orders", {"TW_TIMER_FIRE": "order:7", "TW_TIMER_TOPIC": "deadlines"})
    desk.send("orders", named | STRICT)
    assert desk.verdicts() == {("orders", "FIRED"): 1, ("orders", "TOO_LATE"): 1}


def test_a_strict_half_is_refused_at_once_and_its_commit_never(desk: Desk) -> None:
    """The timer ends between half and commit: the commit stands, and says what it found."""
    named = {"TW_TIMER_CANCEL": "order:7", "TW_TIMER_TOPIC": "deadlines"}
    half = desk.send("orders", named | STRICT, transactional=True)
    assert desk.verdicts() == {}
    desk.send("orders", named)
    desk.broker.transactions.end("orders", half.transaction_id, half.message_id, Resolution.COMMIT, NOW_MS)
    desk.flush()
    assert desk.verdicts() == {("orders", "CANCELLED"): 1, ("orders", "ALREADY"): 1}
    assert desk.broker.half_views.get_half(half.transaction_id).verdict.startswith("ALREADY at ")


def test_a_forgotten_timer_is_unknown_too(desk: Desk) -> None:
    named = {"TW_TIMER_CANCEL": "order:7", "TW_TIMER_TOPIC": "deadlines"}
    desk.send("orders", named)
    later_ms = NOW_MS + 10 * 86_400_000 + desk.settings.timer_history_ms
    paid = Message(topic="orders", body=b"x", message_id="late", properties=named | STRICT)
    with pytest.raises(TimerUnknown, match="nor remembers one"):
        desk.broker.sending.send(paid, later_ms)


def test_a_repeated_strict_cancel_is_answered_as_the_first_one(desk: Desk) -> None:
    named = {"TW_TIMER_CANCEL": "order:7", "TW_TIMER_TOPIC": "deadlines"} | STRICT
    message = Message(topic="orders", body=b"x", message_id="m", properties=named)
    first = desk.broker.sending.send(message, NOW_MS)
    assert desk.broker.sending.send(message, NOW_MS).physical_offset == first.physical_offset
    assert desk.verdicts() == {("orders", "CANCELLED"): 1}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"TW_TIMER_CANCEL": "k", "TW_TIMER_STRICT": "yes"}, "TW_TIMER_STRICT is 'yes'; give true or false"),
        ({"TW_TIMER_CANCEL": "k", "TW_TIMER_STRICT": ""}, "TW_TIMER_STRICT is ''"),
        ({"TW_TIMER_STRICT": "true"}, "one verb.*none"),
        ({"TW_TIMER_CANCLE": "k", "TW_TIMER_STRICT": "true"}, "one verb.*none"),
    ],
)
def test_what_strict_cannot_mean_is_refused(desk: Desk, given: dict[str, str], said: str) -> None:
    with pytest.raises(IllegalProperty, match=said):
        desk.send("orders", given)
