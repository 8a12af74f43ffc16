"""The operation `GET /api/journal`, and `journalled`, which records operations of the HTTP interface.

    GET /api/journal?before=&limit=&about=    lists entries, newest first, before an offset or with a text

The console and the commands use the HTTP interface, so all operations of operators are recorded here. Every
operation that changes state is recorded, including refused operations, with two exceptions:

1. The operations in `DATA` are frequent operations of applications. A verb on a single timer or transaction
   is recorded only if it has a reason, or comes from the command line or the console (`OPERATORS`).
2. Previews (`dry_run`), requests without the required right (listed by `/api/refused`) and invalid requests
   (400) change no state.

An entry is durable before the answer is sent (`services.broker.journal`). An entry contains the parameters of
the operation, except for the bodies of messages. Entries of `/api/auth` contain no answers, because the
answers contain secrets.
"""

from __future__ import annotations

import json
from typing import Any, Final

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict

from services.broker.journal import JournalEntry, StoredEntry
from services.live.live_broker import LiveBroker
from services.ops.requests.answers import written
from services.ops.requests.callers import user_of
from services.ops.requests.operation import Endpoint, Operation
from services.ops.requests.request import LIMIT_DEFAULT, LIMIT_MAX, Nothing, Number, asked, said_by
from tidewheel.errors import ClientMistake, TidewheelError

DATA: Final = frozenset(
    {
        ("POST", "/api/messages"),
        ("POST", "/api/topics/{topic}/messages"),
        ("POST", "/api/timers"),
        ("POST", "/api/transactions"),
        ("POST", "/api/transactions/check-backs"),
        ("POST", "/api/transactions/{id}/commit"),
        ("POST", "/api/transactions/{id}/rollback"),
        ("POST", "/api/transactions/{id}/unknown"),
        ("POST", "/api/groups/{group}/receive"),
        ("POST", "/api/groups/{group}/ack"),
        ("POST", "/api/groups/{group}/nack"),
        ("POST", "/api/groups/{group}/extend"),
        ("POST", "/api/schedules/preview"),
    }
)
"""Operations of applications, and one that only computes."""
BY_BOTH: Final = frozenset(
    {("POST", "/api/timers/cancel"), ("POST", "/api/timers/move"), ("POST", "/api/timers/fire")}
)
"""Operations of applications and of operators."""
OPERATORS: Final = ("tidewheel-cli", "tidewheel-console")
"""The User-Agents of operators."""
_SECRET: Final = "/api/auth"
STARTED: Final = 202
"""The status of an answer that shows a task."""
_UNSAID: Final = ("body", "body_base64", "reason")
"""Fields of a request that an entry does not repeat."""


class JournalQuery(Nothing):
    """The conditions on the entries."""

    before: Number | None = Field(None, description="Entries before this offset, the newest first.")
    limit: int = Field(LIMIT_DEFAULT, ge=1, le=LIMIT_MAX)
    about: str = Field("", max_length=200, description="Entries with this text in any field.")


class EntryAnswer(TypedDict):
    """An operation with its caller, object, reason and result (`services.broker.journal.JournalEntry`)."""

    offset: str
    store_ms: str
    user: str
    host: str
    program: str
    verb: str
    about: str
    reason: str
    verdict: str
    detail: str


class JournalAnswer(TypedDict):
    """Entries. `before` is the position of the next page, or None at the beginning of the journal."""

    entries: list[EntryAnswer]
    before: str | None


class JournalApi:
    """The handler of `/api/journal`."""

    def __init__(self, live: LiveBroker) -> None:
        self._live = live

    async def entries(self, request: Request) -> Response:
        """List operations of operators, newest first."""
        query = asked(JournalQuery, request)
        page = self._live.query(self._live.core.journal.page, query.before, query.limit, query.about)
        before = None if page.before is None else str(page.before)
        return await written({"entries": (entry_shape(one) for one in page.entries), "before": before})


def entry_shape(noted: StoredEntry) -> EntryAnswer:
    """Return an entry in JSON form."""
    one = noted.entry
    return {
        "offset": str(noted.offset),
        "store_ms": str(noted.store_ms),
        "user": one.user,
        "host": one.host,
        "program": one.program,
        "verb": one.verb,
        "about": one.about,
        "reason": one.reason,
        "verdict": one.verdict,
        "detail": one.detail,
    }


def journalled(one: Operation, handler: Endpoint, live: LiveBroker) -> Endpoint:
    """Wrap a handler so that its operations are recorded in the journal before they are answered."""
    if one.method == "GET" or (one.method, one.path) in DATA:
        return handler

    async def endpoint(request: Request) -> Response:
        said = await said_by(request) if one.bodies else None
        if (one.method, one.path) in BY_BOTH and not is_of_operator(request, said):
            return await handler(request)
        if isinstance(said, dict) and said.get("dry_run") is True:
            return await handler(request)
        try:
            response = await handler(request)
        except ClientMistake:
            raise
        except TidewheelError as error:
            await live.call(live.core.journal.add_entry, entry_of(one, request, said, error.code, str(error)))
            raise
        verdict, made = result_of(one, response)
        await live.call(live.core.journal.add_entry, entry_of(one, request, said, verdict, made=made))
        return response

    return endpoint


def is_of_operator(request: Request, said: Any) -> bool:
    """Return whether an operator sent a verb, which then has a reason or a User-Agent of operators."""
    program = request.headers.get("user-agent", "")
    return program.startswith(OPERATORS) or (isinstance(said, dict) and bool(said.get("reason")))


def entry_of(
    one: Operation, request: Request, said: Any, verdict: str, detail: str = "", made: str = ""
) -> JournalEntry:
    """Return the entry of an operation. `made` is the id of the task that the operation has started."""
    fields = said if isinstance(said, dict) else {}
    given = {**request.path_params, **request.query_params}
    reason = given.pop("reason", "") or fields.get("reason", "")
    given |= {name: value for name, value in fields.items() if name not in _UNSAID}
    given |= {"id": made} if made else {}
    return JournalEntry(
        user=user_of(request),
        host="" if request.client is None else request.client.host,
        program=request.headers.get("user-agent", ""),
        verb=f"{one.path.split('/')[2]} {one.handler.__name__.replace('_', ' ')}",
        about=" ".join(f"{name}={_text(value)}" for name, value in given.items()),
        reason=_text(reason),
        verdict=verdict,
        detail=detail,
    )


def result_of(one: Operation, response: Response) -> tuple[str, str]:
    """Return the result of an operation, which is its verdict or "done", and the id of a started task.

    The answer to a removal has the state before it, which is not its result.
    """
    body = getattr(response, "body", b"")
    if one.path.startswith(_SECRET) or not body:
        return "done", ""
    answer = json.loads(bytes(body))
    if not isinstance(answer, dict):
        return "done", ""
    is_removal = one.method == "DELETE" and "already_ended" not in answer
    found = answer.get("verdict") or (None if is_removal else answer.get("state"))
    if answer.get("already_ended"):
        found = f"already {found}"
    made = answer.get("id") if response.status_code == STARTED else ""
    return found if isinstance(found, str) else "done", made if isinstance(made, str) else ""


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


OPERATIONS: Final = (
    Operation("GET", "/api/journal", JournalApi.entries, {200: JournalAnswer}, JournalQuery),
)
