"""`/api/groups` over a real core: looked at, made, set, paused, reset, deleted; and their metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from commitlog.log.retention import RetentionPolicy
from commitlog.records.message import Message
from consumequeue.filters.filter import EVERYTHING, parse_tags
from services.broker.groups.group_values import GroupPolicy
from services.broker.spine.settings import BrokerSettings
from services.cli.groups.group_views import filter_line
from services.live.clients.consumers import ConsumerView
from services.ops.administration.groups import GroupsApi, PolicyAnswer, PolicyFields
from services.ops.app import routes
from services.ops.metrics.group_metrics import group_families
from tests.unit.services.ops.conftest import START_MS, run

Desk = Any
AtDesk = Callable[..., None]
HOUR_MS = 3_600_000


KEEPS_LITTLE = BrokerSettings(
    segment_bytes=8 * 1024,
    housekeeping_ms=1_000,
    retention=RetentionPolicy(log_bytes_max=8 * 1024, group_pin_ms=0),
)


async def call(desk: Desk, method: str, path: str, body: object = None, status: int = 200) -> Any:
    """Ask for something under /api/groups; the status must be as expected."""
    answer = await desk.http.request(method, f"/api/groups{path}", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


async def send(desk: Desk, topic: str, *keys: str) -> None:
    """Store a message for each key in a topic of one queue."""
    await desk.http.post("/api/topics", json={"name": topic, "queue_count": 1})
    for key in keys:
        await desk.live.send(Message(topic=topic, body=b"x", message_id=f"{topic}-{key}", keys=(key,)))


async def take(desk: Desk, group: str, topic: str, count: int = 32, client_id: str = "c1") -> list[str]:
    """Lease up to `count` messages; returns their receipt handles."""
    taken = await desk.live.receivers.receive(group, topic, EVERYTHING, count, 60_000, client_id, False, 0)
    return [one.receipt_handle for one in taken]


def test_a_message_discarded_during_its_lease_is_not_in_flight(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await send(desk, "t", "a", "b", "c")
        taken = (await call(desk, "POST", "/g/receive", {"topic": "t", "count": 2, "lease": "1h"}))[
            "messages"
        ]
        handles = [one["receipt_handle"] for one in taken]
        group = await call(desk, "GET", "/g")
        assert (group["lag"], group["in_flight"]) == (3, 2)
        purge = await desk.http.post("/api/topics/t/purge", json={"discard": True})
        assert purge.status_code == 200
        group = await call(desk, "GET", "/g")
        assert (group["lag"], group["in_flight"], group["queues"][0]["in_flight"]) == (0, 0, 0)
        listed = (await call(desk, "GET", ""))["groups"]
        assert [one["in_flight"] for one in listed] == [0]
        acked = await call(desk, "POST", "/g/ack", {"receipt_handles": handles})
        assert (acked["done"], acked["refused"]) == (2, 0), "the leases remain valid"
        await send(desk, "t", "d")
        await take(desk, "g", "t")
        group = await call(desk, "GET", "/g")
        assert (group["lag"], group["in_flight"]) == (1, 1)

    at_desk(scenario)


def test_a_group_is_there_from_its_first_receive_on_and_shows_what_it_has_to_do(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        assert await call(desk, "GET", "") == {"groups": []}
        await send(desk, "t", "a", "b", "c")
        first, _ = await take(desk, "g", "t", 2)
        await desk.live.call(desk.live.core.receiving.ack, "g", "t", first)
        [group] = (await call(desk, "GET", ""))["groups"]
        counts = {name: group[name] for name in ("lag", "in_flight", "waiting", "consumers")}
        assert counts == {"lag": 2, "in_flight": 1, "waiting": 0, "consumers": 0}
        assert (group["name"], group["topics"], group["oldest_ms"]) == ("g", ["t"], str(desk.now_ms))
        assert "queues" not in group
        [queue] = (await call(desk, "GET", "/g"))["queues"]
        assert (await call(desk, "GET", "?queues=true"))["groups"][0]["queues"] == [queue]
        offsets = [queue[name] for name in ("min_offset", "committed_offset", "next_offset", "end_offset")]
        assert offsets == ["0", "1", "2", "3"]

    at_desk(scenario)


def test_a_group_is_made_at_a_place_before_it_first_receives(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await send(desk, "t", "a", "b", "c")
        made = await call(desk, "POST", "", {"name": "late", "topic": "t", "start": "latest"}, 201)
        assert (made["lag"], made["queues"][0]["committed_offset"]) == (0, "3")
        made = await call(desk, "POST", "", {"name": "some", "topic": "t", "start": "offset:1"}, 201)
        assert made["lag"] == 2
        made = await call(desk, "POST", "", {"name": "young", "topic": "t", "start": "30m ago"}, 201)
        assert made["lag"] == 3
        assert len(await take(desk, "some", "t")) == 2
        again = await call(desk, "POST", "", {"name": "some", "topic": "t"}, 409)
        assert again["code"] == "TW-166"

    at_desk(scenario)


def test_a_group_is_made_with_its_policy_before_anybody_uses_it(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        wanted = {"name": "g", "attempts_max": 1, "fifo_run_max": 4}
        made = await call(desk, "POST", "", wanted, 201)
        assert (made["topics"], made["lag"], made["queues"]) == ([], 0, [])
        assert (made["policy"]["attempts_max"], made["policy"]["fifo_run_max"]) == (1, 4)
        assert [one["name"] for one in (await call(desk, "GET", ""))["groups"]] == ["g"]
        assert await call(desk, "POST", "", wanted) == made, "the same again changes nothing"
        assert await call(desk, "POST", "", {"name": "g"}) == made
        other = await call(desk, "POST", "", {"name": "g", "attempts_max": 2}, 409)
        assert (other["code"], "tidewheel group set g" in other["message"]) == ("TW-166", True)
        await send(desk, "t", "a")
        assert len(await take(desk, "g", "t")) == 1
        await desk.advance("61s")
        assert (
            desk.live.core.dead_letters.count_open_dead_letters(
                desk.live.core.dead_letters.group_names()[0]
            ).count
            == 1
        ), "its one attempt is used up"
        assert (await call(desk, "GET", "/g"))["topics"] == ["t"]

    at_desk(scenario)


def test_a_group_is_made_with_its_policy_and_its_place_at_once_or_not_at_all(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await send(desk, "t", "a", "b")
        wanted = {"name": "g", "topic": "t", "start": "latest", "attempts_max": 3}
        made = await call(desk, "POST", "", wanted, 201)
        assert (made["lag"], made["topics"], made["policy"]["attempts_max"]) == (0, ["t"], 3)
        await call(desk, "POST", "", wanted | {"attempts_max": 4}, 409)
        assert (await call(desk, "GET", "/g"))["policy"]["attempts_max"] == 3
        await call(desk, "POST", "", {"name": "h", "topic": "none", "attempts_max": 4}, 404)
        await call(desk, "GET", "/h", status=404)

    at_desk(scenario)


def test_a_group_of_a_namespace_has_a_percent_sign_in_its_path(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await send(desk, "ns%t", "a")
        await take(desk, "ns%g|1", "ns%t")
        assert (await call(desk, "GET", "/ns%25g%7C1"))["name"] == "ns%g|1"

    at_desk(scenario)


def test_a_policy_is_set_field_by_field(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await send(desk, "t", "a")
        await take(desk, "g", "t")
        before = (await call(desk, "GET", "/g"))["policy"]
        await call(desk, "PUT", "/g", {"attempts_max": 3})
        after = (await call(desk, "PUT", "/g", {"retry_after_ms": [1_000, 5_000]}))["policy"]
        assert after == before | {"attempts_max": 3, "retry_after_ms": [1_000, 5_000]}
        assert desk.live.query(desk.live.core.group_views.view_group, "g").policy.retry_after_ms == (
            1_000,
            5_000,
        )
        assert (await call(desk, "PUT", "/g", {"is_lite_exclusive": True}))["policy"]["is_lite_exclusive"]
        assert not (await call(desk, "PUT", "/g", {"is_lite_exclusive": False}))["policy"][
            "is_lite_exclusive"
        ]

    at_desk(scenario)


def test_a_paused_group_gets_nothing_until_it_goes_on_and_may_still_acknowledge(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await send(desk, "t", "a", "b")
        [held] = await take(desk, "g", "t", 1)
        assert (await call(desk, "POST", "/g/pause"))["policy"]["is_paused"]
        assert await take(desk, "g", "t") == []
        await desk.live.call(desk.live.core.receiving.ack, "g", "t", held)
        assert not (await call(desk, "POST", "/g/resume"))["policy"]["is_paused"]
        assert len(await take(desk, "g", "t")) == 1

    at_desk(scenario)


def test_a_reset_says_what_it_would_move_before_it_does(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await send(desk, "t", "a", "b", "c")
        for handle in await take(desk, "g", "t"):
            await desk.live.call(desk.live.core.receiving.ack, "g", "t", handle)
        shown = await call(desk, "POST", "/g/reset", {"to": "offset:1", "topic": "t", "dry_run": True})
        [move] = shown["moves"]
        assert (shown["dry_run"], move["before"], move["after"], move["end_offset"]) == (True, "3", "1", "3")
        assert await take(desk, "g", "t") == []
        done = await call(desk, "POST", "/g/reset", {"to": "offset:1", "topic": "t"})
        assert (done["dry_run"], done["moves"]) == (False, [move])
        assert len(await take(desk, "g", "t")) == 2
        await call(desk, "POST", "/g/reset", {"to": "latest"})
        assert await take(desk, "g", "t") == []
        await call(desk, "POST", "/g/reset", {"to": "30m ago"})
        assert len(await take(desk, "g", "t")) == 3

    at_desk(scenario)


def test_a_group_that_another_caller_has_set_back_since_is_not_moved_on(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await send(desk, "t", "a", "b", "c")
        handles = await take(desk, "g", "t")
        await desk.live.call(desk.live.core.receiving.ack, "g", "t", handles[0])
        wanted = {"to": "latest", "seen": {"t": {"0": "1", "7": "9"}, "none": {"0": "9"}}}
        await desk.live.call(desk.live.core.receiving.ack, "g", "t", handles[1])
        assert (await call(desk, "POST", "/g/reset", wanted))["moves"][0]["before"] == "2", "it went on"
        await call(desk, "POST", "/g/reset", {"to": "earliest"})
        refused = await call(desk, "POST", "/g/reset", wanted, 409)
        assert refused["code"] == "TW-160"
        told = (
            "'g' was changed since you saw it: its position in queue 0 of 't' from 1 to 0. Look at it again"
        )
        assert told in refused["message"]
        assert len(await take(desk, "g", "t")) == 3, "it receives again what another wanted"
        assert (await call(desk, "POST", "/g/reset", wanted | {"seen": None}))["moves"][0]["after"] == "3"

    at_desk(scenario)


def test_what_a_caller_saw_is_compared_only_with_what_the_reset_moves(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await send(desk, "secret", "a")
        await send(desk, "open", "a")
        await send(desk, "other", "a")
        await take(desk, "g", "open")
        await take(desk, "g", "other")
        far = {"0": "99"}
        unrelated = {"to": "latest", "topic": "open", "dry_run": True, "seen": {"secret": far, "other": far}}
        [move] = (await call(desk, "POST", "/g/reset", unrelated))["moves"]
        assert move["topic"] == "open"
        refused = await call(desk, "POST", "/g/reset", unrelated | {"seen": {"open": far}}, 409)
        assert "in queue 0 of 'open' from 99 to 0." in refused["message"]
        gone = await call(desk, "POST", "/nobody/reset", unrelated | {"seen": {"open": far}}, 404)
        assert gone["code"] == "TW-154"

    at_desk(scenario)


def test_a_reset_with_what_its_caller_saw_can_be_repeated(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await send(desk, "t", "a", "b", "c")
        for handle in await take(desk, "g", "t"):
            await desk.live.call(desk.live.core.receiving.ack, "g", "t", handle)
        wanted = {"to": "earliest", "seen": {"t": {"0": "3"}}}
        for before in ("3", "0"):
            [move] = (await call(desk, "POST", "/g/reset", wanted))["moves"]
            assert (move["before"], move["after"]) == (before, "0")
        since = {"to": str(desk.now_ms - 60_000), "seen": {"t": {"0": "3"}}}
        assert (await call(desk, "POST", "/g/reset", since))["moves"][0]["after"] == "0"
        assert (await call(desk, "POST", "/g/reset", wanted | {"to": "latest"}, 409))["code"] == "TW-160"

    at_desk(scenario)


def test_a_queue_that_is_no_number_is_told_in_words(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        wanted = {"to": "latest", "seen": {"prices": {"x": "1"}}}
        told = (await call(desk, "POST", "/g/reset", wanted, 400))["message"]
        assert "seen.prices has a field with the name 'x': it must be a whole number." in told

    at_desk(scenario)


def test_a_reset_to_a_time_is_in_the_time_of_callers(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await send(desk, "t", "a")
        await desk.advance("2h")
        await send(desk, "t", "b")
        await take(desk, "g", "t")
        shown = await call(desk, "POST", "/g/reset", {"to": str(desk.now_ms - 1), "dry_run": True})
        assert [move["after"] for move in shown["moves"]] == ["1"], (
            "only b was stored by this clock since then"
        )

    at_desk(scenario)


def test_a_group_can_be_forgotten_on_one_topic_or_whole(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        for topic in ("t", "u"):
            await send(desk, topic, "a")
            await take(desk, "g", topic)
        assert await call(desk, "DELETE", "/g?topic=t") == {"name": "g", "topics": ["t"]}
        assert (await call(desk, "GET", "/g"))["topics"] == ["u"]
        assert await call(desk, "DELETE", "/g") == {"name": "g", "topics": ["u"]}
        await call(desk, "GET", "/g", status=404)

    at_desk(scenario)


def test_who_consumes_and_what_they_hold(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await send(desk, "t", "a", "b", "c")
        await take(desk, "g", "t", 2, "here")
        await take(desk, "g", "t", 1, "gone")
        there = ConsumerView("here", "g", "SIMPLE_CONSUMER", "PYTHON", "5.1.2", True, 1, desk.now_ms)
        desk.app.router.routes[:0] = routes((GroupsApi(desk.live, lambda group: [there]),), desk.live)
        answer = await call(desk, "GET", "/g/clients")
        [one] = answer["consumers"]
        assert (one["client_id"], one["leased"], one["receives"]) == ("here", 2, 1)
        assert answer["leased_by_others"] == 1
        assert (await call(desk, "GET", ""))["groups"][0]["consumers"] == 1

    at_desk(scenario)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/none", None, 404, "TW-154"),
        ("GET", "/none/clients", None, 404, "TW-154"),
        ("POST", "/none/pause", None, 404, "TW-154"),
        ("PUT", "/none", {"attempts_max": 3}, 404, "TW-154"),
        ("PUT", "/g", {}, 400, "TW-130"),
        ("PUT", "/g", {"attempts_max": 0}, 400, "TW-130"),
        ("PUT", "/g", {"retry_after_ms": [-1]}, 400, "TW-130"),
        ("PUT", "/g", {"retry_after_ms": []}, 400, "TW-130"),
        ("PUT", "/g", {"attempts": 3}, 400, "TW-130"),
        ("POST", "", {"name": "no no", "topic": "t"}, 400, "TW-132"),
        ("POST", "", {"name": "h", "topic": "t", "start": "soon"}, 400, "TW-130"),
        ("POST", "", {"name": "h", "topic": "TW_SYS_ACK"}, 400, "TW-131"),
        ("POST", "", {"name": "h", "topic": "none"}, 404, "TW-151"),
        ("POST", "", {"name": "h", "start": "latest"}, 400, "TW-130"),
        ("POST", "", {"name": "h", "attempts_max": 0}, 400, "TW-130"),
        ("POST", "", {"name": "no no"}, 400, "TW-132"),
        ("POST", "/g/reset", {}, 400, "TW-130"),
        ("POST", "/g/reset", {"to": "yesterday"}, 400, "TW-130"),
        ("POST", "/g/reset", {"to": "offset:1"}, 400, "TW-130"),
        ("POST", "/g/reset", {"to": "offset:x", "topic": "t"}, 400, "TW-130"),
        ("POST", "/g/reset", {"to": "latest", "topic": "u"}, 404, "TW-154"),
        ("POST", "/none/reset", {"to": "latest"}, 404, "TW-154"),
        ("DELETE", "/none", None, 404, "TW-154"),
        ("DELETE", "/g?topic=u", None, 404, "TW-154"),
        ("DELETE", "/g?topic=", None, 400, "TW-130"),
        ("POST", "/g/reset", {"to": "earliest", "topic": ""}, 400, "TW-130"),
    ],
)
def test_what_cannot_be_is_refused(
    at_desk: AtDesk, method: str, path: str, body: object, status: int, code: str
) -> None:
    async def scenario(desk: Desk) -> None:
        await send(desk, "t", "a")
        await take(desk, "g", "t")
        assert (await call(desk, method, path, body, status))["code"] == code

    at_desk(scenario)


def test_how_far_groups_are_is_measured_by_topic(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await send(desk, "t", "a", "b", "c")
        await desk.advance("1h")
        await send(desk, "t", "d")
        for handle in await take(desk, "g", "t", 1):
            await desk.live.call(desk.live.core.receiving.ack, "g", "t", handle)
        await take(desk, "g", "t", 2)
        measured = {
            name: rows
            for name, _, rows in filter(None, group_families(desk.live, desk.live.core.groups.names()))
        }
        expected = {
            "lag_messages": 3,
            "inflight_messages": 2,
            "ready_messages": 1,
            "lag_latency": HOUR_MS,
            "lag_latency_milliseconds": HOUR_MS,
            "queueing_latency": 0,
            "queueing_latency_milliseconds": 0,
        }
        assert measured == {
            f"rocketmq_consumer_{name}": [("t", "g", "false", "false", value)]
            for name, value in expected.items()
        }
        scraped = (await desk.http.get("/metrics")).text
        assert 'rocketmq_consumer_lag_latency_milliseconds{cluster="tidewheel"' in scraped

    at_desk(scenario)


def test_every_field_of_a_policy_is_asked_for_and_answered() -> None:
    of_policy = {one.name for one in fields(GroupPolicy)}
    assert set(PolicyAnswer.__annotations__) == of_policy
    assert {*PolicyFields.model_fields, "is_paused"} == of_policy, "pausing has requests of its own"


def test_a_group_shows_its_filters_its_clients_and_what_waits_for_which(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await desk.http.post("/api/topics", json={"name": "t", "queue_count": 1})
        for client_id, wanted in (("c1", "red"), ("c2", "blue")):
            tags = parse_tags(wanted)
            await desk.live.receivers.receive("g", "t", tags, 1, 60_000, client_id, False, 0)
        for number in range(3):
            await desk.live.send(Message(topic="t", body=b"x", message_id=f"M{number}", tag="red"))
        assert not await desk.live.receivers.receive("g", "t", parse_tags("blue"), 1, 60_000, "c2", False, 0)
        shown = (await call(desk, "GET", "/g"))["filters"]
        assert shown == [
            {"topic": "t", "type": "TAG", "expression": "red", "clients": 1, "waiting": 3},
            {"topic": "t", "type": "TAG", "expression": "blue", "clients": 1, "waiting": 0},
        ]
        lines = "\n".join(map(filter_line, shown))
        assert "t: TAG red   1 client   3 messages wait for a client with it" in lines
        metrics = (await desk.http.get("/metrics")).text
        assert 'consumer_group="g",filter="TAG red"' in metrics.replace('topic="t",', "")

    at_desk(scenario)


def test_a_waiting_client_is_woken_when_another_leaves_a_message_to_it(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await desk.http.post("/api/topics", json={"name": "t", "queue_count": 1})
        red, blue = parse_tags("red"), parse_tags("blue")
        for wanted in (red, blue):
            await desk.live.receivers.receive("g", "t", wanted, 1, 60_000, "c", False, 0)
        waiting = asyncio.create_task(desk.live.receivers.receive("g", "t", red, 1, 60_000, "c1", False, 60))
        await asyncio.sleep(0)
        await desk.live.send(Message(topic="t", body=b"x", message_id="M", tag="red"))
        assert not await desk.live.receivers.receive("g", "t", blue, 1, 60_000, "c2", False, 0)
        assert [one.message.message_id for one in await waiting] == ["M"]

    at_desk(scenario)


def test_what_retention_took_from_a_group_is_shown_measured_and_logged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def scenario(desk: Desk) -> None:
        await send(desk, "t", "first")
        await take(desk, "slow", "t", 1)
        await take(desk, "quick", "t", 1)
        await call(desk, "POST", "/quick/reset", {"to": "latest"})
        assert (await call(desk, "GET", "/slow"))["missed"] == 0
        for number in range(100):
            await desk.live.send(Message(topic="t", body=b"x" * 500, message_id=f"M{number}"))
        await call(desk, "POST", "/quick/reset", {"to": "latest"})
        for _ in range(60):
            await desk.advance("2s")
            found = await call(desk, "GET", "/slow")
            if found["missed"] and found["queues"][0]["min_offset"] != "0":  # the files go behind the record
                break
        await desk.advance("2s")
        assert found["missed"] == int(found["queues"][0]["min_offset"]) > 0
        assert START_MS - HOUR_MS < int(found["missed_ms"]) <= START_MS, "callers speak of real time"
        shown = {"topic": "t", "count": found["missed"], "last_ms": found["missed_ms"]}
        assert found["missed_topics"] == [shown]
        quick = await call(desk, "GET", "/quick")
        assert (quick["missed"], quick["missed_ms"], "missed_topics" in quick) == (0, None, False)
        metrics = (await desk.http.get("/metrics")).text
        [line] = [one for one in metrics.splitlines() if one.startswith("mq_group_missed_messages_total{")]
        assert 'consumer_group="slow"' in line
        assert 'topic="t"' in line
        assert line.endswith(f" {found['missed']:.1f}")
        missed.append(found["missed"])

    missed: list[int] = []
    asyncio.run(run(scenario, KEEPS_LITTLE))
    told = f"Retention deleted {missed[0]:,} messages of topic t that group slow had not finished."
    assert capsys.readouterr().out.count(told) == 1
