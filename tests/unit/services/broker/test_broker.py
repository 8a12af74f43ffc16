"""The broker's verbs one by one, over the in-memory disk and a clock that the test moves."""

from __future__ import annotations

import zlib
from dataclasses import replace

import pytest

from commitlog import limits
from commitlog.log.recovery import LogScan
from commitlog.records import properties
from commitlog.records.message import Message, MessageType
from consumequeue.filters.filter import parse_tags
from services.broker.spine.errors import (
    IllegalDeliveryTime,
    IllegalKey,
    IllegalMessageGroup,
    IllegalMessageId,
    IllegalProperty,
    IllegalTag,
    InvalidRecallHandle,
    MessageTypeConflict,
    PropertiesTooLarge,
    TopicExists,
    TopicNotFound,
)
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import (
    CheckBackRequest,
    Delivery,
    PendingTimer,
    Resolution,
    SendReceipt,
    TimerName,
    Verdict,
    WakeReceivers,
)
from tests.flushed_broker import NOW_MS, FlushedBroker
from tidewheel import property_names
from tidewheel.errors import (
    BodyEmpty,
    BodyTooLarge,
    IllegalTopic,
    InvalidReceiptHandle,
    TidewheelError,
    TransactionEnded,
)
from txn.checkback import CheckBackPolicy

SETTINGS = BrokerSettings(
    segment_bytes=64 * 1024,
    attempts_max=2,
    check_back=CheckBackPolicy(immunity_ms=6_000, interval_ms=10_000, count_max=2),
)


class Bench(FlushedBroker):
    """A broker with everything flushed after each call."""

    def __init__(self, settings: BrokerSettings = SETTINGS) -> None:
        super().__init__(settings)

    def message(self, **attributes: object) -> Message:
        self.count += 1
        given = {"topic": "t", "body": b"hello", "message_id": f"M{self.count}"} | attributes
        return Message(**given)  # type: ignore[arg-type]

    def send(self, **attributes: object) -> SendReceipt:
        receipt = self.broker.sending.send(self.message(**attributes), self.now_ms)
        self.flush()
        return receipt

    def receive(
        self, group: str = "g", topic: str = "t", tags: str = "*", batch: int = 32, **options: object
    ) -> list[Delivery]:
        arguments = {"invisible_ms": 20_000, "client_id": "c", "auto_renew": False} | options
        return self.broker.receiving.receive(
            group, topic, parse_tags(tags), batch, now_ms=self.now_ms, **arguments
        ).deliveries


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_message_is_invisible_until_it_is_durable(bench: Bench) -> None:
    receipt = bench.broker.sending.send(bench.message(), NOW_MS)
    assert receipt.durable_at > bench.broker.durable_offset
    assert bench.receive() == []
    assert bench.flush() == [WakeReceivers(("t",))]
    assert bench.broker.durable_offset >= receipt.durable_at
    assert [one.message.message_id for one in bench.receive()] == ["M1"]


def test_what_was_sent_is_what_is_received(bench: Bench) -> None:
    sent = bench.message(tag="paid", keys=("k1", "k2"), properties={"shop": "eu"}, born_ms=5, gzip=True)
    bench.broker.sending.send(sent, NOW_MS)
    bench.flush()
    (got,) = bench.receive()
    assert got.message == sent
    assert got.attempt == 1


def test_zlib_that_a_client_declares_as_gzip_is_given_out_plain_and_is_work_for_a_receive(
    bench: Bench,
) -> None:
    plain = bytes(limits.BODY_BYTES_MAX)
    for number in range(3):
        sent = bench.message(body=zlib.compress(plain), message_id=f"Z{number}", gzip=True)
        bench.broker.sending.send(sent, NOW_MS)
    bench.flush()
    received = [bench.receive(), bench.receive(), bench.receive()]
    assert [[(one.message.gzip, one.message.body == plain) for one in each] for each in received] == [
        [(False, True)]
    ] * 3


def test_what_unpacks_to_more_than_a_client_may_send_is_given_out_as_stored(bench: Bench) -> None:
    packed = zlib.compress(bytes(limits.BODY_BYTES_MAX + 1))
    bench.broker.sending.send(bench.message(body=packed, gzip=True), NOW_MS)
    bench.flush()
    (got,) = bench.receive()
    assert (got.message.body, got.message.gzip) == (packed, True)


def test_a_delayed_message_comes_at_its_millisecond(bench: Bench) -> None:
    bench.send(delivery_ms=NOW_MS + 1_234)
    assert bench.advance(1_233) == []
    assert bench.receive() == []
    assert bench.advance(1) == [WakeReceivers(("t",))]
    (got,) = bench.receive()
    assert got.store_ms == NOW_MS + 1_234


