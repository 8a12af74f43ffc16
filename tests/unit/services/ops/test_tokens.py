"""Users over HTTP: their tokens, what each route needs, and what a caller without it is told."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.routing import Route

from commitlog import limits
from commitlog.records.message import Message
from services.auth.refusals import Refusals
from services.auth.rights import Effect, Kind, Rule, Verb
from services.auth.vault import KEY_BYTES
from services.cluster.forwarding.http_calls import _COMMANDS
from services.ops.app import make_app
from services.ops.gate import Demands
from services.ops.metrics.broker_metrics import Metrics
from services.ops.needs import NEEDS, whole_broker
from services.ops.routes import OPERATIONS

Desk = Any
AtDesk = Callable[..., None]
ADMINISTRATORS = "the-token-of-the-administrator"
SECONDS = 60


class Guarded:
    """A broker whose HTTP interface asks for tokens, with what it has refused."""

    def __init__(self, desk: Desk, http: httpx.AsyncClient, app: Any, refusals: Refusals) -> None:
        self.desk, self.live, self.http, self.app, self.refusals = desk, desk.live, http, app, refusals
        self.tokens: dict[str, str] = {}

    async def user(self, name: str, *rules: tuple[Verb, Kind, str]) -> None:
        """Add a user with rules and a token."""
        await self.live.access.add_user(name, replaces_secret=False)
        await self.allow(name, *rules)
        self.tokens[name] = (await self.live.access.add_token(name, None))[0]

    async def allow(self, name: str, *rules: tuple[Verb, Kind, str], effect: Effect = Effect.ALLOW) -> None:
        """Set rules of a user."""
        await self.live.access.set_rules([Rule(name, kind, on, verb, effect) for verb, kind, on in rules])

    async def call(self, user: str, method: str, path: str, body: Any = None) -> httpx.Response:
        """Call as a user; empty: as the administrator."""
        token = self.tokens[user] if user else ADMINISTRATORS
        headers = {"Authorization": f"Bearer {token}"}
        return await self.http.request(method, path, json=body, headers=headers)


@asynccontextmanager
async def guarded(desk: Desk) -> AsyncIterator[Guarded]:
    """Give the desk's broker behind tokens."""
    desk.live.access.set_key_source(lambda may_make: bytes(KEY_BYTES))
    refusals = Refusals(lambda: 5)
    app = make_app(desk.live, Metrics(desk.live, []), refusals=refusals, demands=Demands(ADMINISTRATORS))
    transport = httpx.ASGITransport(app, client=("10.1.2.3", 5))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        async with asyncio.timeout(SECONDS):
            yield Guarded(desk, http, app, refusals)
    for tasks in app.state.tasks:
        await tasks.close()


SEND_T = (Verb.SEND, Kind.TOPIC, "t")
RECEIVE_T = ((Verb.RECEIVE, Kind.TOPIC, "t"), (Verb.RECEIVE, Kind.GROUP, "g"))
TRANSACT_T = (Verb.TRANSACT, Kind.TOPIC, "t")


