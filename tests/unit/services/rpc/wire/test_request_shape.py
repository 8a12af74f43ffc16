"""A request's fields are counted before it is parsed, whatever it is made of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.limits import BODY_BYTES_MAX, ENTRIES_PER_REQUEST_MAX, FIELDS_PER_REQUEST_MAX
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service
from services.rpc.wire.request_shape import COUNTED_ABOVE_BYTES, has_too_many_fields

SEND, ACK = service.SendMessageRequest, service.AckMessageRequest
TOPIC = wire.Resource(name="t")


def sent(count: int, body: bytes = b"x" * 256, properties: int = 2) -> bytes:
    system = wire.SystemProperties(message_id="M" * 34, tag="a", keys=["k"], born_host="10.0.0.1")
    given_ = {f"name{number}": "value" for number in range(properties)}
    one = wire.Message(topic=TOPIC, system_properties=system, user_properties=given_, body=body)
    return SEND(messages=[one] * count).SerializeToString()


def within(message: bytes, *numbers: int) -> bytes:
    """Return a message in fields of these numbers, the innermost first."""
    for number in numbers:
        length, size = len(message), bytearray()
        while length >= 128:
            size.append(length & 127 | 128)
            length >>= 7
        message = bytes((number << 3 | 2, *size, length)) + message
    return message


@pytest.mark.parametrize(
    "request_bytes",
    [
        sent(ENTRIES_PER_REQUEST_MAX),
        sent(8, bytes(BODY_BYTES_MAX)),
        sent(100, properties=64),
        b"",
        b"\x0a",
        b"\xff" * 200_000,
    ],
)
def test_what_clients_send_has_not_too_many(request_bytes: bytes) -> None:
    assert not has_too_many_fields(request_bytes, SEND.DESCRIPTOR)


@pytest.mark.parametrize(
    ("kind", "request_bytes"),
    [
        (SEND, b"\x0a\x00" * (1 << 20)),
        (ACK, b"\x1a\x00" * (1 << 20)),
        (SEND, within(b"\x12\x00" * (1 << 20), 1)),  # properties of one message
        (SEND, within(b"\x12\x00" * (1 << 20), 3, 1)),  # keys of one message
        (SEND, b"".join([within(b"\x12\x00" * 16, 1)] * (1 << 16))),  # messages too small to be looked into
        (SEND, b"\x7a\x00" * (1 << 20)),  # a field that is not known
        (SEND, b"\x78\x01" * (1 << 20)),
        (SEND, b"\x0b\x0c" * (1 << 20)),  # groups
        (SEND, within(b"\x12\x00" * (1 << 20), 1) + b"\x08"),  # it ends within a field, behind them
        (SEND, within(b"\x12\x00" * (1 << 20), 1) + b"\x0e\x00"),  # a wire type that is none
        (SEND, within(b"\x12\x00" * (1 << 20) + b"\x08", 3, 1)),
    ],
)
def test_what_would_take_long_to_parse_has_too_many(kind: type[SEND], request_bytes: bytes) -> None:
    assert has_too_many_fields(request_bytes, kind.DESCRIPTOR)


@given(st.binary(max_size=200), st.integers(1, 2_000))
def test_bytes_that_are_no_request_end_the_count(piece: bytes, times: int) -> None:
    padded = piece * times + bytes(COUNTED_ABOVE_BYTES)
    assert has_too_many_fields(padded, SEND.DESCRIPTOR) in (True, False)


@given(st.integers(0, 60_000))
def test_a_request_is_refused_from_the_bound_on(count: int) -> None:
    request_bytes = b"\x1a\x01x" * count
    counted = len(request_bytes) > COUNTED_ABOVE_BYTES
    assert has_too_many_fields(request_bytes, ACK.DESCRIPTOR) == (counted and count > FIELDS_PER_REQUEST_MAX)
