"""`/api/auth`, `/api/refused` and the token: what operators see and set, and who else may."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from services.auth.refusals import Refusals
from services.auth.vault import KEY_BYTES
from services.ops.app import make_app
from services.ops.gate import Demands
from services.ops.metrics.broker_metrics import Metrics

TOKEN = "a-token-of-some-length"


async def added(desk: Any, name: str = "orders", **more: object) -> httpx.Response:
    """Make a user."""
    desk.live.access.set_key_source(lambda may_make: bytes(KEY_BYTES))
    return await desk.http.post("/api/auth/users", json={"name": name} | more)


def test_a_secret_is_told_once_and_opens_what_the_core_keeps(at_desk: Any) -> None:
    async def scenario(desk: Any) -> None:
        made = await added(desk)
        assert (made.status_code, made.headers["cache-control"]) == (201, "no-store")
        secret = made.json()["secret"]
        assert made.json() == {"access_key": "orders", "secret": secret, "is_asked": False}
        assert desk.live.access.secret_of("orders") == secret.encode()
        listed = await desk.http.get("/api/auth/users")
        assert listed.json() == {"users": [{"name": "orders", "made_ms": str(desk.now_ms)}]}
        assert (await added(desk)).json()["code"] == "TW-167"
        another = (await added(desk, new_secret=True)).json()["secret"]
        assert another != secret
        assert desk.live.access.secret_of("orders") == another.encode()
        core = desk.live.core
        assert secret not in repr(core.access.users()) + repr(core.access.freeze())

    at_desk(scenario)


def test_who_makes_a_user_is_told_whether_the_broker_asks_for_one(at_desk: Any) -> None:
    async def scenario(desk: Any) -> None:
        assert (await desk.http.get("/api/auth/rules")).json()["is_asked"] is False
        desk.live.access.enable_authentication()  # what --auth does
        assert (await added(desk)).json()["is_asked"] is True

    at_desk(scenario)


def test_a_removed_user_is_gone_with_its_rules(at_desk: Any) -> None:
    async def scenario(desk: Any) -> None:
        await added(desk)
        await allowed(desk, topics=["orders*"], verbs=["send"])
        assert (await desk.http.delete("/api/auth/users/orders")).json() == {"name": "orders"}
        assert (await desk.http.get("/api/auth/rules")).json()["rules"] == []
        assert (await desk.http.delete("/api/auth/users/orders")).status_code == 404
        assert desk.live.access.secret_of("orders") is None

    at_desk(scenario)


async def allowed(desk: Any, **wanted: object) -> httpx.Response:
    """Set rules of user `orders`."""
    return await desk.http.post("/api/auth/rules", json={"user": "orders"} | wanted)


def test_rules_are_set_for_topics_and_groups_together(at_desk: Any) -> None:
    async def scenario(desk: Any) -> None:
        await added(desk)
        answer = await allowed(desk, topics=["orders*"], groups=["g"], verbs=["send", "receive"])
        assert [(one["kind"], one["pattern"], one["verb"]) for one in answer.json()["rules"]] == [
            ("group", "g", "receive"),
            ("topic", "orders*", "receive"),
            ("topic", "orders*", "send"),
        ]
        denied = await allowed(desk, topics=["orders*"], verbs=["send"], effect="deny")
        assert denied.json()["rules"][-1]["effect"] == "deny"
        left = await desk.http.post("/api/auth/rules/remove", json={"user": "orders", "topics": ["orders*"]})
        assert [one["kind"] for one in left.json()["rules"]] == ["group"]
        await added(desk, name="carts")
        assert (await desk.http.get("/api/auth/rules", params={"user": "carts"})).json()["rules"] == []

    at_desk(scenario)


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ({"verbs": ["send"]}, "TW-130"),
        ({"topics": ["a b"], "verbs": ["send"]}, "TW-130"),
        ({"groups": ["g"], "verbs": ["send"]}, "TW-130"),
        ({"topics": ["t"], "verbs": []}, "TW-130"),
        ({"topics": ["t"], "verbs": ["drop"]}, "TW-130"),
        ({"topics": ["t"], "verbs": ["send"], "user": "nobody"}, "TW-155"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(at_desk: Any, wanted: dict[str, Any], code: str) -> None:
    async def scenario(desk: Any) -> None:
        await added(desk)
        assert (await allowed(desk, **wanted)).json()["code"] == code
        removed = await desk.http.post("/api/auth/rules/remove", json={"user": "orders", "topics": ["t"]})
        assert removed.json()["code"] == "TW-156"

    at_desk(scenario)


def test_a_broker_without_a_key_file_makes_no_users(at_desk: Any) -> None:
    async def scenario(desk: Any) -> None:
        refused = await desk.http.post("/api/auth/users", json={"name": "orders"})
        assert "--auth-key" in refused.json()["message"]

    at_desk(scenario)


def test_refusals_are_listed_and_measured(at_desk: Any) -> None:
    async def scenario(desk: Any) -> None:
        async with behind_token(desk) as (http, refusals):
            refusals.add("skewed", "10.0.0.1", "SendMessage", "orders")
            refusals.add("unsigned", "10.0.0.2", "QueryRoute")
            bearer = {"Authorization": f"Bearer {TOKEN}"}
            shown = (await http.get("/api/refused", params={"reason": "skewed"}, headers=bearer)).json()
            assert shown["counts"] == {"skewed": 1, "unsigned": 1}
            [one] = shown["refused"]
            assert one == {
                "at_ms": "5",
                "reason": "skewed",
                "host": "10.0.0.1",
                "who": "orders",
                "detail": "SendMessage",
            }
            scraped = (await http.get("/metrics", headers=bearer)).text
            assert "tidewheel_refused_total{" in scraped
            assert 'reason="skewed"} 1.0' in scraped

    at_desk(scenario)


@asynccontextmanager
async def behind_token(desk: Any) -> AsyncIterator[tuple[httpx.AsyncClient, Refusals]]:
    """Give the same broker's interface behind a token, and what it has refused."""
    refusals = Refusals(lambda: 5)
    metrics = Metrics(desk.live, [], sent_away=refusals.counts)
    app = make_app(desk.live, metrics, refusals=refusals, demands=Demands(TOKEN))
    transport = httpx.ASGITransport(app, client=("10.1.2.3", 5))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        yield http, refusals
    for tasks in app.state.tasks:
        await tasks.close()


@pytest.mark.parametrize("given", ["", TOKEN, f"bearer {TOKEN}x", f"Bearer {TOKEN}x", f"Basic {TOKEN}"])
def test_nothing_but_health_is_served_without_the_token(at_desk: Any, given: str) -> None:
    async def scenario(desk: Any) -> None:
        async with behind_token(desk) as (http, refusals):
            headers = {"Authorization": given} if given else {}
            for path in ("/api/topics", "/metrics", "/openapi.json", "/api/nothing", "/livez/"):
                refused = await http.get(path, headers=headers)
                assert refused.status_code == 401
                assert refused.headers["www-authenticate"] == "Bearer"
                assert refused.json()["code"] == "TW-181"
                assert refusals.latest(1)[0][1:] == ("http token", "10.1.2.3", "", f"GET {path}")
            for path in ("/livez", "/readyz"):
                assert (await http.get(path, headers=headers)).status_code == 200
            right = await http.get("/api/topics", headers={"Authorization": f"Bearer {TOKEN}"})
            assert right.status_code == 200
            assert TOKEN not in repr(refusals.latest())

    at_desk(scenario)