def test_pending_timers_survive_a_restart_and_come_once(bench: Bench) -> None:
    bench.send(delivery_ms=NOW_MS + 500)
    bench.send(delivery_ms=NOW_MS + 90_000)
    bench.reopen()
    bench.advance(1_000)
    assert len(bench.receive()) == 1
    bench.reopen()
    assert bench.broker.gauges().pending_timers == 1
    bench.advance(100_000)
    assert [one.message.message_id for one in bench.receive()] == ["M1", "M2"]


def test_a_timer_that_is_known_again_takes_its_key_from_no_other() -> None:
    hour_ms = 3_600_000
    bench = Bench(replace(SETTINGS, timer_history_ms=hour_ms))
    key = {property_names.TIMER_KEY: "k"}
    bench.send(message_id="late", delivery_ms=NOW_MS + 1, properties=dict(key))
    bench.now_ms += 2 * hour_ms  # nothing is delivered: the broker was away
    bench.send(message_id="other", delivery_ms=bench.now_ms + hour_ms, properties=dict(key))
    bench.settings = replace(SETTINGS, timer_history_ms=168 * hour_ms)
    bench.reopen()
    timers, now_ms = bench.broker.timers, bench.now_ms
    assert timers.move(TimerName("t", "late"), now_ms + hour_ms, now_ms).verdict is Verdict.MOVED
    found = timers.get_timer(TimerName("t", key="k"), now_ms)
    assert isinstance(found, PendingTimer)
    assert found.message_id == "other"
    assert timers.move(TimerName("t", "late"), now_ms + 2 * hour_ms, now_ms).verdict is Verdict.MOVED
    assert timers.cancel(TimerName("t", key="k"), "", now_ms).message_id == "other"


def test_recall_tells_the_truth(bench: Bench) -> None:
    first = bench.send(delivery_ms=NOW_MS + 500)
    second = bench.send(delivery_ms=NOW_MS + 500)
    cancelled = bench.broker.timers.recall("t", first.recall_handle, NOW_MS)
    bench.flush()
    assert cancelled.verdict is Verdict.CANCELLED
    bench.advance(1_000)
    bench.reopen()
    assert [one.message.message_id for one in bench.receive()] == ["M2"]
    assert bench.broker.timers.recall("t", first.recall_handle, bench.now_ms).verdict is Verdict.ALREADY
    late = bench.broker.timers.recall("t", second.recall_handle, bench.now_ms)
    assert (late.verdict, late.ended_ms) == (Verdict.TOO_LATE, NOW_MS + 500)
    with pytest.raises(InvalidRecallHandle, match="is for topic 't'"):
        bench.broker.timers.recall("other", first.recall_handle, bench.now_ms)
    with pytest.raises(InvalidRecallHandle):
        bench.broker.timers.recall("t", "?", bench.now_ms)


def test_a_recall_of_what_was_never_here_is_told_apart_from_what_was_forgotten() -> None:
    bench = Bench(replace(SETTINGS, timer_history_ms=3_600_000))
    foreign = Bench().send(delivery_ms=NOW_MS + 500).recall_handle
    assert bench.broker.timers.recall("t", foreign, NOW_MS).verdict is Verdict.NEVER_SET
    known = bench.send(delivery_ms=NOW_MS + 500, message_id="own").recall_handle
    bench.advance(bench.settings.timer_history_ms)
    assert bench.broker.timers.recall("t", known, bench.now_ms).verdict is not Verdict.FORGOTTEN
    bench.advance(1_000)
    bench.broker.tick(bench.now_ms)
    assert bench.broker.timers.recall("t", known, bench.now_ms).verdict is Verdict.FORGOTTEN


def test_a_commit_delivers_once_however_often_it_is_repeated(bench: Bench) -> None:
    half = bench.send(transactional=True)
    assert bench.receive() == []
    first = bench.broker.transactions.end("t", half.transaction_id, "M1", Resolution.COMMIT, NOW_MS)
    again = bench.broker.transactions.end("t", half.transaction_id, "M1", Resolution.COMMIT, NOW_MS)
    assert (first.repeated, again.repeated) == (False, True)
    assert half.durable_at < again.durable_at <= first.durable_at
    bench.flush()
    bench.reopen()
    assert bench.broker.transactions.end("t", half.transaction_id, "M1", Resolution.COMMIT, NOW_MS).repeated
    with pytest.raises(TransactionEnded, match="COMMITTED"):
        bench.broker.transactions.end("t", half.transaction_id, "M1", Resolution.ROLLBACK, NOW_MS)
    assert len(bench.receive()) == 1


