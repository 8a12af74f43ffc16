"""`/api/topics` over a real core: a topic is altered, purged and deleted, or the reason for not doing so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.unit.services.ops.conftest import Desk

Play = Callable[[Callable[[Desk], Awaitable[None]]], None]


def test_a_topic_is_shown_in_use_purged_and_deleted(at_desk: Play) -> None:
    async def scenario(desk: Desk) -> None:
        http = desk.http
        await http.post("/api/topics", json={"name": "orders", "queue_count": 1})
        await http.post("/api/groups", json={"name": "shop", "topic": "orders"})
        for _ in range(3):
            await http.post("/api/messages", json={"topic": "orders", "body": "x"})
        use = (await http.get("/api/topics/orders/use")).json()
        assert (use["messages"], use["unfinished"], use["timers"]) == (3, 3, 0)
        assert use["groups"] == [{"group": "shop", "unfinished": 3, "dead_letters": 0}]

        refused = await http.post("/api/topics/orders/purge", json={})
        assert (refused.status_code, refused.json()["code"]) == (409, "TW-168")
        assert "tidewheel topic purge orders --discard --yes" in refused.json()["message"]
        assert (await http.post("/api/topics/orders/purge", json={"discard": True})).status_code == 200

        await desk.set("orders", "1h", timer_key="k")
        refused = await http.delete("/api/topics/orders", params={"discard": "true"})
        assert (refused.status_code, refused.json()["code"]) == (409, "TW-168")
        assert "1 timers" in refused.json()["message"]
        await desk.post("/cancel", {"topic": "orders", "key": "k"})
        assert (await http.delete("/api/topics/orders")).status_code == 200
        assert (await http.get("/api/topics/orders")).status_code == 404
        assert (await http.get("/api/groups/shop")).status_code == 404

    at_desk(scenario)


def test_a_topic_is_altered(at_desk: Play) -> None:
    async def scenario(desk: Desk) -> None:
        http = desk.http
        await http.post("/api/topics", json={"name": "orders", "message_type": "NORMAL", "queue_count": 1})
        altered = await http.put("/api/topics/orders", json={"message_type": "MIXED", "queue_count": 4})
        assert altered.json() == {"name": "orders", "message_type": "MIXED", "queue_count": 4}
        for body, status in (({}, 400), ({"queue_count": 2}, 400), ({"message_type": "LITE"}, 400)):
            assert (await http.put("/api/topics/orders", json=body)).status_code == status
        assert (await http.put("/api/topics/none", json={"queue_count": 2})).status_code == 404

    at_desk(scenario)
