"""Failures of calls: which of them say that nothing was sent."""

from __future__ import annotations

import socket
import ssl
from urllib.error import URLError

import pytest

from services.console.broker import is_unsent, url_of
from tidewheel.errors import BrokerUnreachable, TidewheelError


def failed_with(cause: Exception) -> TidewheelError:
    try:
        raise BrokerUnreachable("here") from cause
    except BrokerUnreachable as error:
        return error


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        (URLError(ConnectionRefusedError()), True),
        (URLError(socket.gaierror()), True),
        (URLError(ssl.SSLCertVerificationError()), True),
        (URLError(ConnectionResetError()), False),
        (URLError(TimeoutError()), False),
        (ConnectionResetError(), False),
        (ConnectionRefusedError(), False),
    ],
)
def test_a_refused_connection_has_sent_nothing(cause: Exception, expected: bool) -> None:
    assert is_unsent(failed_with(cause)) is expected


def test_an_error_of_the_broker_was_sent() -> None:
    assert not is_unsent(TidewheelError("why"))


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("127.0.0.1:18088", "http://127.0.0.1:18088"),
        ("https://broker:443", "https://broker:443"),
        ("[::1]:8088,127.0.0.1:8088", "http://[::1]:8088"),
        ("0.0.0.0:8088", "http://127.0.0.1:8088"),
    ],
)
def test_the_url_of_an_address(address: str, url: str) -> None:
    assert url_of(address) == url
