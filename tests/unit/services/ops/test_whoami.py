"""The caller of a request and what it may do."""

from __future__ import annotations

from typing import Any

from services.auth.rights import Effect, Kind, Verb
from tests.unit.services.ops.conftest import START_MS
from tests.unit.services.ops.test_tokens import SEND_T, AtDesk, guarded

Desk = Any
HOUR_MS = 3_600_000


def test_a_user_sees_its_token_and_its_own_rules(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        async with guarded(desk) as one:
            await one.user("shop", SEND_T)
            await one.allow("shop", (Verb.RECEIVE, Kind.GROUP, "work*"), effect=Effect.DENY)
            await one.user("others", (Verb.ADMIN, Kind.TOPIC, "secret"))
            text, token = await one.live.access.add_token("shop", HOUR_MS)
            one.tokens["shop"] = text
            answer = await one.call("shop", "GET", "/api/whoami")
            rule = {"user": "shop", "kind": "topic", "pattern": "t", "verb": "send", "effect": "allow"}
            denied = {"kind": "group", "pattern": "work*", "verb": "receive", "effect": "deny"}
            assert answer.json() == {
                "user": "shop",
                "is_asked": True,
                "has_all_rights": False,
                "is_administrator": False,
                "token": {"id": token.id, "made_ms": str(START_MS), "expires_ms": str(START_MS + HOUR_MS)},
                "rules": [rule | denied, rule],
            }
            assert text not in answer.text
            assert not one.refusals.counts, "to ask is no refusal"

    at_desk(scenario)


def test_a_user_with_admin_on_everything_is_an_administrator_without_all_rights(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        async with guarded(desk) as one:
            await one.user("ops", (Verb.ADMIN, Kind.TOPIC, "*"), (Verb.ADMIN, Kind.GROUP, "*"))
            me = (await one.call("ops", "GET", "/api/whoami")).json()
            assert (me["user"], me["has_all_rights"], me["is_administrator"]) == ("ops", False, True)
            await one.allow("ops", (Verb.ADMIN, Kind.TOPIC, "pay*"), effect=Effect.DENY)
            assert not (await one.call("ops", "GET", "/api/whoami")).json()["is_administrator"]

    at_desk(scenario)


def test_the_administrator_has_all_rights_and_no_name(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        async with guarded(desk) as one:
            nobody = {"user": None, "has_all_rights": True, "is_administrator": True, "token": None}
            answer = await one.call("", "GET", "/api/whoami")
            assert answer.json() == nobody | {"is_asked": True, "rules": []}
            open_to_all = (await desk.http.get("/api/whoami")).json()
            assert open_to_all == nobody | {"is_asked": False, "rules": []}

    at_desk(scenario)


def test_times_are_real_on_a_virtual_clock_and_a_revoked_token_is_refused(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        async with guarded(desk) as one:
            moved = await one.call("", "POST", "/api/clock/advance", {"by": "1h"})
            assert moved.status_code == 200, moved.text
            await one.user("shop")
            me = (await one.call("shop", "GET", "/api/whoami")).json()
            assert (me["token"]["made_ms"], me["rules"]) == (str(START_MS), [])
            await one.live.access.revoke_token(me["token"]["id"])
            assert (await one.call("shop", "GET", "/api/whoami")).status_code == 401

    at_desk(scenario)
