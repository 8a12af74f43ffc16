"""The broker's schedules over its HTTP interface. The broker stores them and computes their occurrences.

The name of a schedule in the broker is `pushes:` and the percent-encoded schedule id of the shop. An error of
the broker is raised as the exception class with the same error code.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote

from services.broker.spine.errors import ScheduleNotFound
from services.http.calls import HttpCalls
from tidewheel.errors import BrokerUnreachable, TidewheelError

PREFIX = "pushes:"
ANSWER_S = 30


class PushSchedules:
    """The shop's schedules in a broker. The methods raise `BrokerUnreachable` or the error of the broker."""

    def __init__(self, http: str) -> None:
        self._calls = HttpCalls(http)

    def keep(self, schedule_id: str, wanted: dict[str, Any]) -> int:
        """Create or replace a schedule. Repeating the call has no effect. Returns its next occurrence."""
        answer = self._call("PUT", f"/{path_of(schedule_id)}", wanted)
        return int(answer["coming"][0]["at_ms"])

    def end(self, schedule_id: str) -> None:
        """Delete a schedule if it exists."""
        try:
            self._call("DELETE", f"/{path_of(schedule_id)}")
        except ScheduleNotFound:
            return

    def names(self) -> set[str]:
        """Return the names of all schedules of the shop."""
        found: set[str] = set()
        after: str | None = PREFIX
        while after is not None and after.startswith(PREFIX):
            page = self._call("GET", f"?after={quote(after, safe='')}")
            found |= {one["name"] for one in page["schedules"] if one["name"].startswith(PREFIX)}
            after = page["after"]
        return found

    def occurs(self, cron: str, time_zone: str) -> bool:
        """Return whether a cron expression has a future occurrence.

        Raises the error of the broker for an invalid expression.
        """
        wanted = {"cron": cron, "time_zone": time_zone, "count": 1}
        return bool(self._call("POST", "/preview", wanted)["coming"])

    def _call(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        try:
            with self._calls.open(method, f"/api/schedules{path}", data, ANSWER_S) as answer:
                return json.load(answer)
        except HTTPError as refusal:
            raise self._refused(refusal) from None
        except (OSError, HTTPException, ValueError) as error:
            raise self._unreachable() from error

    def _refused(self, refusal: HTTPError) -> TidewheelError:
        try:
            said = json.load(refusal)
            kind = next(kind for kind in below(TidewheelError) if kind.code == said["code"])
            return kind(said["detail"])
        except (OSError, ValueError, KeyError, TypeError, StopIteration):
            return self._unreachable()

    def _unreachable(self) -> BrokerUnreachable:
        return BrokerUnreachable(
            f"There is no Tidewheel HTTP interface at {self._calls.address}, which recurring pushes need. "
            "Name the broker's with --http HOST:PORT."
        )


def name_of(schedule_id: str) -> str:
    """Return the broker's name of a schedule."""
    return PREFIX + quote(schedule_id, safe="")


def path_of(schedule_id: str) -> str:
    """Return the broker's name of a schedule as a URL path segment."""
    return quote(name_of(schedule_id), safe="")


def below(root: type[TidewheelError]) -> Iterator[type[TidewheelError]]:
    """Yield an error class and all its subclasses."""
    yield root
    for kind in root.__subclasses__():
        yield from below(kind)
