"""The largest message that is taken leaves room for all that the broker adds to its properties later.

RocketMQ's readers take the length of a record's properties as a signed number of 16 bits; one beyond two
bytes could not be written at all.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from commitlog import limits
from commitlog.log.recovery import LogScan
from commitlog.records import record
from commitlog.records.message import Message
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import Resolution, TimerName
from tests.unit.services.broker.groups.test_receiving import Bench
from tidewheel.errors import PropertiesTooLarge
from tidewheel.message_rules import check_said

TOPIC, OTHER, GROUP = ("t" * limits.TOPIC_CHARACTERS_MAX, "o" * 127, "g" * limits.GROUP_CHARACTERS_MAX)
WIDE = "\U0001f600"
CLIENT = "c" * 15_000
SETTINGS = BrokerSettings(segment_bytes=1 << 20, attempts_max=2, queue_count=1)

LARGE = {
    "one value": lambda size: {"properties": {"a": "x" * size}},
    "a trace": lambda size: {"trace_context": "x" * size},
    "many pairs": lambda size: {"properties": {f"{n:03}": "x" * (size // 128) for n in range(128)}},
    "short keys": lambda size: {"keys": ("b",) * size},
    "keys of which one has a blank": lambda size: {"keys": ("a ", *["b"] * size)},
    "keys with blanks": lambda size: {"keys": ("a ",) * size},
}


@pytest.fixture(params=LARGE)
def texts(request: pytest.FixtureRequest) -> dict[str, object]:
    """Return the most of these texts that a message may have."""
    make, low, high = LARGE[request.param], 1, limits.PROPERTIES_USER_BYTES_MAX + 1
    while high - low > 1:
        size = (low + high) // 2
        try:
            check_said(Message(topic="t", body=b"x", message_id="M", **make(size)))
            low = size
        except PropertiesTooLarge:
            high = size
    return make(low)


def lives(bench: Bench, texts: dict[str, object], *, is_fired: bool) -> None:
    """Lead a message through all that the broker writes of it: half, timer, dead letter, sent again."""
    broker, message_id = bench.broker, WIDE * limits.MESSAGE_ID_CHARACTERS_MAX
    due_ms = bench.now_ms + 3_600_000
    half = {"transactional": True, "delivery_ms": due_ms, "check_immunity_ms": limits.CHECK_IMMUNITY_MS_MAX}
    message = Message(topic=TOPIC, body=b"x", message_id=message_id, **half, **texts)
    receipt = broker.sending.send(message, bench.now_ms)
    bench.flush()
    reason = WIDE * limits.REASON_CHARACTERS_MAX
    broker.transactions.resolve(receipt.transaction_id, Resolution.COMMIT, reason, bench.now_ms)
    bench.flush()
    broker.timers.move(TimerName(TOPIC, message_id), due_ms + 1_000, bench.now_ms, reason=reason)
    bench.flush()
    if is_fired:
        broker.timers.fire(TimerName(TOPIC, message_id), bench.now_ms, reason=reason)
        bench.flush()
    else:
        bench.advance(3_601_000)
    for _ in range(2):
        [_] = bench.receive(GROUP, topic=TOPIC, client_id=CLIENT)
        bench.advance(20_000)
    broker.dead_letters.redrive(GROUP, 0, "", bench.now_ms)
    bench.flush()
    for _ in range(2):
        [got] = bench.receive(GROUP, topic=TOPIC, client_id=CLIENT)
        if got.attempt == 1:
            bench.advance(20_000)
    reason = WIDE * limits.DEAD_REASON_CHARACTERS_MAX
    broker.receiving.forward_to_dead_letter(GROUP, TOPIC, got.receipt_handle, bench.now_ms, reason=reason)
    bench.flush()
    broker.dead_letters.redrive(GROUP, 1, OTHER, bench.now_ms)
    bench.flush()
    [again] = bench.receive(GROUP, topic=OTHER)
    assert again.message.message_id == message_id


def sizes(bench: Bench) -> Iterator[int]:
    for found in LogScan(bench.disk, SETTINGS.segment_bytes):
        yield len(found.record.properties) + record.CRC_BYTES


@pytest.mark.parametrize("is_fired", [False, True])
def test_the_largest_message_leaves_room_for_all_that_is_added(
    texts: dict[str, object], is_fired: bool
) -> None:
    bench = Bench(SETTINGS)
    lives(bench, texts, is_fired=is_fired)
    assert limits.PROPERTIES_USER_BYTES_MAX + 4_000 < max(sizes(bench)) < 26_000
    assert max(sizes(bench)) < limits.PROPERTIES_STORED_BYTES_MAX


def test_a_halfs_commit_with_a_reason_can_be_buried(texts: dict[str, object]) -> None:
    """The reason of who ended the transaction stays on a message without a delivery time."""
    bench = Bench(SETTINGS)
    message_id = WIDE * limits.MESSAGE_ID_CHARACTERS_MAX
    message = Message(topic=TOPIC, body=b"x", message_id=message_id, transactional=True, **texts)
    receipt = bench.broker.sending.send(message, bench.now_ms)
    bench.flush()
    reason = WIDE * limits.REASON_CHARACTERS_MAX
    bench.broker.transactions.resolve(receipt.transaction_id, Resolution.COMMIT, reason, bench.now_ms)
    bench.flush()
    for _ in range(2):
        [got] = bench.receive(GROUP, topic=TOPIC, client_id=CLIENT)
        if got.attempt == 1:
            bench.advance(20_000)
    reason = WIDE * limits.DEAD_REASON_CHARACTERS_MAX
    give_up = bench.broker.receiving.forward_to_dead_letter
    give_up(GROUP, TOPIC, got.receipt_handle, bench.now_ms, reason=reason)
    bench.flush()
    bench.broker.dead_letters.redrive(GROUP, 0, OTHER, bench.now_ms)
    bench.flush()
    assert limits.PROPERTIES_USER_BYTES_MAX + 5_000 < max(sizes(bench)) < 26_000
    assert max(sizes(bench)) < limits.PROPERTIES_STORED_BYTES_MAX