def test_a_rollback_delivers_nothing_and_stays(bench: Bench) -> None:
    half = bench.send(transactional=True)
    bench.broker.transactions.end("t", half.transaction_id, "M1", Resolution.ROLLBACK, NOW_MS)
    bench.flush()
    bench.reopen()
    with pytest.raises(TransactionEnded, match="ROLLED_BACK"):
        bench.broker.transactions.end("t", half.transaction_id, "M1", Resolution.COMMIT, NOW_MS)
    bench.advance(1_000_000)
    assert bench.receive() == []


def test_a_silent_producer_is_asked_until_the_half_expires(bench: Bench) -> None:
    half = bench.send(transactional=True, keys=("order-1",))
    assert bench.advance(5_999) == []
    (check,) = bench.advance(1)
    assert isinstance(check, CheckBackRequest)
    assert (check.transaction_id, check.topic) == (half.transaction_id, "t")
    assert bench.broker.transactions.message(check.half_offset).keys == ("order-1",)
    bench.broker.transactions.complete_check_back(check.transaction_id, False, bench.now_ms)
    assert bench.advance(1_000_000) == [], "with nobody to ask it waits, and nobody looks at it"
    bench.broker.transactions.schedule_waiting_check_backs("t", bench.now_ms)
    (again,) = bench.advance(1)
    assert again == check
    for pause_ms in (10_000, 20_000):
        bench.broker.transactions.complete_check_back(check.transaction_id, True, bench.now_ms)
        bench.flush()
        bench.reopen()
        assert len(bench.advance(pause_ms)) == (1 if pause_ms == 10_000 else 0)
    assert bench.broker.statistics.expired["t"] == 1
    with pytest.raises(TransactionEnded, match="EXPIRED"):
        bench.broker.transactions.end("t", half.transaction_id, "M1", Resolution.COMMIT, bench.now_ms)


def test_a_half_with_its_own_immunity_is_asked_no_earlier(bench: Bench) -> None:
    bench.send(transactional=True, check_immunity_ms=30_500)
    assert bench.advance(30_499) == []
    assert len(bench.advance(1)) == 1


def test_a_delayed_half_is_armed_by_its_commit(bench: Bench) -> None:
    half = bench.send(transactional=True, delivery_ms=NOW_MS + 5_000)
    bench.broker.transactions.end("t", half.transaction_id, "M1", Resolution.COMMIT, NOW_MS)
    bench.flush()
    bench.reopen()
    bench.advance(4_999)
    assert bench.receive() == []
    bench.advance(1)
    assert len(bench.receive()) == 1


def test_a_retried_delayed_send_or_half_stores_nothing_new(bench: Bench) -> None:
    for attributes in ({"delivery_ms": NOW_MS + 50}, {"transactional": True}):
        receipt = bench.send(message_id="same" + str(len(attributes)) + str(attributes), **attributes)
        end = bench.broker.gauges().log_end_offset
        bench.reopen()
        again = bench.send(message_id=receipt.message_id, **attributes)
        assert (again.physical_offset, bench.broker.gauges().log_end_offset) == (receipt.physical_offset, end)
        assert (again.recall_handle, again.transaction_id) == (receipt.recall_handle, receipt.transaction_id)


def test_an_unacknowledged_message_comes_again_then_goes_to_the_dead_letters(bench: Bench) -> None:
    bench.send()
    assert [one.attempt for one in bench.receive()] == [1]
    assert bench.receive() == []
    assert bench.advance(20_000) == [WakeReceivers(("t",))]
    assert [one.attempt for one in bench.receive()] == [2]
    bench.advance(20_000)
    assert bench.receive() == []
    bench.flush()
    (dead,) = bench.receive(topic="%DLQ%g")
    assert dead.message.body == b"hello"
    (record,) = [
        found.record
        for found in LogScan(bench.disk, bench.broker.segment_bytes)
        if found.record.topic == "%DLQ%g"
    ]
    assert properties.value_of(record.properties, property_names.DEAD_LETTER_TOPIC) == "t"
    bench.reopen()
    assert bench.receive() == []


def test_a_delayed_message_among_the_dead_letters_ends_its_timer_once(bench: Bench) -> None:
    bench.send(delivery_ms=NOW_MS + 500)
    bench.advance(500)
    (got,) = bench.receive()
    bench.broker.receiving.forward_to_dead_letter("g", "t", got.receipt_handle, bench.now_ms)
    bench.flush()
    bench.reopen()
    assert [one.message.message_id for one in bench.receive(topic="%DLQ%g")] == ["M1"]


