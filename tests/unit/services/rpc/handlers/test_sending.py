"""SendMessage, EndTransaction, RecallMessage without a transport."""

from __future__ import annotations

from typing import Any

import pytest

from commitlog.records.message import MessageType
from services.broker.spine.values import TimerVerdict, Verdict
from services.broker.timers import recall
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service
from services.rpc.generated.definition_pb2 import Code
from services.rpc.generated.timestamp_pb2 import Timestamp
from services.rpc.handlers.sending import refuse_if_not_cancelled
from services.rpc.wire.caller import Caller
from services.rpc.wire.statuses import name_of
from tidewheel.errors import TidewheelError

NOW_MS = 1_763_700_000_000
TOPIC = wire.Resource(name="t")


def test_a_call_that_does_not_say_who_calls_is_refused(play: Any) -> None:
    async def scenario(front: Any) -> None:
        reply = await front.call("SendMessage", service.SendMessageRequest(), Caller(""))
        assert reply.status.code == Code.CLIENT_ID_REQUIRED
        [lonely] = [one async for one in front.stream("ReceiveMessage", None, Caller(""))]
        assert lonely.status.code == Code.CLIENT_ID_REQUIRED
        assert front.observed == [
            ("SendMessage", "CLIENT_ID_REQUIRED"),
            ("ReceiveMessage", "CLIENT_ID_REQUIRED"),
        ]

    play(scenario)


def test_a_batch_with_different_results_says_so_entry_by_entry(play: Any) -> None:
    async def scenario(front: Any) -> None:
        good, bad = (
            wire.Message(
                topic=TOPIC, body=body, system_properties=wire.SystemProperties(message_id=str(body))
            )
            for body in (b"good", b"")
        )
        reply = await front.call("SendMessage", service.SendMessageRequest(messages=[good, bad, good]))
        assert reply.status.code == Code.MULTIPLE_RESULTS
        assert [entry.status.code for entry in reply.entries] == [Code.OK, Code.MESSAGE_BODY_EMPTY, Code.OK]
        reply = await front.call("SendMessage", service.SendMessageRequest(messages=[bad]))
        assert reply.status.code == Code.MESSAGE_BODY_EMPTY
        assert reply.status.message.startswith("TW-141 ")

    play(scenario)


def test_only_a_half_has_a_transaction_and_only_a_delay_a_handle(play: Any) -> None:
    async def scenario(front: Any) -> None:
        later = Timestamp(seconds=front.now_ms // 1000 + 60)
        [plain] = (await front.send("t", b"plain")).entries
        [half] = (await front.send("t", b"half", message_type="TRANSACTION")).entries
        [timer] = (await front.send("t", b"timer", delivery_timestamp=later)).entries
        assert [bool(one.transaction_id) for one in (plain, half, timer)] == [False, True, False]
        assert [bool(one.recall_handle) for one in (plain, half, timer)] == [False, False, True]

    play(scenario)


def test_not_knowing_yet_leaves_a_half_open(play: Any) -> None:
    async def scenario(front: Any) -> None:
        [half] = (await front.send("t", b"half", message_type="TRANSACTION")).entries
        for resolution, still_open in (("TRANSACTION_RESOLUTION_UNSPECIFIED", 1), ("COMMIT", 0)):
            request = service.EndTransactionRequest(
                topic=TOPIC,
                message_id="ID-half",
                transaction_id=half.transaction_id,
                resolution=resolution,
            )
            assert (await front.call("EndTransaction", request)).status.code == Code.OK
            assert front.live.core.gauges().open_halves == still_open

    play(scenario)


def test_a_transaction_id_of_nobody_is_refused(play: Any) -> None:
    async def scenario(front: Any) -> None:
        for transaction_id in ("", "nonsense"):
            request = service.EndTransactionRequest(
                topic=TOPIC, transaction_id=transaction_id, resolution="COMMIT"
            )
            reply = await front.call("EndTransaction", request)
            assert reply.status.code == Code.INVALID_TRANSACTION_ID

    play(scenario)


def test_a_recall_handle_of_nobody_is_refused(play: Any) -> None:
    async def scenario(front: Any) -> None:
        await front.live.call(front.live.core.topics.create, "t", MessageType.DELAY, 1)
        request = service.RecallMessageRequest(topic=TOPIC, recall_handle="nonsense")
        assert (await front.call("RecallMessage", request)).status.code == Code.BAD_REQUEST

    play(scenario)


@pytest.mark.parametrize(
    "verdict", [one for one in Verdict if one not in (Verdict.CANCELLED, Verdict.ALREADY)]
)
def test_only_a_message_that_will_not_arrive_is_recalled_with_ok(verdict: Verdict) -> None:
    with pytest.raises((TidewheelError, AssertionError), match=verdict.value) as refused:
        refuse_if_not_cancelled(TimerVerdict(verdict, "M1", 0, -1, 0))
    if isinstance(refused.value, TidewheelError):
        assert name_of(type(refused.value)) != "MESSAGE_NOT_FOUND", "the Python client takes that for success"


@pytest.mark.parametrize(
    "given",
    [
        {"__STARTDELIVERTIME": str(NOW_MS + 60_000)},
        {"TIMER_DELIVER_MS": str(NOW_MS + 60_000)},
        {"TIMER_DELAY_SEC": "60"},
        {"TIMER_DELAY_MS": "60000"},
        {"DELAY": "5"},
    ],
)
def test_a_property_delays_a_message_as_the_protocol_does(play: Any, given: dict[str, str]) -> None:
    async def scenario(front: Any) -> None:
        await front.live.call(front.live.core.topics.create, "t", MessageType.DELAY, 1)
        [entry] = (await send(front, given | {"colour": "blue"})).entries
        assert recall.decode(entry.recall_handle).due_ms == NOW_MS + 60_000
        front.pass_time(60_000)
        front.live.tick()
        verdict = await front.live.call(front.live.core.timers.recall, "t", entry.recall_handle)
        assert (verdict.verdict, verdict.ended_ms) == (Verdict.TOO_LATE, NOW_MS + 60_000)
        [delivery] = front.live.query(front.live.core.finding.read, "t", 0, 0, 10)
        assert delivery.message.properties == {"colour": "blue"}
        assert delivery.message.delivery_ms == NOW_MS + 60_000

    play(scenario)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"DELAY": "-1"}, Code.ILLEGAL_DELIVERY_TIME),
        ({"DELAY": "1", "TIMER_DELAY_SEC": "2"}, Code.ILLEGAL_DELIVERY_TIME),
        ({"TIMER_DELAY_SEC": "9" * 18}, Code.ILLEGAL_DELIVERY_TIME),
        ({"TIMER_DELAY_SEC": "60"}, Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ({"TIMER_OUT_MS": "60"}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    ],
)
def test_a_delay_that_cannot_be_is_refused_and_nothing_is_stored(
    play: Any, given: dict[str, str], code: int
) -> None:
    async def scenario(front: Any) -> None:
        await front.live.call(front.live.core.topics.create, "t", MessageType.NORMAL, 1)
        before = front.live.core.durable_offset
        reply = await send(front, given)
        assert (reply.status.code, [entry.message_id for entry in reply.entries]) == (code, ["ID"])
        await send(front, {})
        [delivery] = front.live.query(front.live.core.finding.read, "t", 0, 0, 10)
        assert delivery.physical_offset == before

    play(scenario)


