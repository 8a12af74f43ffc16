"""`/api/dead-letters`: messages that groups gave up, looked at, sent back and purged, one by one or many.

    GET    /api/dead-letters                          the groups that have some, and how many
    GET    /api/dead-letters/groups/GROUP             a page of them, the oldest first: FILTER, after, limit
    GET    /api/dead-letters/groups/GROUP/OFFSET      one, with what it says
    POST   /api/dead-letters/groups/GROUP/OFFSET/redrive  {"target"}: sends it to a topic, or back to its own
    DELETE /api/dead-letters/groups/GROUP/OFFSET      purges it
    POST   /api/dead-letters/tasks                    does that to all of a filter, or counts them: dry_run
    GET    /api/dead-letters/tasks/ID                 how far that is; DELETE stops it

FILTER is any of topic (where they came from), key, tag, reason, from, until. A dead letter that goes back to
its own topic is for the group that gave it up alone, keeps its message id, and has all of its attempts again.
`services.ops.dead_letter_shapes` has the shapes.
"""

from __future__ import annotations

import structlog
from starlette.requests import Request
from starlette.responses import JSONResponse

from services.broker.errors import MessageNotFound
from services.broker.group_values import DeadLetterCount
from services.live import dead_letters
from services.live.dead_letter_tasks import DeadLetterTasks
from services.live.live_broker import LiveBroker
from services.ops.dead_letter_shapes import (
    DeadLetterGroupAnswer,
    DeadLettersQuery,
    NewDeadLetterTask,
    NewRedrive,
    dead_letter_filter,
    dead_letter_task_shape,
    dead_letters_shape,
    one_dead_letter_shape,
)
from services.ops.groups import name_of
from services.ops.queries import asked
from services.ops.shapes import body_of, parse

OFFSET_DIGITS_MAX = 18

log = structlog.get_logger()


class DeadLettersApi:
    """The handlers of `/api/dead-letters`."""

    def __init__(self, live: LiveBroker, tasks: DeadLetterTasks) -> None:
        self._live, self._tasks = live, tasks

    async def groups(self, request: Request) -> JSONResponse:
        """List the groups that have dead letters."""
        counts = [one for one in self._live.core.dead_letters.counts() if one.count]
        return JSONResponse({"groups": [self._group_shape(one) for one in counts]})

    async def page(self, request: Request) -> JSONResponse:
        """List dead letters of a group."""
        query, group = asked(DeadLettersQuery, request), name_of(request)
        wanted = dead_letter_filter(query, self._live.now_ms())
        dead_letters.check_group(self._live, group)
        page = await dead_letters.find(self._live, group, wanted, query.after, query.limit)
        return JSONResponse(dead_letters_shape(group, page))

    async def one(self, request: Request) -> JSONResponse:
        """Show a dead letter and what it says."""
        group, offset = name_of(request), offset_of(request)
        return JSONResponse(one_dead_letter_shape(group, dead_letters.one(self._live, group, offset)))

    async def redrive(self, request: Request) -> JSONResponse:
        """Send a dead letter back to its topic, or to another."""
        wanted = parse(NewRedrive, await body_of(request))
        group, offset = name_of(request), offset_of(request)
        dead_letter = dead_letters.one(self._live, group, offset)
        if wanted.target:
            self._live.core.topics.get(wanted.target)
        else:
            dead_letters.check_back(self._live, group, dead_letter.topic)
        await self._live.groups.redrive(group, offset, wanted.target)
        log.info("dead letter redriven", group=group, offset=offset, target=wanted.target)
        return JSONResponse({"group": group, "offset": str(offset), "verdict": "REDRIVEN"})

    async def purge(self, request: Request) -> JSONResponse:
        """Let a dead letter go for good."""
        group, offset = name_of(request), offset_of(request)
        dead_letters.one(self._live, group, offset)
        await self._live.call(self._live.core.dead_letters.purge, group, offset)
        log.info("dead letter purged", group=group, offset=offset)
        return JSONResponse({"group": group, "offset": str(offset), "verdict": "PURGED"})

    async def tasks(self, request: Request) -> JSONResponse:
        """List the tasks over dead letters."""
        return JSONResponse({"tasks": [dead_letter_task_shape(task) for task in self._tasks.all()]})

    async def start_task(self, request: Request) -> JSONResponse:
        """Redrive or purge all dead letters of a filter, or count them."""
        wanted = parse(NewDeadLetterTask, await body_of(request))
        order = wanted.order(self._live.now_ms())
        if not wanted.dry_run:
            return JSONResponse(dead_letter_task_shape(self._tasks.start(order)), status_code=202)
        self._tasks.check(order)
        matched = await dead_letters.count(self._live, order.group, order.wanted)
        return JSONResponse({"dry_run": True, "matched": matched})

    async def task(self, request: Request) -> JSONResponse:
        """Show a task over dead letters."""
        return JSONResponse(dead_letter_task_shape(self._tasks.get(request.path_params["id"])))

    async def stop_task(self, request: Request) -> JSONResponse:
        """Stop a task over dead letters."""
        return JSONResponse(dead_letter_task_shape(await self._tasks.stop(request.path_params["id"])))

    def _group_shape(self, one: DeadLetterCount) -> DeadLetterGroupAnswer:
        oldest = self._live.query(self._live.core.dead_letters.page, one.group, None, 1).dead_letters
        return {
            "group": one.group,
            "count": one.count,
            "oldest_ms": str(oldest[0].store_ms) if oldest else None,
        }


def offset_of(request: Request) -> int:
    """Return the dead letter in a request's path; raises `MessageNotFound` for what is no offset."""
    text: str = request.path_params["offset"]
    if not (text.isascii() and text.isdigit() and len(text) <= OFFSET_DIGITS_MAX):
        raise MessageNotFound(f"{text[:80]!r} is no offset of a dead letter, which is a number.")
    return int(text)
