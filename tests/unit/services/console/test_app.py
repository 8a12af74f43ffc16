"""The application without a broker: use of a session, and the cost of open pages."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import httpx

from services.console.app import REFRESH, make_app
from services.console.page import Page
from services.console.sessions import IDLE_SECONDS, Session, Sessions
from services.ops.requests.origins import names_of

PORT = 80
OPEN_PAGE = {REFRESH: "page", "sec-fetch-dest": "empty", "sec-fetch-site": "same-origin"}


class Broker:
    """An `Api` that counts the calls of each path."""

    address = "127.0.0.1:8088"

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def get(self, *path: str) -> Any:
        self.calls["/".join(path)] += 1
        return {"user": "", "has_all_rights": True, "rules": [], "is_asked": False}


class Seat:
    """A signed-in browser; `now_s` is the clock of the sessions."""

    def __init__(self) -> None:
        self.now_s, self.broker = 0.0, Broker()
        sessions = Sessions(lambda: self.now_s)
        pages = [Page("/topics", "Topics", "sign_in.html", self._read)]
        names = names_of(["127.0.0.1"], is_loopback=True)
        app = make_app(
            lambda _: self.broker,  # type: ignore[arg-type,return-value]  # only `get` is called
            sessions,
            names,
            PORT,
            pages,
            [],
            broker_url="http://127.0.0.1:8088",
            is_read_only=False,
            is_child=False,
        )
        self._app, cookie = app, f"tidewheel_console_{PORT}={sessions.open(Session('token'))}"
        self._headers = {"cookie": cookie, "host": f"127.0.0.1:{PORT}"}

    def open(self, headers: dict[str, str] | None = None) -> int:
        """Open the page; return the status."""

        async def opened() -> int:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url=f"http://127.0.0.1:{PORT}") as http:
                answer = await http.get("/topics", headers=self._headers | (headers or {}))
            return answer.status_code

        return asyncio.run(opened())

    def _read(self, broker: Any, asked: Any) -> dict[str, Any]:
        broker.get("topics")
        return {"said": ""}


def test_a_session_ends_although_a_page_stays_open() -> None:
    seat, every_s = Seat(), 1_800
    for _ in range(IDLE_SECONDS // every_s):
        seat.now_s += every_s
        assert seat.open(OPEN_PAGE) == 200
    seat.now_s += every_s
    assert seat.open(OPEN_PAGE) == 401


def test_a_page_that_is_opened_keeps_its_session() -> None:
    seat = Seat()
    for _ in range(3):
        seat.now_s += IDLE_SECONDS - 1
        assert seat.open() == 200


def test_an_open_page_costs_one_question_for_the_rights() -> None:
    seat = Seat()
    for accept in ("text/html", "application/json") * 25:
        assert seat.open(OPEN_PAGE | {"accept": accept}) == 200
    assert seat.broker.calls == {"whoami": 50, "topics": 1}
