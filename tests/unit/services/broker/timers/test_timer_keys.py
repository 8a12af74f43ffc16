"""The key of a timer, judged before anything is stored."""

from __future__ import annotations

import pytest

from commitlog import limits
from commitlog.records.message import Message
from services.broker.broker import Broker
from services.broker.spine.errors import IllegalKey, IllegalProperty
from services.broker.spine.settings import BrokerSettings
from tests.memory_disk import MemoryDisk
from tidewheel.errors import ClientMistake

NOW_MS = 1_763_700_000_000
LONGEST = "k" * limits.TIMER_NAME_CHARACTERS_MAX


@pytest.fixture
def broker() -> Broker:
    return Broker.open(MemoryDisk(), BrokerSettings(segment_bytes=1 << 16), NOW_MS)


def message(**given: str) -> Message:
    return Message(topic="t", body=b"x", message_id="1", delivery_ms=NOW_MS + 1_000, properties=given)


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        ({"TW_TIMER_KEY": ""}, IllegalKey),
        ({"TW_TIMER_KEY": "  "}, IllegalKey),
        ({"TW_TIMER_KEY": LONGEST + "k"}, IllegalKey),
        ({"TW_TIMER_UNIQUE": "true"}, IllegalProperty),
        ({"TW_TIMER_KEY": "k", "TW_TIMER_UNIQUE": "yes"}, IllegalProperty),
        ({"TW_TIMER_KEY": "k", "TW_TIMER_UNIQUE": ""}, IllegalProperty),
    ],
)
def test_a_key_that_cannot_be_is_refused(
    broker: Broker, given: dict[str, str], refusal: type[ClientMistake]
) -> None:
    with pytest.raises(refusal, match="TW_TIMER_"):
        broker.sending.send(message(**given), NOW_MS)


@pytest.mark.parametrize(
    "given",
    [
        {"TW_TIMER_KEY": LONGEST},
        {"TW_TIMER_KEY": "order 1"},
        {"TW_TIMER_KEY": "k", "TW_TIMER_UNIQUE": "TRUE"},
        {"TW_TIMER_KEY": "k", "TW_TIMER_UNIQUE": "false"},
    ],
)
def test_a_key_that_can_be_is_taken(broker: Broker, given: dict[str, str]) -> None:
    assert broker.sending.send(message(**given), NOW_MS).recall_handle
