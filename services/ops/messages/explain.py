"""The operation `/api/explain`, which returns all events of a message in the log, in order of time.

    GET /api/explain?name=NAME&topic=TOPIC

NAME is a message key, a message id, a timer key, a transaction id, or @ and a log offset. A separate thread
searches the durable part of the log (`services.explain.evidence`) for one request at a time. The search holds
the interpreter lock for a fraction of a millisecond at a time. Times in the answer are real times.

Cost: a search reads about 700 MB/s of a log in the page cache. It has two passes, each of which ends after
`SECONDS_MAX`. The answer for a larger log contains only events of its newest part (`searched_from_ms`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Final

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict

from services.explain.evidence import Files, SearchedLog, imported_until
from services.explain.explain import explain
from services.live.live_broker import LiveBroker
from services.ops.requests.answers import written
from services.ops.requests.operation import Operation
from services.ops.requests.request import Nothing, asked
from tidewheel.errors import NotFound

SECONDS_MAX = 10.0
"""The time of each of the two passes of a search: the console waits for 60 seconds."""


class ExplainQuery(Nothing):
    """The name to search for."""

    name: str = Field(
        min_length=1, description="A message key or id, a timer key, a transaction id, or @LOG_OFFSET."
    )
    topic: str = Field("", description="Only messages of this topic.")


class EventAnswer(TypedDict):
    """An event, which the record at `physical_offset` proves.

    `gap_ms` is the time since the previous event. `epoch` is the epoch of the cluster, 0 for a broker without
    a cluster, or null if the epoch is unknown or does not apply. `leader` is the node that was leader at the
    time of the event, or empty if the leader is unknown.
    """

    physical_offset: str
    store_ms: str
    gap_ms: str
    what: str
    topic: str
    message_id: str
    queue_id: int | None
    queue_offset: str | None
    due_ms: str | None
    group: str
    note: str
    epoch: int | None
    leader: str


class StandingAnswer(TypedDict):
    """The current state of a message."""

    message_id: str
    topic: str
    keys: str
    state: str


class ExplanationAnswer(TypedDict):
    """The events of a name in log order. `is_cut` is whether further records of the name are omitted.

    If the time was over before the whole log was searched, `searched_from_ms` is the store time from which it
    was searched, and `first_offset` the log offset. Older events are then missing, and there may be none at
    all. `followed_until_ms` is the store time up to which the log was searched for acknowledgements and other
    records that refer to the messages. Later ones are missing, also in `state`. Both are otherwise null.
    """

    name: str
    store: str
    first_offset: str
    end_offset: str
    events: list[EventAnswer]
    messages: list[StandingAnswer]
    is_cut: bool
    searched_from_ms: str | None
    followed_until_ms: str | None


class ExplainApi:
    """The handler of `/api/explain`, which must be closed before the broker."""

    def __init__(self, live: LiveBroker, files: Files | None) -> None:
        self._live, self._files = live, files
        self._closing = Event()
        self._searcher = ThreadPoolExecutor(1, thread_name_prefix="explain")

    async def explain(self, request: Request) -> Response:
        """Return the history of a message or an order."""
        query = asked(ExplainQuery, request)
        search = asyncio.get_running_loop().run_in_executor
        damaged: list[int] = []
        given = self._log(damaged.append), query.name, query.topic, SECONDS_MAX
        try:
            found = await search(self._searcher, explain, *given)
        finally:
            self._live.core.store.report_unreadable(damaged)
        return await written(found.as_json(self._live.clock.offset_ms))

    async def close(self) -> None:
        """Cancel the current search."""
        self._closing.set()
        self._searcher.shutdown()

    def _log(self, found_damaged: Callable[[int], None]) -> SearchedLog:
        if self._files is None:
            raise NotFound("The files of this broker's store cannot be read from here.")
        core, until = self._live.core, imported_until(self._files)
        is_closing, epoch = self._closing.is_set, core.epoch.number
        return SearchedLog(
            "the broker's log", self._files, core.durable_offset, until, is_closing, epoch, found_damaged
        )


OPERATIONS: Final = (
    Operation(
        "GET",
        "/api/explain",
        ExplainApi.explain,
        {200: ExplanationAnswer},
        ExplainQuery,
        refusals=(400, 404, 503),
    ),
)
