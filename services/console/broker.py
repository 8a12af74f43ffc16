"""The broker as one session sees it: its HTTP interface, with the session's token.

A refusal is raised as the family of its status, with the broker's code and sentence: 400 `ClientMistake`, 401
`SignedOut`, 403 `AccessRefused`, 404 `NotFound`, 409 `RefusedByState`, others `TidewheelError`. A verdict on
a timer is an answer, not an error. All calls raise `BrokerUnreachable` and `AnswerLate`.
"""

from __future__ import annotations

import json
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import quote, urlencode

from services.http.calls import HttpCalls
from tidewheel.errors import AccessRefused, ClientMistake, NotFound, RefusedByState, TidewheelError

ANSWER_SECONDS: Final = 10
SEARCH_SECONDS: Final = 60
ANSWER_BYTES_MAX: Final = 64 << 20


class SignedOut(AccessRefused):
    """The broker does not accept the session's token (any more)."""


FAMILIES: Final[dict[int, type[TidewheelError]]] = {
    400: ClientMistake,
    401: SignedOut,
    403: AccessRefused,
    404: NotFound,
    409: RefusedByState,
}


class Broker:
    """One broker, called with one token; `http` is its address, of nodes with commas."""

    def __init__(self, http: str | None, token: str) -> None:
        self._calls = HttpCalls(http, token, "tidewheel-console")

    @property
    def address(self) -> str:
        """The address that is called."""
        return str(self._calls.address)

    def get(self, *path: str, **query: object) -> Any:
        """Return an answer."""
        return self._call("GET", f"{api_path(path)}?{urlencode(query)}")

    def search(self, *path: str, **query: object) -> Any:
        """Return an answer that the broker may search its log for."""
        return self._call("GET", f"{api_path(path)}?{urlencode(query)}", seconds=SEARCH_SECONDS)

    def post(self, *path: str, body: object) -> Any:
        """Return the answer to a verb."""
        return self._call("POST", api_path(path), json.dumps(body).encode(), SEARCH_SECONDS)

    def probe(self, path: str) -> tuple[int, str]:
        """Return status and text of what is no JSON interface; raise `AccessRefused`."""
        try:
            with self._calls.open("GET", path, None, ANSWER_SECONDS) as answer:
                return answer.status, answer.read(ANSWER_BYTES_MAX).decode()
        except HTTPError as refusal:
            if refusal.code in (401, 403):
                self._refused(refusal)
            return refusal.code, refusal.read(ANSWER_BYTES_MAX).decode(errors="replace")
        except TimeoutError as error:
            raise self._calls.late(ANSWER_SECONDS) from error
        except (OSError, HTTPException, ValueError) as error:
            raise self._calls.unreachable() from error

    def _call(
        self, method: str, path: str, body: bytes | None = None, seconds: float = ANSWER_SECONDS
    ) -> Any:
        try:
            with self._calls.open(method, path, body, seconds) as answer:
                return json.load(answer)
        except HTTPError as refusal:
            return self._refused(refusal)
        except TimeoutError as error:
            raise self._calls.late(seconds) from error
        except (OSError, HTTPException, ValueError) as error:
            raise self._calls.unreachable() from error

    def _refused(self, refusal: HTTPError) -> Any:
        """Return the verdict on a timer; raise any other refusal."""
        try:
            said = json.load(refusal)
            if "verdict" in said:
                return said
            error = FAMILIES.get(refusal.code, TidewheelError)(said["detail"])
            error.code, error.args = str(said["code"]), (str(said["message"]),)
        except (OSError, ValueError, KeyError, TypeError):
            error = self._calls.unreachable()
        raise error from None


def api_path(path: tuple[str, ...]) -> str:
    """Return the path of an operation, its parts as they may stand in a URL."""
    return "/api/" + "/".join(quote(part, safe="") for part in path)