def test_each_route_is_in_the_table_and_nothing_else_is(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        served = {
            (method, route.path)
            for route in desk.app.routes
            if isinstance(route, Route)
            for method in route.methods or ()
            if method != "HEAD"
        }
        cluster = {("GET", "/api/cluster"), *(("POST", path) for path in _COMMANDS)}
        assert NEEDS.keys() == served | cluster
        assert all(NEEDS[one] is whole_broker for one in cluster), "a node asks for that"

    at_desk(scenario)


def test_a_user_without_rights_is_refused_everywhere_but_where_none_is_needed(at_desk: AtDesk) -> None:
    table = [one for part in OPERATIONS.values() for one in part]
    bodies = {
        "/api/messages": {"topic": "t", "body": "x"},
        "/api/topics/{topic}/messages": {"any": "json"},
        "/api/timers": {"topic": "t", "body": "x", "in": "1h"},
        "/api/transactions": {"topic": "t", "body": "x"},
        "/api/transactions/check-backs": {"topics": ["t"]},
        "/api/topics": {"name": "t"},
        "/api/groups": {"name": "g"},
        "/api/dead-letters/tasks": {"verb": "purge", "group": "g"},
        "/api/moves/tasks": {"source": "t", "target": "u"},
    }
    other = {"topic": "t", "receipt_handles": ["t 0"], "key": "k"}

    async def scenario(desk: Desk) -> None:
        half = await desk.send_half("t", "order-9")
        async with guarded(desk) as one:
            await one.user("nobody")
            for operation in table:
                path = operation.path.replace("{id}", half if "transactions" in operation.path else "1")
                url = re.sub(r"{\w+}", "t", path)
                url += "?topic=t&key=k" if url in ("/api/timers/one", "/api/messages") else ""
                has_body = operation.bodies or operation.media_types
                body = bodies.get(operation.path, other) if has_body else None
                answer = await one.call("nobody", operation.method, url, body)
                needs_none = NEEDS[operation.method, operation.path].__name__ == "no_needs"
                assert (answer.status_code == 403) != needs_none, (operation.path, answer.text)
                if not needs_none:
                    said = answer.json()
                    assert said["code"] == "TW-182"
                    assert "tidewheel auth acl allow nobody " in said["message"], said
            assert one.live.query(one.live.core.half_views.get_half, half).state.value == "OPEN"

    at_desk(scenario)


@pytest.mark.parametrize(
    ("rules", "method", "path", "body"),
    [
        ([SEND_T], "POST", "/api/messages", {"topic": "t", "body": "x"}),
        ([SEND_T], "POST", "/api/messages", {"messages": [{"topic": "t", "body": "x"}]}),
        ([SEND_T], "POST", "/api/topics/t/messages", {"any": "json"}),
        ([SEND_T], "POST", "/api/timers", {"topic": "t", "body": "x", "in": "1h"}),
        ([SEND_T], "POST", "/api/timers", {"timers": [{"topic": "t", "body": "x", "in": "1h"}]}),
        ([SEND_T], "POST", "/api/timers/cancel", {"topic": "t", "key": "none"}),
        ([SEND_T], "GET", "/api/timers/one?topic=t&key=none", None),
        ([SEND_T, TRANSACT_T], "POST", "/api/transactions", {"topic": "t", "body": "x"}),
        ([TRANSACT_T], "POST", "/api/transactions/check-backs", {"topics": ["t"], "wait": 0}),
        ([*RECEIVE_T], "POST", "/api/groups/g/receive", {"topic": "t"}),
        ([*RECEIVE_T], "POST", "/api/groups/g/ack", {"receipt_handles": ["t 0"]}),
        ([*RECEIVE_T], "POST", "/api/groups/g/nack", {"receipt_handles": ["t 0"]}),
        ([*RECEIVE_T], "POST", "/api/groups/g/extend", {"receipt_handles": ["t 0"], "lease": "1m"}),
        ([(Verb.ADMIN, Kind.TOPIC, "*")], "GET", "/api/timers", None),
        ([(Verb.ADMIN, Kind.TOPIC, "or*")], "GET", "/api/timers?topic-prefix=orders", None),
        ([(Verb.ADMIN, Kind.TOPIC, "*"), (Verb.ADMIN, Kind.GROUP, "*")], "GET", "/api/auth/users", None),
        ([(Verb.ADMIN, Kind.TOPIC, "*"), (Verb.ADMIN, Kind.GROUP, "*")], "GET", "/metrics", None),
        ([(Verb.VIEW, Kind.TOPIC, "*")], "GET", "/api/timers", None),
        ([(Verb.VIEW, Kind.TOPIC, "t")], "GET", "/api/topics/t", None),
        ([(Verb.VIEW, Kind.TOPIC, "t")], "GET", "/api/topics/t/newest", None),
        ([(Verb.VIEW, Kind.TOPIC, "t")], "GET", "/api/timers/one?topic=t&key=none", None),
        ([(Verb.VIEW, Kind.GROUP, "g")], "GET", "/api/groups/g", None),
        ([(Verb.VIEW, Kind.TOPIC, "*"), (Verb.VIEW, Kind.GROUP, "*")], "GET", "/api/journal", None),
        ([RECEIVE_T[0]], "GET", "/api/topics/t", None),
    ],
)
def test_just_the_rights_of_the_table_are_enough_and_each_is_needed(
    at_desk: AtDesk, rules: list[Any], method: str, path: str, body: Any
) -> None:
    async def scenario(desk: Desk) -> None:
        await desk.http.post("/api/topics", json={"name": "t"})
        async with guarded(desk) as one:
            await one.user("app", *rules)
            answer = await one.call("app", method, path, body)
            assert answer.status_code not in (401, 403), answer.text
            for missing in rules:
                others = [rule for rule in rules if rule != missing]
                await one.live.access.remove_user("app")
                await one.user("app", *others)
                refused = await one.call("app", method, path, body)
                assert refused.status_code == 403, (missing, refused.text)
                said = "view" if method == "GET" and not path.startswith("/api/auth/") else missing[0]
                said = {"/api/topics/t": "any right", "/api/timers/one?topic=t&key=none": "send"}.get(
                    path, said
                )
                assert f"{said} on {missing[1]}" in refused.json()["message"]
                assert one.refusals.latest(1)[0][1:4] == ("no right", "10.1.2.3", "app")

    at_desk(scenario)


@pytest.mark.parametrize(
    "body",
    [
        {"topic": "t", "body": "x", "cancel": {"key": "k", "topic": "other"}},
        {"topic": "t", "body": "x", "properties": {"TW_TIMER_CANCEL": "k", "TW_TIMER_TOPIC": "other"}},
        {"messages": [{"topic": "t", "body": "x"}, {"topic": "other", "body": "x"}]},
        {"messages": [{"topic": "t", "body": "x", "fire": {"key": "k", "topic": "other"}}]},
    ],
)
def test_a_message_needs_the_right_on_all_that_it_touches(at_desk: AtDesk, body: Any) -> None:
    async def scenario(desk: Desk) -> None:
        await desk.http.post("/api/topics", json={"name": "t"})
        async with guarded(desk) as one:
            await one.user("app", SEND_T)
            end_offset = one.live.core.end_offset
            refused = await one.call("app", "POST", "/api/messages", body)
            assert (refused.status_code, refused.json()["code"]) == (403, "TW-182")
            assert "--topic other" in refused.json()["message"]
            assert one.live.core.end_offset == end_offset

    at_desk(scenario)


def test_a_handle_or_a_recall_handle_of_another_topic_is_no_way_round(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        timer = await desk.set("other", "1h")
        await desk.live.send(Message(topic="other", body=b"x", message_id="A"))
        got = (await desk.http.post("/api/groups/g/receive", json={"topic": "other"})).json()["messages"]
        handles = {"receipt_handles": [got[0]["receipt_handle"]]}
        recall = {"handle": timer["recall_handle"]}
        async with guarded(desk) as one:
            await one.user("app", SEND_T, *RECEIVE_T)
            for path, body in (("groups/g/ack", handles), ("timers/cancel", recall), ("timers/fire", recall)):
                refused = await one.call("app", "POST", f"/api/{path}", body)
                assert refused.status_code == 403, path
            shown = await one.call("app", "GET", f"/api/timers/one?handle={timer['recall_handle']}")
            assert shown.status_code == 403

    at_desk(scenario)


def test_names_that_are_no_text_are_refused_by_the_handler_and_give_nothing(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        async with guarded(desk) as one:
            await one.user("app")
            end_offset = one.live.core.end_offset
            for method, path, body in (
                ("POST", "/api/messages", {"topic": 7, "body": "x"}),
                ("POST", "/api/messages", {"messages": {"topic": "t"}}),
                ("POST", "/api/messages", []),
                ("POST", "/api/timers", {"timers": "t"}),
                ("POST", "/api/timers/cancel", {"topic": ["t"], "key": "k"}),
                ("POST", "/api/transactions", {"topic": None, "body": "x"}),
                ("POST", "/api/transactions/check-backs", {"topics": "t"}),
                ("POST", "/api/topics", {"name": 1}),
                ("POST", "/api/groups", {"name": ["g"]}),
                ("POST", "/api/dead-letters/tasks", {"verb": "purge", "group": 1}),
                ("POST", "/api/dead-letters/tasks", {"verb": "purge"}),
            ):
                refused = await one.call("app", method, path, body)
                assert refused.status_code == 400, (path, body, refused.text)
            assert one.live.core.end_offset == end_offset

    at_desk(scenario)


def test_a_token_is_shown_once_listed_and_revoked(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        async with guarded(desk) as one:
            await one.user("orders", SEND_T)
            made = await one.call("", "POST", "/api/auth/tokens", {"user": "orders", "expires": "30d"})
            assert (made.status_code, made.headers["cache-control"]) == (201, "no-store")
            text, token_id = made.json()["token"], made.json()["id"]
            assert int(made.json()["expires_ms"]) == desk.now_ms + 30 * 86_400_000
            listed = await one.call("", "GET", "/api/auth/tokens?user=orders")
            assert token_id in {found["id"] for found in listed.json()["tokens"]}
            assert len(listed.json()["tokens"]) == 2, "a user may have several"
            assert text not in listed.text
            one.tokens["again"] = text
            message = {"topic": "t", "body": "x"}
            assert (await one.call("again", "POST", "/api/messages", message)).status_code == 201
            revoked = await one.call("", "DELETE", f"/api/auth/tokens/{token_id}")
            assert revoked.json() == {"id": token_id}
            twice = await one.call("", "DELETE", f"/api/auth/tokens/{token_id}")
            assert (twice.status_code, twice.json()["code"]) == (404, "TW-158")
            refused = await one.call("again", "POST", "/api/messages", message)
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
            assert "tidewheel auth token add" in refused.json()["message"]
            assert (await one.call("orders", "POST", "/api/messages", message)).status_code == 201

    at_desk(scenario)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"user": "nobody"}, 404, "TW-155"),
        ({"user": "orders", "expires": "30"}, 400, "TW-130"),
        ({"user": "orders", "expires": "0s"}, 400, "TW-130"),
        ({"user": "orders", "expires": "9999999d"}, 400, "TW-130"),
        ({"user": 7}, 400, "TW-130"),
        ({}, 400, "TW-130"),
    ],
)
def test_a_token_that_cannot_be_is_refused(at_desk: AtDesk, body: Any, status: int, code: str) -> None:
    async def scenario(desk: Desk) -> None:
        async with guarded(desk) as one:
            await one.user("orders")
            refused = await one.call("", "POST", "/api/auth/tokens", body)
            assert (refused.status_code, refused.json()["code"]) == (status, code)

    at_desk(scenario)


