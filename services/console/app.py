"""The console application: pages that require a session, each as HTML and as JSON.

A request passes these steps:

    Gate (origin, headers) -> session (else /sign-in) -> whoami -> Page.read, in a thread -> template
                                                      -> an action, in a thread -> redirect

The broker is asked for the caller's rights (`whoami`) before each page, so that no page and no shared content
outlives a right or a token. Cost: one small request to the broker for each page, also of open pages.

An error of the broker is shown as an error page with the broker's message, or above the form whose field it
concerns (`Page.blank`). A page that failed with status 503 reloads until the broker answers (`console.js`, or
a meta refresh without JavaScript).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from services.console.broker import NoSession, SignedOut, is_unsent, url_of
from services.console.gate import Gate, form_of
from services.console.page import Act, Asked, File, Model, Page, Unconfirmed
from services.console.rights import NEEDS, Caller
from services.console.sessions import Session, Sessions
from services.console.words import FILTERS
from services.http.api import Api
from services.http.curl import curl
from services.ops.requests.origins import Names
from services.times.display import now_ms
from tidewheel.errors import (
    AccessRefused,
    ClientMistake,
    NotFound,
    RefusedByState,
    TidewheelError,
)

HERE: Final = Path(__file__).parent
STATUSES: Final = ((ClientMistake, 400), (SignedOut, 401), (AccessRefused, 403), (NotFound, 404))
REFRESH: Final = "x-refresh"
"""The header field with which an open page asks for its newer content (`console.js`)."""
SHARED_PART: Final = 0.8
"""The part of a page's refresh interval during which open pages share its content."""
SHARED_MAX: Final = 64
CONSOLE_ENDED: Final = "If it has ended, start it again: tidewheel console"
CHILD_ENDED: Final = "A broker that was restarted has a new console: open {}/ in a new tab."
"""Advice on an open page whose console does not answer."""
READ_ONLY: Final = "This console was started with --read-only: it shows, and changes nothing."
AGAIN: Final = 503
"""The status of errors that may be temporary."""


class SharedModel(NamedTuple):
    """The content of a page, shared until `ends_s` by open pages with the same token, rights and address."""

    ends_s: float
    as_of_ms: int
    reading: asyncio.Future[Model]


