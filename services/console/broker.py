"""The HTTP client of a session, which calls the broker with the session's token.

A refused request raises an exception class that depends on the status, with the broker's error code and
message: 400 `ClientMistake`, 401 `SignedOut`, 403 `AccessRefused`, 404 `NotFound`, 409 `RefusedByState`, any
other `TidewheelError`.
"""

from __future__ import annotations

import socket
import ssl
from typing import Any, Final
from urllib.error import URLError

from services.http.api import Api
from services.http.calls import client_settings
from tidewheel.errors import AccessRefused, ClientMistake, NotFound, RefusedByState, TidewheelError

ANSWER_SECONDS: Final = 10
SEARCH_SECONDS: Final = 60
UNSENT: Final = (ConnectionRefusedError, socket.gaierror, ssl.SSLCertVerificationError)
"""Reasons why there is no connection over which a request could be sent."""


class SignedOut(AccessRefused):
    """The broker does not accept the session's token (any more)."""


class NoSession(SignedOut):
    """There is no session here (any more)."""


FAMILIES: Final[dict[int, type[TidewheelError]]] = {
    400: ClientMistake,
    401: SignedOut,
    403: AccessRefused,
    404: NotFound,
    409: RefusedByState,
}


def connect(http: str | None, token: str) -> Api:
    """Return the HTTP client of a broker for a token."""
    return Api(
        http,
        refused_with,
        answer_seconds=ANSWER_SECONDS,
        search_seconds=SEARCH_SECONDS,
        verb_seconds=SEARCH_SECONDS,
        program="tidewheel-console",
        token=token,
    )


def refused_with(status: int, said: dict[str, Any]) -> TidewheelError:
    """Return the exception for an error response, with the broker's error code and message."""
    error = FAMILIES.get(status, TidewheelError)(said["detail"])
    error.code, error.args = str(said["code"]), (str(said["message"]),)
    return error


def is_unsent(error: TidewheelError) -> bool:
    """Return whether a call failed before its request was sent."""
    cause = error.__cause__ or error.__context__
    return isinstance(cause, URLError) and isinstance(cause.reason, UNSENT)


def url_of(http: str | None) -> str:
    """Return the base URL of a broker, or of the first node of a cluster."""
    return client_settings(http).http.all[0].url