def test_a_delay_inside_a_transaction_counts_from_its_send(play: Any) -> None:
    """The official clients refuse a delivery timestamp there; a property passes them."""

    async def scenario(front: Any) -> None:
        [half] = (await send(front, {"DELAY": "5"}, message_type="TRANSACTION")).entries
        front.pass_time(10_000)
        request = service.EndTransactionRequest(
            topic=TOPIC, message_id="ID", transaction_id=half.transaction_id, resolution="COMMIT"
        )
        assert (await front.call("EndTransaction", request)).status.code == Code.OK
        [timer] = front.live.query(front.live.core.timer_views.pending, "", 10)
        assert timer.due_ms == NOW_MS + 60_000

    play(scenario)


async def send(front: Any, given: dict[str, str], **system: Any) -> Any:
    """Send one message with properties and return the reply."""
    message = wire.Message(
        topic=TOPIC,
        body=b"x",
        user_properties=given,
        system_properties=wire.SystemProperties(message_id="ID", **system),
    )
    return await front.call("SendMessage", service.SendMessageRequest(messages=[message]))


def test_a_timer_that_replaced_another_says_so_in_the_status_of_its_entry(play: Any) -> None:
    async def scenario(front: Any) -> None:
        await front.live.call(front.live.core.topics.create, "t", MessageType.DELAY, 1)
        given = {"TIMER_DELAY_SEC": "60", "TW_TIMER_KEY": "order:7"}
        [first] = (await send(front, given)).entries
        front.pass_time(1)  # another time, so another message
        [second] = (await send(front, given | {"colour": "blue"})).entries
        assert (first.status.code, first.status.message) == (wire.OK, "OK")
        assert second.status.code == wire.OK
        assert second.status.message.startswith("OK, replaced timer ")

    play(scenario)


def test_a_send_with_too_many_keys_is_refused_and_the_broker_serves(play: Any) -> None:
    """One key has a blank, so the record would have the length of each: longer than a record's properties."""

    def sent(message_id: str, keys: list[str]) -> service.SendMessageRequest:
        system = wire.SystemProperties(message_id=message_id, keys=keys)
        return service.SendMessageRequest(
            messages=[wire.Message(topic=TOPIC, body=b"x", system_properties=system)]
        )

    async def scenario(front: Any) -> None:
        reply = await front.call("SendMessage", sent("M1", ["a ", *["b"] * 16_382]))
        assert reply.status.code == Code.MESSAGE_PROPERTIES_TOO_LARGE, reply.status
        reply = await front.call("SendMessage", sent("M2", ["b"]))
        assert reply.status.code == Code.OK, reply.status

    play(scenario)