class Console:
    """The request handlers of pages and files.

    `connect` returns the HTTP client for a token. `broker_url` is the URL of the broker, for people.
    `is_child` is whether the broker has started the console.
    """

    def __init__(
        self,
        connect: Callable[[str], Api],
        sessions: Sessions,
        cookie: str,
        pages: Sequence[Page],
        files: Sequence[File],
        broker_url: str,
        is_read_only: bool,
        is_child: bool,
    ) -> None:
        self._connect, self._sessions, self._cookie = connect, sessions, cookie
        self._pages, self._files, self._is_read_only = pages, files, is_read_only
        self._broker_url = broker_url
        self._shared: dict[tuple[str, str, str, str], SharedModel] = {}
        self._templates = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=True,
            auto_reload=False,  # new templates may not match the running code
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(FILTERS)
        self._templates.globals.update(menu=[page for page in pages if page.entry], is_read_only=is_read_only)
        anew = CHILD_ENDED.format(broker_url) if is_child else CONSOLE_ENDED
        self._templates.globals.update(mistake=None, broker_url=broker_url, anew=anew)

    def routes(self) -> list[Route | Mount]:
        """Return the routes of the console."""
        return [
            Route("/enter", self.enter),
            Route("/sign-in", self.sign_in, methods=["GET", "POST"]),
            Route("/sign-out", self.sign_out, methods=["POST"]),
            Mount("/static", StaticFiles(directory=HERE / "static")),
            *(Route(page.path, partial(self.show, page)) for page in self._pages),
            *(Route(file.path, partial(self.hand, file)) for file in self._files),
            *(
                Route(f"{page.path.rstrip('/')}/{verb}", partial(self.act, page, act), methods=["POST"])
                for page in self._pages
                for verb, act in page.acts.items()
            ),
        ]

    async def enter(self, request: Request) -> Response:
        """Open a session from a one-time link."""
        name = self._sessions.enter(request.query_params.get("key", ""))
        if name is None:
            return self._sign_in_page("This link was used already, or is older than ten minutes.", 403)
        return self._signed_in(name)

    async def sign_in(self, request: Request) -> Response:
        """Show the sign-in form, or open a session with a token that the broker accepts."""
        if request.method != "POST":
            return self._sign_in_page("", 200)
        token = (await form_of(request)).get("token", "").strip()
        if not token.isascii() or not token.isprintable() or not token:
            return self._sign_in_page("A token is a line of ASCII characters.", 400)
        try:
            caller = await run_in_threadpool(lambda: self._connect(token).get("whoami"))
        except SignedOut as error:
            return self._sign_in_page(str(error), 401)
        user = caller["user"] or ("administrator" if caller["is_asked"] else "")
        return self._signed_in(self._sessions.open(Session(token, user)))

    async def sign_out(self, request: Request) -> Response:
        """Close the session."""
        self._sessions.close(request.cookies.get(self._cookie, ""))
        answer = RedirectResponse("/sign-in", 303)
        answer.delete_cookie(self._cookie, httponly=True, samesite="strict")
        return answer

    async def show(self, page: Page, request: Request) -> Response:
        """Return a page as HTML or JSON."""
        session, asked = self._session(request), Asked(request.query_params)
        as_of_ms = now_ms()
        broker = self._connect(session.token)
        whoami = await run_in_threadpool(broker.get, "whoami")
        mistake: TidewheelError | None = None
        try:
            if is_refresh(request):
                key = (session.token, json.dumps(whoami), page.path, str(request.url.query))
                as_of_ms, model = await self._shared_model(page, broker, key, asked)
            else:
                model = await run_in_threadpool(page.read, broker, asked)
        except (ClientMistake, NotFound) as error:
            if page.blank is None or wants_json(request):
                raise
            mistake, model = error, await run_in_threadpool(page.blank, broker, asked)
        if wants_json(request):
            return JSONResponse({"as_of_ms": str(as_of_ms), **model})
        note = session.take_note() if is_navigation(request) else ""
        told = {"asked": asked, "here": str(request.url.query), "as_of_ms": as_of_ms, "note": note}
        return self._shown(page, session, broker, whoami, told | model, mistake)

    def _shown(
        self,
        page: Page,
        session: Session,
        broker: Api,
        whoami: Model,
        told: Model,
        mistake: TidewheelError | None,
    ) -> Response:
        """Return a page as HTML, with the status of its mistake if there is one."""
        told = {"page": page, "session": session} | self._offered(page, told, Caller(whoami)) | told
        told |= {"broker_url": url_of(broker.address), "curl": curl(whoami["is_asked"])}
        status = 200 if mistake is None else status_of(mistake)
        return self._rendered(page.template, told | {"mistake": mistake}, status)

    async def _shared_model(
        self, page: Page, broker: Api, key: tuple[str, str, str, str], asked: Asked
    ) -> tuple[int, Model]:
        """Return the time and the content of a page, which may be almost as old as its refresh interval.

        Many open pages therefore cost the broker little more than one of each address. The key contains the
        rights of the caller, since content that was read with other rights must not be shown.
        """
        now_s = monotonic()
        self._shared = {name: one for name, one in self._shared.items() if now_s < one.ends_s}
        found = self._shared.get(key)
        if found is None:
            reading = run_in_threadpool(page.read, broker, asked)
            ends_s = now_s + SHARED_PART * page.every_ms / 1_000
            found = SharedModel(ends_s, now_ms(), asyncio.ensure_future(reading))
            if len(self._shared) < SHARED_MAX:
                self._shared[key] = found
        return found.as_of_ms, await asyncio.shield(found.reading)

    async def hand(self, file: File, request: Request) -> Response:
        """Return the content of a file."""
        broker = self._connect(self._session(request).token)
        text = await run_in_threadpool(file.read, broker, Asked(request.query_params))
        return Response(text, media_type=file.media_type)

    async def act(self, page: Page, act: Act, request: Request) -> Response:
        """Run an action and redirect to the page that it returns."""
        session = self._session(request)
        if self._is_read_only:
            raise AccessRefused(READ_ONLY)
        broker, asked = self._connect(session.token), Asked(await form_of(request))
        try:
            said, path = await run_in_threadpool(act, broker, asked)
        except Unconfirmed as error:
            if wants_json(request):
                raise
            return await self._shown_again(page, session, broker, asked, error)
        session.note = said
        return RedirectResponse(path, 303)

    async def _shown_again(
        self, page: Page, session: Session, broker: Api, asked: Asked, error: Unconfirmed
    ) -> Response:
        """Return the page of an action that its user must confirm."""
        as_of_ms = now_ms()
        whoami = await run_in_threadpool(broker.get, "whoami")
        model = await run_in_threadpool(page.read, broker, asked)
        told = {"asked": asked, "as_of_ms": as_of_ms, "note": ""}
        return self._shown(page, session, broker, whoami, told | model | error.fields, error)

    async def failed(self, request: Request, error: Exception) -> Response:
        """Return the response for an error of the broker or the console."""
        assert isinstance(error, TidewheelError)
        if isinstance(error, SignedOut):
            self._sessions.close(request.cookies.get(self._cookie, ""))
            if not wants_json(request):
                return self._sign_in_page(str(error), 401)
        status = status_of(error)
        if wants_json(request):
            return JSONResponse({"code": error.code, "message": str(error)}, status)
        session = self._found(request)
        told = {
            "error": error,
            "status": status,
            "session": session,
            "page": None,
            "note": "",
            "withheld": "",
            "is_change": request.method == "POST",
            "is_unsent": is_unsent(error),
            "form": self._form_of(request),
        }
        again = status == AGAIN and request.method == "GET"
        return self._rendered("error.html", told | {"as_of_ms": now_ms(), "is_tried_again": again}, status)

    async def unknown(self, request: Request, error: Exception) -> Response:
        """Return the response for an unknown path."""
        assert isinstance(error, HTTPException)
        if error.status_code != 404:
            return Response(status_code=error.status_code, headers=error.headers)
        return await self.failed(request, NotFound(f"{request.url.path[:200]} is no page of the console."))

    def _form_of(self, request: Request) -> str:
        """Return the path of the page whose form was sent, or an empty string if it is unknown."""
        try:
            origin = urlsplit(request.headers.get("referer", ""))
        except ValueError:
            return ""
        is_page = any(page.path == origin.path for page in self._pages)
        if not is_page or origin.netloc != request.headers.get("host"):
            return ""
        path = f"{origin.path}?{origin.query}" if origin.query else origin.path
        is_own = (origin.path, origin.query) == (request.url.path, request.url.query)
        return "" if is_own else path

    def _offered(self, page: Page, model: Model, caller: Caller) -> dict[str, Any]:
        """Return the actions that a page offers to a caller, and the reason why others are not offered."""
        refusals = {verb: caller.refusal(NEEDS[page.path, verb](model)) for verb in page.acts}
        offers = {verb for verb, refusal in refusals.items() if not refusal and not self._is_read_only}
        return {"offers": offers, "may": caller.may, "withheld": next(filter(None, refusals.values()), "")}

    def _found(self, request: Request) -> Session | None:
        return self._sessions.find(request.cookies.get(self._cookie, ""), is_use=not is_refresh(request))

    def _session(self, request: Request) -> Session:
        session = self._found(request)
        if session is None:
            raise NoSession(
                f"Sign in first. If the broker asks for no token, open {self._broker_url}/ again, or start "
                "'tidewheel console' again for another link."
            )
        return session

    def _signed_in(self, name: str) -> Response:
        answer = RedirectResponse("/", 303)
        answer.set_cookie(self._cookie, name, httponly=True, samesite="strict")
        return answer

    def _sign_in_page(self, said: str, status: int) -> Response:
        told = {"said": said, "session": None, "page": None, "note": "", "withheld": "", "as_of_ms": now_ms()}
        return self._rendered("sign_in.html", told, status)

    def _rendered(self, template: str, told: dict[str, Any], status: int = 200) -> Response:
        return HTMLResponse(self._templates.get_template(template).render(told), status)


