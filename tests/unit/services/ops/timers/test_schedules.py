"""`/api/schedules` over a real core: what goes in, what comes out, and on which clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import httpx
import pytest

from services.broker.schedules.schedule_values import Occurrence, Schedule
from services.broker.spine.settings import BrokerSettings
from services.live import pauses
from services.live.clock import ClockKind, open_clock_offset
from services.live.live_broker import LiveBroker
from services.ops.app import make_app
from services.ops.metrics.broker_metrics import Metrics
from tests.memory_disk import MemoryDisk

NOW_MS = 1_763_700_000_000  # 2025-11-21 04:40:00 UTC
MINUTE_MS = 60_000
WANTED = {"cron": "* * * * *", "topic": "t", "body": "go"}


@dataclass
class Desk:
    """A live core and its HTTP interface."""

    live: LiveBroker
    http: httpx.AsyncClient

    async def put(self, name: str, status: int = 201, **attributes: Any) -> dict[str, Any]:
        answer = await self.http.put(f"/api/schedules/{name}", json=WANTED | attributes)
        assert answer.status_code == status, answer.text
        return dict(answer.json())

    async def get(self, name: str, **query: Any) -> dict[str, Any]:
        answer = await self.http.get(f"/api/schedules/{name}", params=query)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())


def play(scenario: Callable[[Desk], Awaitable[None]], clock: ClockKind = "real") -> None:
    async def run() -> None:
        with ThreadPoolExecutor(1) as writer:
            call_later = asyncio.get_running_loop().call_later
            disk, settings = MemoryDisk(), BrokerSettings(segment_bytes=1 << 23)
            live = LiveBroker(
                disk, settings, lambda: NOW_MS, call_later, writer, open_clock_offset(disk, clock)
            )
            transport = httpx.ASGITransport(make_app(live, Metrics(live, [])))
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
                await scenario(Desk(live, http))
            await live.close()

    asyncio.run(run())


def test_a_schedule_comes_out_as_it_went_in() -> None:
    async def scenario(desk: Desk) -> None:
        given = {
            "cron": "30 9 * * 1-5",
            "time_zone": "Europe/Berlin",
            "topic": "reports",
            "body": "grüße",
            "tag": "daily",
            "keys": ["k1"],
            "message_group": "g",
            "properties": {"shop": "eu"},
            "missed": "all",
            "missed_max": 7,
        }
        window = {"start_ms": NOW_MS + 1, "end_ms": NOW_MS + 30 * 86_400_000}
        told = await desk.put("report", **given, **window)
        assert told["coming"] == [{"at_ms": "1763713800000", "local": "2025-11-21T09:30:00+01:00"}]
        kept = await desk.get("report")
        assert {name: kept[name] for name in given} == given
        assert (kept["start_ms"], kept["end_ms"]) == (str(window["start_ms"]), str(window["end_ms"]))
        assert (kept["state"], kept["sent_count"], kept["last_ms"]) == ("ACTIVE", 0, None)
        assert [one["local"][:10] for one in kept["coming"]] == [
            "2025-11-21", "2025-11-24", "2025-11-25", "2025-11-26", "2025-11-27",
        ]  # fmt: skip
        assert len((await desk.get("report", count=2))["coming"]) == 2
        listed = (await desk.http.get("/api/schedules")).json()
        del kept["body"]
        assert listed == {"schedules": [kept | {"coming": kept["coming"][:1]}], "after": None}

    play(scenario)


def test_a_put_may_be_repeated_and_may_change() -> None:
    async def scenario(desk: Desk) -> None:
        await desk.put("s")
        durable_at = desk.live.core.schedules.get("s", 0).durable_at
        await desk.put("s", status=200)
        assert desk.live.core.schedules.get("s", 0).durable_at == durable_at, "it was not stored again"
        assert (await desk.put("s", status=200, body="other"))["body"] == "other"
        assert (await desk.put("b", body=None, body_base64="/wA="))["body_base64"] == "/wA="

    play(scenario)


def test_many_schedules_come_page_by_page() -> None:
    async def scenario(desk: Desk) -> None:
        for name in "dbace":
            await desk.put(name)
        pages, after = [], ""
        while after is not None:
            page = (await desk.http.get("/api/schedules", params={"after": after, "limit": 2})).json()
            pages.append([one["name"] for one in page["schedules"]])
            after = page["after"]
        assert pages == [["a", "b"], ["c", "d"], ["e"]]
        assert (await desk.http.get("/api/schedules?limit=0")).status_code == 400

    play(scenario)


def test_pause_resume_and_delete() -> None:
    async def scenario(desk: Desk) -> None:
        await desk.put("s")
        for verb, state in (("pause", "PAUSED"), ("pause", "PAUSED"), ("resume", "ACTIVE")):
            answer = await desk.http.post(f"/api/schedules/s/{verb}")
            assert (answer.status_code, answer.json()["state"]) == (200, state)
        assert (await desk.http.delete("/api/schedules/s")).status_code == 200
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/pause"), ("POST", "/resume")):
            answer = await desk.http.request(method, f"/api/schedules/s{path}")
            assert (answer.status_code, answer.json()["code"]) == (404, "TW-153")

    play(scenario)


def test_a_preview_keeps_nothing() -> None:
    async def scenario(desk: Desk) -> None:
        wanted = {"cron": "30 2 * * *", "time_zone": "Europe/Berlin", "start_ms": 1774652400000, "count": 2}
        answer = await desk.http.post("/api/schedules/preview", json=wanted)
        assert [one["local"] for one in answer.json()["coming"]] == [
            "2026-03-28T02:30:00+01:00",
            "2026-03-29T03:00:00+02:00",
        ]
        never = await desk.http.post("/api/schedules/preview", json={"cron": "0 0 30 2 *"})
        assert (never.status_code, never.json()) == (200, {"coming": []})
        assert desk.live.core.schedules.page() == []

    play(scenario)


@pytest.mark.parametrize("clock", ["real", "virtual"])
def test_many_occurrences_are_searched_in_several_turns(
    clock: ClockKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pauses, "SLICE_SECONDS", 0.0)
    leap_days = {"cron": "0 0 29 2 *", "time_zone": "Europe/London"}
    searches: list[tuple[int, int]] = []

    async def scenario(desk: Desk) -> None:
        await desk.put("s", **leap_days)
        if clock == "virtual":
            await desk.live.advance(90 * MINUTE_MS)
        view, turn, coming = desk.live.query(desk.live.core.schedules.get, "s", 12), 0, Schedule.upcoming_runs
        expected = [{"at_ms": str(one.at_ms), "local": one.local} for one in view.upcoming_runs]
        assert [one["local"][:10] for one in expected[:2]] == ["2028-02-29", "2032-02-29"]

        async def count_turns() -> None:
            nonlocal turn
            while True:
                turn += 1
                await asyncio.sleep(0)

        def noted(schedule: Schedule, at_ms: int | None, count: int) -> tuple[Occurrence, ...]:
            searches.append((turn, count))
            return coming(schedule, at_ms, count)

        monkeypatch.setattr(Schedule, "upcoming_runs", noted)
        counting = asyncio.ensure_future(count_turns())
        assert (await desk.get("s", count=12))["coming"] == expected
        answer = await desk.http.post("/api/schedules/preview", json=leap_days | {"count": 12})
        assert answer.json()["coming"] == expected
        counting.cancel()

    play(scenario, clock)
    assert [count for _, count in searches] == 2 * [5, *[1] * 7]
    assert len({turn for turn, _ in searches}) == len(searches)


def test_occurrences_end_where_the_schedule_does() -> None:
    async def scenario(desk: Desk) -> None:
        await desk.put("s", end_ms=NOW_MS + 7 * MINUTE_MS)
        assert len((await desk.get("s", count=100))["coming"]) == 7
        wanted = {"cron": "* * * * *", "end_ms": NOW_MS + 3 * MINUTE_MS, "count": 100}
        answer = await desk.http.post("/api/schedules/preview", json=wanted)
        assert len(answer.json()["coming"]) == 3

    play(scenario)


@pytest.mark.parametrize(
    ("attributes", "status", "code", "words"),
    [
        ({"time_zone": "Mars/Base"}, 400, "TW-149", "Europe/London"),
        ({"cron": "0 0 30 2 *"}, 400, "TW-149", "never occurs"),
        ({"cron": "hourly"}, 400, "TW-149", "it has 1 fields"),
        ({"body": "x" * 65_537}, 413, "TW-142", "65536"),
        ({"body": None}, 400, "TW-130", "either body or body_base64"),
        ({"body": None, "body_base64": "?"}, 400, "TW-130", "body_base64"),
        ({"missed": "often"}, 400, "TW-130", "missed"),
        ({"missed_max": 10**9}, 400, "TW-149", "1 to 1000"),
        ({"topic": "delays"}, 400, "TW-144", "'delays' takes DELAY"),
        ({"topic": "RMQ_SYS_X"}, 400, "TW-131", "own topics"),
        ({"end_ms": 5}, 400, "TW-149", "past"),
        ({"start_ms": 1 << 62}, 400, "TW-149", "It starts in"),
        ({"start_ms": 1 << 70}, 400, "TW-149", "It starts in"),
        ({"start_ms": "soon"}, 400, "TW-130", "start_ms"),
        ({"typo": 1}, 400, "TW-130", "typo"),
    ],
)
def test_what_cannot_be_is_refused(attributes: dict[str, Any], status: int, code: str, words: str) -> None:
    async def scenario(desk: Desk) -> None:
        await desk.http.post("/api/topics", json={"name": "delays", "message_type": "DELAY"})
        answer = await desk.http.put("/api/schedules/s", json=WANTED | attributes)
        assert (answer.status_code, answer.json()["code"]) == (status, code)
        assert words in answer.json()["message"]
        assert desk.live.core.schedules.page() == []

    play(scenario)


def test_bad_names_counts_and_previews_are_refused() -> None:
    async def scenario(desk: Desk) -> None:
        for name in ("a%20b", "n" * 101, "%C3%A4"):
            answer = await desk.http.put(f"/api/schedules/{name}", json=WANTED)
            assert (answer.status_code, answer.json()["code"]) == (400, "TW-149"), name
        await desk.put("a:b%3F%23@c", status=201)
        assert (await desk.get("a:b%3F%23@c"))["name"] == "a:b?#@c"
        for query in ("count=-1", "count=101", "count=x", "other=1"):
            assert (await desk.http.get(f"/api/schedules/a:b%3F%23@c?{query}")).status_code == 400, query
        for wanted in (
            {"cron": "* * * * *", "count": 0},
            {"cron": "x"},
            {},
            {"cron": "1 1 1 1 1", "end_ms": 1},
        ):
            assert (await desk.http.post("/api/schedules/preview", json=wanted)).status_code == 400, wanted

    play(scenario)


def test_a_virtual_clock_moves_schedules_and_their_times_are_those_of_callers() -> None:
    async def scenario(desk: Desk) -> None:
        await desk.put("s", cron="0 * * * *", end_ms=NOW_MS + 5 * 3_600_000)
        await desk.live.advance(90 * MINUTE_MS)
        (first, second) = [
            one
            for queue in range(4)
            for one in desk.live.query(desk.live.core.finding.read, "t", queue, 0, 9)
        ]
        assert sorted((first.store_ms, second.store_ms)) == [NOW_MS - 70 * MINUTE_MS, NOW_MS - 10 * MINUTE_MS]
        kept = await desk.get("s", count=1)
        assert kept["coming"] == [
            {"at_ms": str(NOW_MS + 50 * MINUTE_MS), "local": "2025-11-21T07:00:00+00:00"},
        ]
        assert (kept["sent_count"], kept["last_ms"]) == (2, str(NOW_MS - 10 * MINUTE_MS))
        assert kept["end_ms"] == str(NOW_MS + (5 * 60 - 90) * MINUTE_MS)
        preview = await desk.http.post("/api/schedules/preview", json={"cron": "0 * * * *", "count": 1})
        assert preview.json()["coming"] == kept["coming"]
        await desk.live.advance(10 * 3_600_000)
        assert (await desk.get("s"))["state"] == "ENDED"
        assert (await desk.get("s"))["sent_count"] == 5

    play(scenario, clock="virtual")


def seen_of(told: dict[str, Any], **changed: Any) -> dict[str, Any]:
    """Return what a caller saw of a schedule, for its change."""
    names = ("cron", "time_zone", "topic", "tag", "keys", "message_group", "properties", "missed")
    body = sha256(told["body"].encode()).hexdigest()
    more = ("missed_max", "start_ms", "end_ms")
    return {name: told[name] for name in (*names, *more)} | {"body_sha256": body} | changed


def test_a_schedule_that_another_caller_has_changed_since_is_not_replaced() -> None:
    async def scenario(desk: Desk) -> None:
        seen = seen_of(await desk.put("report", start_ms=NOW_MS + MINUTE_MS, keys=["a"]))
        await desk.put("report", 200, cron="0 * * * *", body="other", keys=["b"])
        refused = await desk.http.put("/api/schedules/report", json=WANTED | {"tag": "x", "seen": seen})
        assert (refused.status_code, refused.json()["code"]) == (409, "TW-160")
        told = (
            "'report' was changed since you saw it: its cron line from * * * * * to 0 * * * *; its keys from "
            "['a'] to ['b']; its body. Look at it again, and decide anew."
        )
        assert told in refused.json()["message"], refused.json()["message"]
        now = await desk.get("report")
        assert (now["cron"], now["body"], now["keys"], now["tag"]) == ("0 * * * *", "other", ["b"], "")
        wanted = {"cron": "0 * * * *", "body": "other", "keys": ["b"], "tag": "x", "seen": seen_of(now)}
        assert (await desk.put("report", 200, **wanted))["tag"] == "x"
        assert (await desk.put("report", 200, **wanted))["tag"] == "x", "a request may be repeated"

    play(scenario)


def test_a_schedule_that_was_removed_or_set_by_another_caller_is_left_so() -> None:
    async def scenario(desk: Desk) -> None:
        absent: dict[str, Any] = {"exists": False}
        seen = seen_of(await desk.put("report", seen=absent))
        assert (await desk.put("report", 200, seen=absent))["cron"] == WANTED["cron"], "repeated"
        path = "/api/schedules/report"
        refused = await desk.http.put(path, json=WANTED | {"body": "x", "seen": absent})
        assert (refused.status_code, refused.json()["code"]) == (409, "TW-160")
        assert "There is a schedule 'report' already." in refused.json()["message"]
        assert (await desk.http.delete(path)).status_code == 200
        refused = await desk.http.put(path, json=WANTED | {"body": "x", "seen": seen})
        assert (refused.status_code, refused.json()["code"]) == (409, "TW-160")
        assert "The schedule 'report' was removed since you saw it." in refused.json()["message"]
        assert (await desk.http.get(path)).status_code == 404

    play(scenario)
