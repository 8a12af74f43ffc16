"""Client for the JSON interface of a broker (`/api`), used by the commands and the console.

A verdict on a timer is returned as an answer, regardless of its status. Any other refusal is raised as the
error that `refused` creates from its status and body, because the commands and the console use different
error classes. All calls may also raise `BrokerUnreachable` and `AnswerLate`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import quote, urlencode

from services.http.calls import HttpCalls
from services.settings.config import HttpAddresses
from tidewheel.errors import TidewheelError

PROBE_BYTES_MAX: Final = 64 << 20

Refused = Callable[[int, dict[str, Any]], TidewheelError]
"""Returns the error for the status and body of a refusal.

Raises KeyError or TypeError for an unknown body.
"""


class Api:
    """The HTTP interface of a broker at the addresses `http`.

    If addresses or token are omitted, they are read from the environment.

    The timeouts are `answer_seconds` for a query, `search_seconds` for a search of the log, and
    `verb_seconds` for a change. `program` is the User-Agent.
    """

    def __init__(
        self,
        http: str | None,
        refused: Refused,
        *,
        answer_seconds: float,
        search_seconds: float,
        verb_seconds: float,
        program: str,
        token: str | None = None,
    ) -> None:
        self._calls, self._refused = HttpCalls(http, token, program), refused
        self._answer_seconds, self._search_seconds = answer_seconds, search_seconds
        self._verb_seconds = verb_seconds

    @property
    def address(self) -> str:
        """The address that is called. If there are several, it is the first that accepted a connection."""
        return str(HttpAddresses((self._calls.address,)))

    def get(self, *path: str, **query: object) -> Any:
        """Return the answer to a GET request."""
        return self._call("GET", path, query, self._answer_seconds)

    def search(self, *path: str, **query: object) -> Any:
        """Return the answer to a GET request for which the broker may search its log."""
        return self._call("GET", path, query, self._search_seconds)

    def probe(self, path: str) -> tuple[int, str]:
        """Return the status and text of a path outside `/api`.

        Only the statuses 401 and 403 are raised as errors.
        """
        try:
            with self._calls.open("GET", path, None, self._answer_seconds) as answer:
                return answer.status, answer.read(PROBE_BYTES_MAX).decode()
        except HTTPError as refusal:
            if refusal.code in (401, 403):
                self._verdict(refusal)
            return refusal.code, refusal.read(PROBE_BYTES_MAX).decode(errors="replace")
        except TimeoutError as error:
            raise self._calls.late(self._answer_seconds) from error
        except (OSError, HTTPException, ValueError) as error:
            raise self._calls.unreachable() from error

    def post(self, *path: str, body: object, wait_seconds: float | None = None) -> Any:
        """Return the answer to a POST request. `wait_seconds` overrides the timeout."""
        return self._call("POST", path, {}, wait_seconds or self._verb_seconds, body)

    def delete(self, *path: str, **query: object) -> Any:
        """Delete a resource, or stop a task."""
        return self._call("DELETE", path, query, self._answer_seconds)

    def put(self, *path: str, body: object) -> Any:
        """Replace a resource."""
        return self._call("PUT", path, {}, self._answer_seconds, body)

    def _call(
        self,
        method: str,
        path: tuple[str, ...],
        query: dict[str, object],
        seconds: float,
        body: object = None,
    ) -> Any:
        target = "/api/" + "/".join(quote(part, safe="") for part in path)
        target += f"?{urlencode(query, doseq=True)}" if query else ""
        data = None if body is None else json.dumps(body).encode()
        try:
            with self._calls.open(method, target, data, seconds) as answer:
                return json.load(answer)
        except HTTPError as refusal:
            return self._verdict(refusal)
        except TimeoutError as error:  # a timeout of the answer; a timeout of the connection is a URLError
            raise self._calls.late(seconds) from error
        except (OSError, HTTPException, ValueError) as error:
            raise self._calls.unreachable() from error

    def _verdict(self, refusal: HTTPError) -> Any:
        """Return the verdict on a timer, or raise any other refusal."""
        try:
            said = json.load(refusal)
            refused = None if "verdict" in said else self._refused(refusal.code, said)
        except (OSError, ValueError, KeyError, TypeError):
            refused = self._calls.unreachable()
        if refused is not None:
            raise refused from None
        return said
