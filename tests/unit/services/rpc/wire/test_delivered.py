"""Deliveries in bytes say what protobuf would write of the message."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from commitlog.records.record import COMPRESSED, Record
from services.broker.spine.values import Delivery
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated.service_pb2 import ReceiveMessageResponse
from services.rpc.wire.delivered import DeliveryView
from services.rpc.wire.messages import half_to_wire, set_time
from tidewheel import property_names

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), max_size=20)
LONG = st.one_of(TEXTS, st.sampled_from(["x" * 122, "x" * 123, "x" * 200, "ä" * 20_000]))
NUMBERS = st.one_of(st.integers(0, 1 << 33).map(str), TEXTS.filter(lambda text: not text.isdigit()))
NAMES = st.one_of(TEXTS, st.sampled_from(sorted(property_names.RESERVED)))
PAIRS = st.one_of(
    st.tuples(NAMES.filter(lambda name: name not in (property_names.DUE_MS, property_names.PRIORITY)), LONG),
    st.tuples(st.sampled_from([property_names.DUE_MS, property_names.PRIORITY]), NUMBERS),
    st.tuples(st.just(property_names.TRANSACTIONAL), st.just("true")),
    st.tuples(st.just("TW_TIMER_TOPIC"), st.sampled_from(["shop%pushes", "pushes"])),
    st.tuples(st.just(property_names.CHECK_IMMUNITY_SECONDS), st.just("7")),
)
STORED = st.lists(PAIRS).map(
    lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()
)
TIMES = st.integers(0, 253_402_300_799_999)
RECORDS = st.builds(
    Record,
    topic=st.sampled_from(["orders", "shop%orders", "o" * 200]),
    body=st.one_of(st.binary(max_size=9), st.sampled_from([bytes(200), bytes(20_000)])),
    properties=st.one_of(STORED, STORED.map(lambda stored: stored[:-1]), st.binary(max_size=40)),
    queue_id=st.integers(0, (1 << 31) - 1),
    queue_offset=st.integers(0, (1 << 63) - 1),
    sys_flag=st.sampled_from([0, COMPRESSED]),
    born_ms=TIMES,
    born_host=st.sampled_from([("127.0.0.1", 0), ("::1", 5)]),
    store_ms=TIMES,
)


@given(RECORDS, st.integers(1, 300), TEXTS, st.sampled_from(["", "shop"]), TIMES)
def test_a_delivery_is_what_protobuf_writes_of_it(
    record: Record, attempt: int, handle: str, namespace: str, invisible_ms: int
) -> None:
    shown = DeliveryView(namespace, invisible_ms, "10.0.0.1")
    delivery = Delivery(record, attempt, handle)
    if record.sys_flag and not delivery.message.gzip:
        record.sys_flag = 0  # as a record is whose body was unpacked
    expected = by_protobuf(delivery, namespace, invisible_ms, "10.0.0.1")
    reply = shown.reply(delivery)
    assert ReceiveMessageResponse.FromString(reply) == ReceiveMessageResponse(message=expected)
    assert len(reply) == ReceiveMessageResponse(message=expected).ByteSize(), "nothing is told twice"
    assert shown.message(delivery) == expected


def by_protobuf(delivery: Delivery, namespace: str, invisible_ms: int, store_host: str) -> wire.Message:
    shown = half_to_wire(delivery.message, namespace)
    system = shown.system_properties
    set_time(system.store_timestamp, delivery.store_ms)
    system.store_host, system.receipt_handle = store_host, delivery.receipt_handle
    system.queue_id, system.queue_offset = delivery.queue_id, delivery.queue_offset
    system.delivery_attempt = delivery.attempt
    invisible = system.invisible_duration
    invisible.seconds, invisible.nanos = invisible_ms // 1000, invisible_ms % 1000 * 1_000_000
    return shown
