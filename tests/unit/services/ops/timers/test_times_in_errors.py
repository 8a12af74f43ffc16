"""With a virtual clock, errors of the core state times as distances from now, which hold on every clock."""

from __future__ import annotations

from typing import Any


def test_a_key_that_is_pending_is_refused_with_the_distance_of_its_due_time(at_desk: Any) -> None:
    async def scenario(desk: Any) -> None:
        await desk.advance("3d")
        await desk.set("t", "1h", timer_key="k")
        timer = {"topic": "t", "body": "x", "in": "1h", "timer_key": "k", "unique": True}
        refused = await desk.post("", timer, 409)
        assert "is pending in topic 't', due in 1h" in refused["message"]

    at_desk(scenario)


def test_a_move_that_is_too_far_is_refused_with_its_distance(at_desk: Any) -> None:
    async def scenario(desk: Any) -> None:
        await desk.advance("3d")
        await desk.set("t", "1h", timer_key="k")
        refused = await desk.post("/move", {"topic": "t", "key": "k", "to": "4000d"}, 400)
        assert "at most 3660d from now" in refused["message"]
        assert "The time asked for is in 4000d." in refused["message"]

    at_desk(scenario)


def test_the_end_of_a_transaction_is_stated_as_a_distance(at_desk: Any) -> None:
    async def scenario(desk: Any) -> None:
        await desk.advance("3d")
        half = f"/api/transactions/{await desk.send_half('t', 'k')}"
        assert (await desk.http.post(f"{half}/commit", json={"topic": "t"})).status_code == 200
        await desk.advance("2h")
        refused = await desk.http.post(f"{half}/rollback", json={"topic": "t"})
        assert (refused.status_code, "was COMMITTED 2h ago." in refused.json()["message"]) == (409, True)

    at_desk(scenario)


def test_the_end_of_a_schedule_is_stated_as_a_distance(at_desk: Any) -> None:
    async def scenario(desk: Any) -> None:
        await desk.advance("3d")
        wanted = {
            "cron": "0 0 1 1 *",
            "time_zone": "UTC",
            "topic": "t",
            "body": "x",
            "end_ms": 1_763_700_060_000,
        }
        refused = await desk.http.put("/api/schedules/s", json=wanted)
        assert (refused.status_code, "before its end, in 1m." in refused.json()["message"]) == (400, True)

    at_desk(scenario)