def test_a_topic_whose_record_was_damaged_is_known_by_its_messages() -> None:
    bench = Bench(BrokerSettings(segment_bytes=64 * 1024, auto_create_topics=False))
    bench.broker.topics.create("t", MessageType.NORMAL, 3, NOW_MS)
    for _ in range(6):
        bench.send()
    bench.disk.flip_bit("commitlog/00000000000000000000", 800)
    bench.reopen()
    assert bench.broker.topics.get("t").queue_count == 3
    assert len(bench.receive()) == 6


def test_an_acknowledgement_holds_after_a_restart_and_a_stale_handle_is_refused(bench: Bench) -> None:
    bench.send()
    bench.send()
    first, second = bench.receive()
    durable_at = bench.broker.receiving.ack("g", "t", first.receipt_handle, NOW_MS)
    assert durable_at > bench.broker.durable_offset
    bench.flush()
    assert durable_at <= bench.broker.durable_offset
    with pytest.raises(InvalidReceiptHandle):
        bench.broker.receiving.ack("g", "t", first.receipt_handle, NOW_MS)
    bench.reopen()
    with pytest.raises(InvalidReceiptHandle):
        bench.broker.receiving.ack("g", "t", second.receipt_handle, NOW_MS)
    assert [one.message.message_id for one in bench.receive()] == [second.message.message_id]


def test_change_invisible_gives_a_new_handle_and_voids_the_old(bench: Bench) -> None:
    bench.send()
    (got,) = bench.receive()
    handle, _ = bench.broker.receiving.change_invisible("g", "t", got.receipt_handle, 1_000, False, NOW_MS)
    with pytest.raises(InvalidReceiptHandle):
        bench.broker.receiving.ack("g", "t", got.receipt_handle, NOW_MS)
    assert bench.advance(999) == []
    assert bench.advance(1) == [WakeReceivers(("t",))]
    with pytest.raises(InvalidReceiptHandle):
        bench.broker.receiving.ack("g", "t", handle, bench.now_ms)


def test_a_push_lease_lasts_while_its_client_is_heard_from(bench: Bench) -> None:
    bench.send()
    (got,) = bench.receive(auto_renew=True, invisible_ms=0)
    for _ in range(5):
        assert bench.advance(20_000) == []
        bench.broker.receiving.renew_client("c", bench.now_ms)
    bench.broker.receiving.expire_client("c", bench.now_ms)
    assert bench.advance(0) == [WakeReceivers(("t",))]
    (again,) = bench.receive()
    assert (again.message.message_id, again.attempt) == (got.message.message_id, 2)


def test_a_listener_that_hangs_for_hours_loses_its_lease(bench: Bench) -> None:
    bench.send()
    bench.receive(auto_renew=True, invisible_ms=0)
    heartbeats = 0
    while not bench.advance(20_000):
        bench.broker.receiving.renew_client("c", bench.now_ms)
        heartbeats += 1
    assert heartbeats * 20_000 >= limits.AUTO_RENEW_MS_MAX


def test_lag_counts_the_queues_that_a_group_has_not_touched(bench: Bench) -> None:
    for _ in range(8):
        bench.send()
    (first,) = bench.receive(batch=1)
    bench.broker.receiving.ack("g", "t", first.receipt_handle, NOW_MS)
    assert bench.broker.groups.lag() == {("t", "g"): 7}


def test_tags_are_filtered_and_groups_do_not_disturb_each_other(bench: Bench) -> None:
    for tag in ("paid", "new", "sent", ""):
        bench.send(tag=tag)
    assert sorted(one.message.tag for one in bench.receive("g", tags="paid || sent")) == ["paid", "sent"]
    assert len(bench.receive("other")) == 4


def test_messages_of_a_group_share_a_queue_and_keep_their_order(bench: Bench) -> None:
    for number in range(20):
        bench.send(message_group="order-7", body=b"%d" % number)
    got = []
    while leased := bench.receive():
        assert len(leased) == 1, "one message of a message group at a time"
        got += leased
        bench.broker.receiving.ack("g", "t", leased[0].receipt_handle, NOW_MS)
    assert len({one.queue_id for one in got}) == 1
    assert [one.message.body for one in got] == [b"%d" % number for number in range(20)]


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("orders", "There is no 'orders'. Create it: tidewheel topic create orders"),
        ("a|b", "There is no 'a|b'. Create it: tidewheel topic create 'a|b'"),
        ("two words", "There is no 'two words'."),
        ("TW_SYS_NONE", "There is no 'TW_SYS_NONE'."),
    ],
)
def test_only_a_name_that_can_be_created_is_advised_to_be_created(name: str, advice: str) -> None:
    with pytest.raises(TopicNotFound) as refused:
        Bench().broker.topics.get(name)
    assert refused.value.detail == advice


