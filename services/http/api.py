"""The JSON interface of a broker, `/api`: the one client of the commands and of the console.

A verdict on a timer is an answer, whatever its status. Any other refusal is raised as the error that the
caller's `refused` makes of its status and body: the commands and the console know different errors. All calls
raise `BrokerUnreachable` and `AnswerLate`, too.
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
"""Return the error for the status and the body of a refusal; raise KeyError or TypeError for another body."""


class Api:
    """A broker over HTTP, at the addresses `http`; the environment names those and the token if left out.

    A question waits `answer_seconds`, a search of the log `search_seconds`, a verb `verb_seconds`.
    `program` is the User-Agent.
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
        """The address that is called, of several the one that takes a connection."""
        return str(HttpAddresses((self._calls.address,)))

    def get(self, *path: str, **query: object) -> Any:
        """Return an answer."""
        return self._call("GET", path, query, self._answer_seconds)

    def search(self, *path: str, **query: object) -> Any:
        """Return an answer for which the broker may search its log."""
        return self._call("GET", path, query, self._search_seconds)

    def probe(self, path: str) -> tuple[int, str]:
        """Return the status and the text of a path outside `/api`; raise only 401 and 403 as refusals."""
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
        """Return the answer to a verb; the broker may take `wait_seconds` for this one."""
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
        except TimeoutError as error:  # of an answer; that of a connection is a URLError
            raise self._calls.late(seconds) from error
        except (OSError, HTTPException, ValueError) as error:
            raise self._calls.unreachable() from error

    def _verdict(self, refusal: HTTPError) -> Any:
        """Return the verdict on a timer; raise any other refusal."""
        try:
            said = json.load(refusal)
            refused = None if "verdict" in said else self._refused(refusal.code, said)
        except (OSError, ValueError, KeyError, TypeError):
            refused = self._calls.unreachable()
        if refused is not None:
            raise refused from None
        return said