def test_a_token_that_has_expired_is_refused_with_the_command_that_makes_another(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        async with guarded(desk) as one:
            await one.user("orders", SEND_T)
            body = {"user": "orders", "expires": "1m"}
            one.tokens["short"] = (await one.call("", "POST", "/api/auth/tokens", body)).json()["token"]
            message = {"topic": "t", "body": "x"}
            assert (await one.call("short", "POST", "/api/messages", message)).status_code == 201
            await one.call("", "POST", "/api/clock/advance", {"by": "1m"})
            refused = await one.call("short", "POST", "/api/messages", message)
            assert (refused.status_code, refused.json()["code"]) == (401, "TW-181")
            assert "has expired. Make another: tidewheel auth token add orders" in refused.json()["message"]

    at_desk(scenario)


def test_a_token_in_the_url_is_refused_and_kept_nowhere(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        async with guarded(desk) as one:
            await one.user("orders", SEND_T)
            text = one.tokens["orders"]
            for url in (
                f"/api/topics?key={text}",
                f"/api/auth/tokens/{text}",
                f"/api/topics?x={ADMINISTRATORS}",
                "/api/topics?access_token=anything",
                f"/api/topics?x={text.replace('_', '%5F')}",
                f"/api/topics?x={text.replace('_', '%255F')}",
                f"/api/topics/{text.replace('_', '%25255F')}",
            ):
                for headers in ({}, {"Authorization": f"Bearer {ADMINISTRATORS}"}, {"Host": "evil.example"}):
                    refused = await one.http.get(url, headers=headers)
                    assert (refused.status_code, refused.json()["code"]) == (400, "TW-236"), url
                    assert text not in refused.text
            assert text not in repr(one.refusals.latest())

    at_desk(scenario)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/groups/g/receive", {"topic": "t", "wait": "20s"}),
        ("/api/transactions/check-backs", {"topics": ["t"], "wait": "20s"}),
        ("/api/topics/t/arrivals?wait_ms=20000", None),
    ],
    ids=["receive", "check_back", "arrivals"],
)
@pytest.mark.parametrize(
    ("how", "status", "said"),
    [
        ("revoke", 401, "was revoked"),
        ("remove", 401, "was revoked"),
        ("deny", 403, "has not"),
        ("expire", 401, "has expired"),
    ],
)
def test_a_poll_ends_when_its_right_is_taken_away(
    at_desk: AtDesk, path: str, body: Any, how: str, status: int, said: str
) -> None:
    admin = (Verb.ADMIN, Kind.TOPIC, "t")

    async def scenario(desk: Desk) -> None:
        await desk.http.post("/api/topics", json={"name": "t", "queue_count": 1})
        async with guarded(desk) as one:
            await one.user("orders", SEND_T, *RECEIVE_T, TRANSACT_T, admin)
            await one.user("carts", *RECEIVE_T, TRANSACT_T, admin)
            access, method = one.live.access, "POST" if body else "GET"
            if how == "expire":
                one.tokens["orders"] = (await access.add_token("orders", 50))[0]
            polls = [asyncio.create_task(one.call(user, method, path, body)) for user in ("orders", "carts")]
            while len(access.watching) < len(polls):
                await asyncio.sleep(0)
            match how:
                case "revoke":
                    [token] = access.tokens("orders")
                    await access.revoke_token(token.id)
                case "remove":
                    await access.remove_user("orders")
                case "deny":
                    verbs = (Verb.RECEIVE, Verb.TRANSACT, Verb.ADMIN)
                    denied = [(verb, Kind.TOPIC, "t") for verb in verbs]
                    await one.allow("orders", *denied, effect=Effect.DENY)
                case _:
                    desk.now_ms += 50
                    moved = await one.call("", "POST", "/api/clock/advance", {"by": "50ms"})
                    assert moved.status_code == 200
            ended = await polls[0]
            assert ended.status_code == status, ended.text
            assert said in ended.json()["message"]
            assert not polls[1].done(), "another user's poll goes on"
            polls[1].cancel()
            await asyncio.wait({polls[1]})
            while any(one.app.state.polls.counts.values()):
                await asyncio.sleep(0)
            assert not access.watching

    at_desk(scenario)


