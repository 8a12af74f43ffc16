"""Replies written without protobuf are, byte for byte, what protobuf writes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.broker.spine.errors import KeyPending
from services.broker.spine.values import SendReceipt
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service
from services.rpc.handlers.receiving import acknowledged_reply
from services.rpc.handlers.sending import sent_reply, stored_result
from services.rpc.wire.statuses import OK
from tidewheel.errors import IllegalTopic, InvalidReceiptHandle

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
OFFSETS = st.integers(0, (1 << 63) - 1)
RECEIPTS = st.builds(
    SendReceipt, TEXTS.filter(bool), OFFSETS, OFFSETS, TEXTS, TEXTS, OFFSETS, st.integers(-1, 9)
)


@given(st.lists(RECEIPTS, min_size=1, max_size=5))
def test_messages_that_were_stored(receipts: list[SendReceipt]) -> None:
    request = service.SendMessageRequest(messages=[wire.Message() for _ in receipts])
    decided = sent_reply(request, receipts)
    expected = service.SendMessageResponse(status=OK, entries=map(stored_result, receipts))
    assert decided.reply == expected.SerializeToString()
    assert decided.durable_at == max(receipt.durable_at for receipt in receipts)
    assert decided.code == "OK"


def test_one_that_was_refused_makes_the_whole_a_mixed_one_that_waits_for_what_it_rests_on() -> None:
    receipt = SendReceipt("id", 7, 70, "", "", 100)
    named = wire.Message(system_properties=wire.SystemProperties(message_id="other"))
    request = service.SendMessageRequest(messages=[wire.Message(), named, named])
    decided = sent_reply(request, [receipt, KeyPending("it waits", durable_at=300), IllegalTopic("no")])
    reply = service.SendMessageResponse.FromString(decided.reply)
    assert decided.durable_at == 300
    assert decided.code == "MULTIPLE_RESULTS" == wire.Code.Name(reply.status.code)
    assert [one.message_id for one in reply.entries] == ["id", "other", "other"]


@given(st.lists(st.tuples(TEXTS, TEXTS.filter(bool), st.none() | TEXTS, OFFSETS), min_size=1))
def test_messages_that_were_acknowledged(given: list[tuple[str, str, str | None, int]]) -> None:
    entries = [
        service.AckMessageEntry(message_id=message_id, receipt_handle=handle, lite_topic=lite_topic)
        for message_id, handle, lite_topic, _ in given
    ]
    decided = acknowledged_reply(entries, [one[3] for one in given])
    results = [
        service.AckMessageResultEntry(message_id=one.message_id, receipt_handle=one.receipt_handle, status=OK)
        for one in entries
    ]
    assert decided.reply == service.AckMessageResponse(status=OK, entries=results).SerializeToString()
    assert decided.durable_at == max(one[3] for one in given)


def test_one_that_was_not_acknowledged_is_told_why() -> None:
    entries = [service.AckMessageEntry(receipt_handle=handle) for handle in ("good", "void")]
    decided = acknowledged_reply(entries, [500, InvalidReceiptHandle("it has run out")])
    reply = service.AckMessageResponse.FromString(decided.reply)
    assert (decided.durable_at, decided.code) == (500, "MULTIPLE_RESULTS")
    assert [one.status.code for one in reply.entries] == [wire.OK, wire.INVALID_RECEIPT_HANDLE]
