"""`/api/explain`: everything that the broker's log says of a message, in the order in which it happened.

    GET /api/explain?name=NAME&topic=TOPIC

NAME is a message key, a message id, a timer key, a transaction id, or @ and a log offset. The durable part
of the log is searched by one thread of its own (`services.explain.evidence`), one request after the other;
it holds the interpreter for a fraction of a millisecond at a time. Times are those of callers.
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
from services.ops.answers import written
from services.ops.operation import Operation
from services.ops.request import Nothing, asked
from tidewheel.errors import NotFound


class ExplainQuery(Nothing):
    """What to tell of."""

    name: str = Field(
        min_length=1, description="A message key or id, a timer key, a transaction id, or @LOG_OFFSET."
    )
    topic: str = Field("", description="Only messages of this topic.")


class EventAnswer(TypedDict):
    """One thing that happened: `gap_ms` after the event before, told by the record at `physical_offset`.

    `epoch`: in which of a cluster; 0 where a broker alone stored it. Null elsewhere, or if it is not known.
    `leader`: the node that led then; empty where that is not known.
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
    """How one message stands now."""

    message_id: str
    topic: str
    keys: str
    state: str


class ExplanationAnswer(TypedDict):
    """The events of a name in log order; `is_cut` if it has more records than are told."""

    name: str
    store: str
    first_offset: str
    end_offset: str
    events: list[EventAnswer]
    messages: list[StandingAnswer]
    is_cut: bool


class ExplainApi:
    """The handler of `/api/explain`; to be closed before the broker is."""

    def __init__(self, live: LiveBroker, files: Files | None) -> None:
        self._live, self._files = live, files
        self._closing = Event()
        self._searcher = ThreadPoolExecutor(1, thread_name_prefix="explain")

    async def explain(self, request: Request) -> Response:
        """Tell the life of a message or order."""
        query = asked(ExplainQuery, request)
        search = asyncio.get_running_loop().run_in_executor
        damaged: list[int] = []
        try:
            found = await search(self._searcher, explain, self._log(damaged.append), query.name, query.topic)
        finally:
            self._live.core.store.report_unreadable(damaged)
        return await written(found.as_json(self._live.clock.offset_ms))

    async def close(self) -> None:
        """Give up the search that is under way."""
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