def status_of(error: TidewheelError) -> int:
    """Return the HTTP status of an error."""
    usual = 409 if isinstance(error, RefusedByState) else AGAIN
    return next((status for kind, status in STATUSES if isinstance(error, kind)), usual)


def is_refresh(request: Request) -> bool:
    """Return whether an open page asks for its newer content."""
    return REFRESH in request.headers


def is_navigation(request: Request) -> bool:
    """Return whether a tab opens the page. The refresh of a page must not take the note of another tab."""
    return request.headers.get("sec-fetch-dest", "document") == "document"


def wants_json(request: Request) -> bool:
    """Return whether the client asks for JSON."""
    accepted = request.headers.get("accept", "")
    return request.query_params.get("as") == "json" or (
        "application/json" in accepted and "text/html" not in accepted
    )


def make_app(
    connect: Callable[[str], Api],
    sessions: Sessions,
    names: Names,
    port: int,
    pages: Sequence[Page],
    files: Sequence[File],
    *,
    broker_url: str,
    is_read_only: bool,
    is_child: bool,
) -> Starlette:
    """Return the console application.

    Browsers send a cookie to all ports of a host, so the cookie name contains the port.
    """
    cookie = f"tidewheel_console_{port}"
    console = Console(connect, sessions, cookie, pages, files, broker_url, is_read_only, is_child)
    handlers: dict[Any, Callable[[Request, Exception], Awaitable[Response]]] = {
        TidewheelError: console.failed,
        HTTPException: console.unknown,
    }
    app = Starlette(routes=console.routes(), exception_handlers=handlers)
    app.add_middleware(Gate, names=names)
    return app