def test_topics_survive_a_restart_and_are_not_made_when_that_is_off() -> None:
    bench = Bench(BrokerSettings(segment_bytes=64 * 1024, auto_create_topics=False))
    with pytest.raises(TopicNotFound, match="tidewheel topic create t"):
        bench.send()
    bench.broker.topics.create("t", MessageType.DELAY, 3, NOW_MS)
    with pytest.raises(TopicExists):
        bench.broker.topics.create("t", MessageType.FIFO, 3, NOW_MS)
    bench.flush()
    bench.reopen()
    assert bench.broker.topics.get("t").queue_count == 3
    with pytest.raises(MessageTypeConflict, match="takes DELAY messages, this one is NORMAL"):
        bench.send()


@pytest.mark.parametrize(
    ("attributes", "error"),
    [
        ({"body": b""}, BodyEmpty),
        ({"body": b"x" * (4 * 1024 * 1024 + 1)}, BodyTooLarge),
        ({"topic": "a b"}, IllegalTopic),
        ({"topic": "TW_SYS_ACK"}, IllegalTopic),
        ({"topic": "rmq_sys_wheel_timer"}, IllegalTopic),
        ({"message_id": ""}, IllegalMessageId),
        ({"tag": "a|b"}, IllegalTag),
        ({"tag": " "}, IllegalTag),
        ({"keys": ("a\x01",)}, IllegalKey),
        ({"message_group": "g" * 64}, IllegalMessageGroup),
        ({"properties": {"UNIQ_KEY": "x"}}, IllegalProperty),
        ({"properties": {"a": "\x02"}}, IllegalProperty),
        ({"properties": {"a": "x" * 17_000}}, PropertiesTooLarge),
        ({"trace_context": "x" * 70_000}, PropertiesTooLarge),
        ({"keys": ("a ", *["b"] * 16_382)}, PropertiesTooLarge),
        ({"keys": ("a ",) * 3_300}, PropertiesTooLarge),
        ({"keys": ("b",) * 8_193}, PropertiesTooLarge),
        ({"trace_context": "a\x01b\x02"}, IllegalProperty),
        ({"properties": {str(number): "x" for number in range(129)}}, PropertiesTooLarge),
        ({"delivery_ms": NOW_MS * 1000}, IllegalDeliveryTime),
    ],
)
def test_bad_messages_are_refused_and_nothing_is_stored(
    bench: Bench, attributes: dict[str, object], error: type[TidewheelError]
) -> None:
    bench.send()
    end = bench.broker.gauges().log_end_offset
    with pytest.raises(error, match=r"\w+ "):
        bench.send(**attributes)
    assert bench.broker.gauges().log_end_offset == end


def test_a_queue_is_searched_by_store_time() -> None:
    bench = Bench()
    receipts = []
    for _ in range(20):
        receipts.append(bench.send(message_group="one"))
        bench.advance(100)
    (queue_id,) = {one.queue_id for one in bench.receive()}
    found = [
        bench.broker.finding.offset_at("t", queue_id, NOW_MS + after_ms)
        for after_ms in (-9, 0, 1, 950, 1_900, 1_901)
    ]
    assert found == [0, 0, 1, 10, 19, 20]
    bench.disk.flip_bit("commitlog/" + "0" * 20, (receipts[10].physical_offset + 60) * 8)
    for after_ms in (950, 1_050):  # a damaged record counts as its successor
        assert bench.broker.finding.offset_at("t", queue_id, NOW_MS + after_ms) == 10
    assert bench.broker.finding.offset_at("t", queue_id, NOW_MS + 1_150) == 12


def test_a_damaged_record_is_skipped_and_counted_and_the_rest_arrives() -> None:
    bench = Bench(BrokerSettings(segment_bytes=64 * 1024, queue_count=1))
    receipts = [bench.send() for _ in range(3)]
    bench.disk.flip_bit("commitlog/" + "0" * 20, (receipts[1].physical_offset + 60) * 8)
    assert [one.message.message_id for one in bench.receive("live")] == ["M1", "M3"]
    assert bench.broker.damage.unreadable_records == 1
    bench.reopen()
    assert [one.queue_offset for one in bench.receive("later")] == [0, 2]
    assert len(bench.broker.damaged) == 1
