"""`/api/clients`: who is there, and what becomes of a question to somebody who is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

PLACE = {"topic": "t", "queue_id": 0, "queue_offset": 0}


def test_nobody_is_there_without_a_front(at_desk: Callable[[Any], None]) -> None:
    async def scenario(desk: Any) -> None:
        assert (await desk.http.get("/api/clients")).json() == {"clients": []}
        for query, status in (("?client=nobody", 404), ("", 400), ("?client=", 400), ("?client=a&b=c", 400)):
            assert (await desk.http.get(f"/api/clients/show{query}")).status_code == status

    at_desk(scenario)


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("stack", {"client": "nobody"}, 404, "TW-157"),
        ("reconnect", {"client": "nobody"}, 404, "TW-157"),
        ("stack", {}, 400, "TW-130"),
        ("stack", {"client": ""}, 400, "TW-130"),
        ("stack", {"client": "a", "more": 1}, 400, "TW-130"),
        ("verify", {"client": "nobody"}, 400, "TW-130"),
        ("verify", {"client": "nobody", **PLACE, "queue_id": -1}, 400, "TW-130"),
        ("verify", {"client": "nobody", **PLACE, "topic": "none"}, 404, "TW-151"),
        ("verify", {"client": "nobody", **PLACE, "queue_offset": 7}, 404, "TW-152"),
        ("verify", {"client": "nobody", **PLACE}, 404, "TW-157"),
    ],
)
def test_what_cannot_be_asked_is_told(
    at_desk: Callable[[Any], None], path: str, body: dict[str, Any], status: int, code: str
) -> None:
    async def scenario(desk: Any) -> None:
        topic = {"name": "t", "message_type": "NORMAL", "queue_count": 1}
        assert (await desk.http.post("/api/topics", json=topic)).status_code == 201
        message = {"topic": "t", "body": "hello"}
        assert (await desk.http.post("/api/messages", json=message)).status_code == 201
        answer = await desk.http.post(f"/api/clients/{path}", json=body)
        assert (answer.status_code, answer.json()["code"]) == (status, code)

    at_desk(scenario)