def test_a_poll_whose_right_is_taken_away_leaves_its_message_to_others(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await desk.http.post("/api/topics", json={"name": "t", "queue_count": 1})
        async with guarded(desk) as one:
            await one.user("orders", *RECEIVE_T)
            asked = one.call("orders", "POST", "/api/groups/g/receive", {"topic": "t", "wait": "20s"})
            poll = asyncio.create_task(asked)
            while not one.live.access.watching:
                await asyncio.sleep(0)
            await one.live.access.remove_user("orders")
            await one.live.send(Message(topic="t", body=b"x", message_id="A"))
            assert (await poll).status_code == 401
            got = (await one.call("", "POST", "/api/groups/g/receive", {"topic": "t"})).json()["messages"]
            assert [(found["message_id"], found["attempt"]) for found in got] == [("A", 1)]

    at_desk(scenario)


def test_what_is_taken_away_does_not_wait_for_a_disk(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await desk.http.post("/api/topics", json={"name": "t", "queue_count": 1})
        async with guarded(desk) as one:
            await one.user("orders", *RECEIVE_T)
            asked = one.call("orders", "POST", "/api/groups/g/receive", {"topic": "t", "wait": "20s"})
            poll = asyncio.create_task(asked)
            while not one.live.access.watching:
                await asyncio.sleep(0)
            [token] = one.live.access.tokens("orders")
            revoking = asyncio.create_task(one.live.access.revoke_token(token.id))
            await asyncio.sleep(0)  # it is appended, and a thread has yet to write it
            assert not one.live.access.watching
            assert (await poll).status_code == 401
            await revoking

    at_desk(scenario)


@pytest.mark.parametrize("path", ["/api/topics/t/messages", "/api/messages"])
def test_a_body_that_ends_after_its_token_was_revoked_is_not_stored(at_desk: AtDesk, path: str) -> None:
    async def scenario(desk: Desk) -> None:
        await desk.http.post("/api/topics", json={"name": "t"})
        async with guarded(desk) as one:
            await one.user("orders", SEND_T)
            [token] = one.live.access.tokens("orders")

            async def body() -> AsyncIterator[bytes]:
                yield b'{"topic": "t", '
                await one.live.access.revoke_token(token.id)
                yield b'"body": "x"}'

            headers = {"Authorization": f"Bearer {one.tokens['orders']}", "Content-Type": "application/json"}
            refused = await one.http.post(path, content=body(), headers=headers)
            assert (refused.status_code, refused.json()["code"]) == (401, "TW-181")
            kept = await one.call("", "GET", "/api/topics/t/arrivals?after=0:0,1:0,2:0,3:0")
            assert kept.json()["messages"] == []

    at_desk(scenario)


def test_a_user_takes_no_part_in_another_ones_clients(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await desk.http.post("/api/topics", json={"name": "t", "queue_count": 1})
        async with guarded(desk) as one:
            for user in ("orders", "carts"):
                await one.user(user, TRANSACT_T)
            body = {"topics": ["t"], "wait": "20s", "client": "shop"}
            path = "/api/transactions/check-backs"
            polls = [asyncio.create_task(one.call(user, "POST", path, body)) for user in ("orders", "carts")]
            while len(one.live.access.watching) < len(polls):
                await asyncio.sleep(0)
            there = (await one.call("", "GET", "/api/transactions/producers?topic=t")).json()["producers"]
            assert {found["client_id"] for found in there} == {"orders/http@shop", "carts/http@shop"}
            for poll in polls:
                poll.cancel()
            await asyncio.wait(polls)

    at_desk(scenario)


def test_who_has_no_token_is_told_how_to_get_one(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        async with guarded(desk) as one:
            wrong = ["", "Basic b3JkZXJzOng=", "Bearer", "Bearer ", f"Bearer {'x' * 60_000}", "Bearer \xff"]
            for given in wrong:
                headers = {"Authorization": given.encode("latin-1")} if given else {}
                refused = await one.http.get("/api/topics", headers=headers)  # type: ignore[arg-type]
                assert refused.status_code == 401, given
                assert "tidewheel auth token add USER" in refused.json()["message"]
                assert len(refused.text) < 1_000

    at_desk(scenario)


def test_without_a_token_of_its_own_the_interface_asks_nobody(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        desk.live.access.set_key_source(lambda may_make: bytes(KEY_BYTES))
        await desk.http.post("/api/auth/users", json={"name": "orders"})
        made = (await desk.http.post("/api/auth/tokens", json={"user": "orders"})).json()
        assert made["is_asked"] is False
        assert (await desk.http.get("/api/auth/tokens")).json()["is_asked"] is False
        headers = {"Authorization": f"Bearer {made['token']}"}
        assert (await desk.http.get("/api/topics", headers=headers)).status_code == 200

    at_desk(scenario)


def test_the_id_of_a_transaction_tells_nothing_of_it_to_callers_without_the_right(at_desk: AtDesk) -> None:
    verbs = ("/commit", "/rollback", "/unknown", "/check", "/resolve", "")

    async def scenario(desk: Desk) -> None:
        half = await desk.send_half("secret", "order-9")
        none = f"{half[:-1]}{'1' if half.endswith('0') else '0'}"
        async with guarded(desk) as one:
            await one.user("nobody")
            await one.user("app", TRANSACT_T, (Verb.ADMIN, Kind.TOPIC, "t"))
            for verb in verbs:
                body = {"resolution": "COMMIT", "reason": "x"} if verb == "/resolve" else None
                method = "POST" if verb else "GET"
                for user, status in (("nobody", 403), ("app", 400)):
                    there = await one.call(user, method, f"/api/transactions/{half}{verb}", body)
                    other = await one.call(user, method, f"/api/transactions/{none}{verb}", body)
                    assert there.status_code == other.status_code == status, (verb, there.text)
                    assert there.text.replace(half, none) == other.text
                    assert "secret" not in there.text
            assert "transact on topic 'secret'" in repr(one.refusals.latest())
            assert one.live.query(one.live.core.half_views.get_half, half).state.value == "OPEN"

    at_desk(scenario)


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (("Bearer {}",), 200),
        (("bearer {}",), 200),
        (("BEARER   {}",), 200),
        (("Basic {}",), 401),
        (("{}",), 401),
        (("Bearer",), 401),
        (("Bearer {}", "Bearer {}"), 401),
        (("Bearer {}", ""), 401),
    ],
)
def test_a_request_bears_one_token_whatever_the_case_of_its_scheme(
    at_desk: AtDesk, given: tuple[str, ...], status: int
) -> None:
    async def scenario(desk: Desk) -> None:
        async with guarded(desk) as one:
            await one.user("orders", SEND_T)
            for token in (one.tokens["orders"], ADMINISTRATORS):
                headers = [("Authorization", field.format(token)) for field in given]
                answer = await one.http.get("/api/clock", headers=headers)
                assert answer.status_code == status, answer.text

    at_desk(scenario)


@pytest.mark.parametrize("what", ["tokens", "rules"])
def test_a_user_that_is_not_there_has_no_list(at_desk: AtDesk, what: str) -> None:
    async def scenario(desk: Desk) -> None:
        async with guarded(desk) as one:
            await one.user("orders")
            assert (await one.call("", "GET", f"/api/auth/{what}?user=orders")).status_code == 200
            refused = await one.call("", "GET", f"/api/auth/{what}?user=oders")
            assert (refused.status_code, refused.json()["code"]) == (404, "TW-155")

    at_desk(scenario)


def test_a_poll_ends_when_the_clock_is_moved_behind_the_end_of_its_token(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await desk.http.post("/api/topics", json={"name": "t", "queue_count": 1})
        async with guarded(desk) as one:
            await one.user("orders", *RECEIVE_T)
            one.tokens["orders"] = (await one.live.access.add_token("orders", 1_800_000))[0]
            asked = one.call("orders", "POST", "/api/groups/g/receive", {"topic": "t", "wait": "20s"})
            poll = asyncio.create_task(asked)
            while not one.live.access.watching:
                await asyncio.sleep(0)
            assert (await one.call("", "POST", "/api/clock/advance", {"by": "1h"})).status_code == 200
            ended = await poll
            assert (ended.status_code, ended.json()["code"]) == (401, "TW-181"), ended.text

    at_desk(scenario)


def test_a_request_that_names_more_topics_than_any_may_is_not_judged_one_by_one(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        async with guarded(desk) as one:
            await one.user("app", (Verb.SEND, Kind.TOPIC, "t*"))
            for count, status in ((limits.TIMER_BATCH_MAX, 200), (3 * limits.TIMER_BATCH_MAX, 413)):
                messages = [
                    {"topic": f"t{number}", "body": "x", "cancel": {"key": "k", "topic": f"to{number}"}}
                    for number in range(count)
                ]
                answer = await one.call("app", "POST", "/api/messages", {"messages": messages})
                assert answer.status_code == status, answer.text[:300]

    at_desk(scenario)


def test_a_viewer_sees_everything_and_changes_nothing(at_desk: AtDesk) -> None:
    table = [one for part in OPERATIONS.values() for one in part]

    async def scenario(desk: Desk) -> None:
        half = await desk.send_half("t", "order-9")
        async with guarded(desk) as one:
            await one.user("eve", (Verb.VIEW, Kind.TOPIC, "*"), (Verb.VIEW, Kind.GROUP, "*"))
            for operation in table:
                path = operation.path.replace("{id}", half if "transactions" in operation.path else "1")
                url = re.sub(r"{\w+}", "t", path)
                url += "?topic=t&key=k" if url in ("/api/timers/one", "/api/messages") else ""
                fields = {"topic": "t", "key": "k", "name": "t", "group": "g", "body": "x", "source": "t"}
                fields |= {"topics": ["t"], "receipt_handles": ["t 0"], "in": "1h"}
                body = fields if operation.bodies or operation.media_types else None
                answer = await one.call("eve", operation.method, url, body)
                is_open = NEEDS[operation.method, operation.path].__name__ == "no_needs"
                is_query = operation.method == "GET" and not operation.path.startswith("/api/auth/")
                assert (answer.status_code != 403) == (is_open or is_query), (
                    operation.method,
                    operation.path,
                )
            assert one.live.query(one.live.core.half_views.get_half, half).state.value == "OPEN"

    at_desk(scenario)


def test_a_viewer_of_some_topics_learns_of_no_others(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        hidden, shown = await desk.send_half("hidden", "order-1"), await desk.send_half("or-1", "order-2")
        async with guarded(desk) as one:
            await one.user("eve", (Verb.VIEW, Kind.TOPIC, "or*"))
            assert (await one.call("eve", "GET", f"/api/transactions/{shown}", None)).status_code == 200
            unknown = await one.call("eve", "GET", f"/api/transactions/{hidden}", None)
            assert (unknown.status_code, unknown.json()["code"]) == (400, "TW-145")
            assert (await one.call("eve", "POST", f"/api/transactions/{shown}/check", {})).status_code == 403
            assert (await one.call("eve", "GET", "/api/topics/hidden", None)).status_code == 403
            assert (await one.call("eve", "GET", "/api/topics", None)).status_code == 403

    at_desk(scenario)


def test_the_journal_names_the_user_and_the_administrator(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await desk.http.post("/api/topics", json={"name": "open"})
        async with guarded(desk) as guard:
            await guard.user("ann", (Verb.ADMIN, Kind.TOPIC, "t"))
            for user, topic in (("ann", "t"), ("", "s")):
                assert (await guard.call(user, "POST", "/api/topics", {"name": topic})).status_code == 201
            entries = (await guard.call("", "GET", "/api/journal")).json()["entries"]
        created = {one["about"].split()[0]: one["user"] for one in entries}
        assert created == {"name=open": "", "name=t": "ann", "name=s": "the administrator"}

    at_desk(scenario)
