"""Advice about refusals: each reason of the code has some."""

from __future__ import annotations

import pytest

from services.auth.signature import Reason
from services.front import admission, port
from services.ops import gate
from services.ops.requests import callers
from services.rpc import guard
from services.rpc.clients import client_room
from services.status.refusals import advice

OF_CALLS = (
    *Reason,
    callers.TOKEN,
    callers.NO_RIGHT,
    gate.HOST,
    gate.PAGE,
    guard.FORBIDDEN,
    client_room.REASON,
)
OF_CONNECTIONS = (
    *(admission.TOO_MANY, admission.SILENT, admission.IDLE, admission.UNAUTHENTICATED),
    *(port.NO_HTTP2, port.PLAINTEXT, port.LEFT, port.SLOW, "HTTP/1", "RocketMQ 4 remoting", "unknown"),
)


@pytest.mark.parametrize("reason", [*OF_CALLS, *OF_CONNECTIONS])
def test_each_reason_has_advice(reason: str) -> None:
    assert advice(reason)


def test_reasons_of_libraries_have_the_advice_of_their_kind() -> None:
    assert "doctor client" in advice("TLS: the client says unknown ca")
    assert advice("HTTP/2: frame size error")
    assert advice("no such reason") == ""
