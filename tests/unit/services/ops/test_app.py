"""The HTTP interface over a real core: look, create, send, scrape."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Any

import httpx
import numpy as np
import pytest
from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric

from commitlog import limits
from commitlog.records.message import Message
from consumequeue.filters.filter import EVERYTHING
from services.broker.spine.settings import BrokerSettings
from services.live.clients.consumers import ConsumerView
from services.live.clock import ClockKind, open_clock_offset
from services.live.live_broker import LiveBroker
from services.ops.app import make_app
from services.ops.messages.sending import NewMessage
from services.ops.metrics.broker_metrics import TIMER_BOUNDS_SECONDS, Metrics
from tests.memory_disk import MemoryDisk

NOW_MS = 1_763_700_000_000
JSON = {"Content-Type": "application/json"}


@dataclass
class Connected:
    """A client to count."""

    is_producer: bool
    language: str = "PYTHON"
    version: str = "5.1.2"


CONSUMERS = [
    ConsumerView("c1", "g", "SIMPLE_CONSUMER", "PYTHON", "5.1.2", True, 0, NOW_MS),
    ConsumerView("c2", "g", "PUSH_CONSUMER", "NODEJS", "1.0", False, 1, NOW_MS),
]


@dataclass
class Stage:
    """A live core and its HTTP interface."""

    live: LiveBroker
    metrics: Metrics
    http: httpx.AsyncClient


def play(scenario: Callable[[Stage], Awaitable[None]], clock: ClockKind = "real") -> None:
    async def run() -> None:
        with ThreadPoolExecutor(1) as writer:
            call_later = asyncio.get_running_loop().call_later
            disk, settings = MemoryDisk(), BrokerSettings(segment_bytes=1 << 23)
            kept = open_clock_offset(disk, clock)
            live = LiveBroker(disk, settings, lambda: NOW_MS, call_later, writer, kept)
            metrics = Metrics(live, [Connected(True), Connected(False)], lambda group: CONSUMERS)
            transport = httpx.ASGITransport(make_app(live, metrics))
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
                await scenario(Stage(live, metrics, http))
            await live.close()

    asyncio.run(run())


def test_a_broken_core_is_alive_but_not_ready() -> None:
    async def scenario(stage: Stage) -> None:
        assert (await stage.http.get("/livez")).status_code == 200
        assert (await stage.http.get("/readyz")).status_code == 200
        stage.live.stop_on_internal_error(AssertionError("a bug"))
        assert (await stage.http.get("/livez")).status_code == 200
        unready = await stage.http.get("/readyz")
        assert unready.status_code == 503
        assert unready.text.startswith("TW-223 The broker has met a bug")
        stage.live.broken.exception()

    play(scenario)


def test_a_broker_that_refuses_sends_for_a_full_disk_stays_ready_to_receive_and_says_so() -> None:
    async def scenario(stage: Stage) -> None:
        sent = {"topic": "t", "body": "before"}
        assert (await stage.http.post("/api/messages", json=sent)).status_code == 201
        stage.live.core.housekeeping.has_reserve = False
        assert (await stage.http.post("/api/messages", json=sent)).status_code == 503
        ready = await stage.http.get("/readyz")
        assert ready.status_code == 200
        first, refused = ready.text.splitlines()
        assert first == "ready"
        assert refused.startswith("TW-172 ")
        assert refused.endswith("Receiving and acknowledging go on.")
        received = await stage.http.post("/api/groups/shop/receive", json={"topic": "t", "wait": "0s"})
        assert [one["body"] for one in received.json()["messages"]] == ["before"]

    play(scenario)


def test_a_message_sent_is_shown_with_its_64_bit_numbers_as_strings() -> None:
    async def scenario(stage: Stage) -> None:
        sent = {"topic": "t", "body": "hello", "keys": ["k"], "tag": "a", "properties": {"colour": "blue"}}
        receipt = await stage.http.post("/api/messages", json=sent)
        assert receipt.status_code == 201
        [found] = [
            message
            for queue in range(4)
            for message in (await stage.http.get(f"/api/topics/t/messages?queue={queue}")).json()["messages"]
        ]
        assert {name: found[name] for name in sent} == sent
        assert found["message_id"] == receipt.json()["message_id"]
        assert found["physical_offset"] == receipt.json()["physical_offset"]
        assert (found["store_ms"], found["queue_offset"]) == (str(NOW_MS), "0")

    play(scenario)


def test_a_message_may_say_by_a_property_when_it_is_due() -> None:
    async def scenario(stage: Stage) -> None:
        sent = {"topic": "t", "body": "x", "properties": {"TIMER_DELAY_SEC": "90"}}
        assert (await stage.http.post("/api/messages", json=sent)).status_code == 201
        refused = await stage.http.post("/api/messages", json=sent | {"in_ms": 1_000})
        assert (refused.status_code, refused.json()["code"]) == (400, "TW-138")
        [timer] = (await stage.http.get("/api/timers")).json()["timers"]
        assert timer["due_ms"] == str(NOW_MS + 90_000)

    play(scenario)


def test_a_message_of_a_lite_topic_is_sent_and_shown_and_the_topic_says_how_many_it_has() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.http.post("/api/topics", json={"name": "l", "message_type": "LITE", "queue_count": 1})
        for name in ("a", "b", "a"):
            sent = await stage.http.post(
                "/api/messages", json={"topic": "l", "body": "x", "lite_topic": name}
            )
            assert sent.status_code == 201
        found = (await stage.http.get("/api/topics/l/messages?queue=0")).json()["messages"]
        assert [one["lite_topic"] for one in found] == ["a", "b", "a"]
        assert (await stage.http.get("/api/topics/l")).json()["lite_topics"] == 2
        refused = await stage.http.post(
            "/api/messages", json={"topic": "l", "body": "x", "lite_topic": "a b"}
        )
        assert (refused.status_code, refused.json()["code"]) == (400, "TW-190")

    play(scenario)


def test_a_priority_is_a_queue_of_its_topic_and_is_shown() -> None:
    async def scenario(stage: Stage) -> None:
        topic = {"name": "p", "message_type": "PRIORITY", "queue_count": 3}
        await stage.http.post("/api/topics", json=topic)
        sent = await stage.http.post("/api/messages", json={"topic": "p", "body": "x", "priority": 2})
        assert sent.status_code == 201
        [found] = (await stage.http.get("/api/topics/p/messages?queue=2")).json()["messages"]
        assert found["priority"] == 2
        refused = await stage.http.post("/api/messages", json={"topic": "p", "body": "x", "priority": -1})
        assert refused.status_code == 400

    play(scenario)


def test_the_key_of_a_timer_becomes_its_property() -> None:
    wanted = NewMessage(topic="t", body="x", in_ms=1, timer_key="order-1", unique=True)
    properties = wanted.to_message("1", NOW_MS).properties
    assert properties == {"TW_TIMER_KEY": "order-1", "TW_TIMER_UNIQUE": "true"}
    assert NewMessage(topic="t", body="x", in_ms=1).to_message("1", NOW_MS).properties == {}


def test_a_request_of_any_length_is_refused_before_it_is_whole() -> None:
    async def scenario(stage: Stage) -> None:
        async def endless() -> AsyncIterator[bytes]:
            for sent in range(100):
                assert sent <= 33, "it goes on reading"
                yield b"x" * 1024 * 1024

        refused = await stage.http.post("/api/timers", content=endless(), headers=JSON)
        assert (refused.status_code, refused.json()["code"]) == (413, "TW-235")

    play(scenario)


@pytest.mark.parametrize("path", ["/api/messages", "/api/timers"])
def test_a_body_of_the_largest_size_is_taken_as_text_and_in_base64(path: str) -> None:
    due = {} if path == "/api/messages" else {"in": "1h"}
    properties = {f"p{number}": "v" * 100 for number in range(128)}

    async def scenario(stage: Stage) -> None:
        async def ask(**body: str) -> httpx.Response:
            return await stage.http.post(path, json={"topic": "t", "properties": properties} | due | body)

        size = limits.BODY_BYTES_MAX
        assert (await ask(body="x" * size)).status_code == 201
        assert (await ask(body_base64=b64encode(b"\xff" * size).decode())).status_code == 201
        escaped = await ask(body="\n" * size)
        assert (escaped.status_code, escaped.json()["code"]) == (413, "TW-235")
        assert "give body_base64 instead" in escaped.json()["detail"]
        assert (await ask(body_base64=b64encode(b"\n" * size).decode())).status_code == 201
        for wrong in ({}, {"body": "x", "body_base64": "eA=="}, {"body_base64": "x"}):
            refused = await ask(**wrong)
            assert (refused.status_code, refused.json()["code"]) == (400, "TW-130"), wrong
            assert "body_base64" in refused.json()["detail"]

    play(scenario)


def test_a_body_that_is_no_text_is_shown_in_base64() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.live.send(Message(topic="t", body=b"\xff\x00", message_id="1", born_ms=NOW_MS))
        shown = await stage.http.get("/api/topics/t/arrivals?after=0:0,1:0,2:0,3:0")
        [message] = shown.json()["messages"]
        assert message["body_base64"] == "/wA="
        assert "body" not in message

    play(scenario)


def test_arrivals_wait_for_the_next_message_and_go_on_from_there() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.http.post("/api/messages", json={"topic": "t", "body": "before"})
        waiting = asyncio.create_task(stage.http.get("/api/topics/t/arrivals?wait_ms=20000"))
        await asyncio.sleep(0)
        await stage.http.post("/api/messages", json={"topic": "t", "body": "after"})
        first = (await waiting).json()
        assert [message["body"] for message in first["messages"]] == ["after"]
        nothing = (await stage.http.get(f"/api/topics/t/arrivals?after={first['after']}")).json()
        assert nothing == {"messages": [], "after": first["after"]}

    play(scenario)


def test_large_bodies_come_in_several_answers() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.http.post("/api/topics", json={"name": "t", "queue_count": 1})
        for number in range(40):
            body = bytes([48 + number % 10]) * 1024 * 200
            await stage.live.send(Message(topic="t", body=body, message_id=str(number), born_ms=NOW_MS))
        after, seen = "0:0", []
        while messages := (shown := await arrivals_after(stage, after))["messages"]:
            assert sum(len(message["body"]) for message in messages) < 8 * 1024 * 1024
            seen.append([message["queue_offset"] for message in messages])
            after = shown["after"]
        assert [*chain.from_iterable(seen)] == [str(number) for number in range(40)]
        assert len(seen) > 1

    play(scenario)


async def arrivals_after(stage: Stage, after: str) -> Any:
    return (await stage.http.get(f"/api/topics/t/arrivals?after={after}&limit=1000")).json()


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/api/topics/nope", None, 404, "TW-151"),
        ("GET", "/api/topics/t/messages?queue=4", None, 404, "TW-150"),
        ("GET", "/api/topics/t/messages?offset=x", None, 400, "TW-130"),
        ("GET", "/api/topics/t/arrivals?after=0-1", None, 400, "TW-130"),
        ("GET", "/api/nothing", None, 404, "TW-150"),
        ("PATCH", "/api/topics", {}, 405, "TW-130"),
        ("POST", "/api/topics", {"name": "no no"}, 400, "TW-131"),
        ("POST", "/api/topics", {"name": "t", "queue_count": 7}, 409, "TW-163"),
        ("POST", "/api/messages", {"topic": "t"}, 400, "TW-130"),
        ("POST", "/api/messages", {"topic": "t", "body": ""}, 400, "TW-141"),
        ("POST", "/api/messages", {"topic": "t", "body": "x", "colour": "blue"}, 400, "TW-130"),
    ],
)
def test_a_refusal_has_a_code_and_the_status_that_fits(
    method: str, path: str, body: object, status: int, code: str
) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.http.post("/api/topics", json={"name": "t", "queue_count": 4})
        refused = await stage.http.request(method, path, json=body)
        assert (refused.status_code, refused.json()["code"]) == (status, code)
        assert refused.json()["message"]

    play(scenario)


def test_a_scrape_has_rocketmq_names_and_ours() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.http.post("/api/topics", json={"name": "t", "queue_count": 1})
        for body in ("one", "two"):
            await stage.http.post("/api/messages", json={"topic": "t", "body": body})
        await stage.http.post("/api/messages", json={"topic": "t", "body": "later", "in_ms": 60_000})
        [delivery] = await stage.live.receivers.receive("g", "t", EVERYTHING, 1, 20_000, "c", False, 0)
        await stage.live.call(stage.live.core.receiving.ack, "g", "t", delivery.receipt_handle)
        stage.metrics.observe("SendMessage", "OK", 0.004)
        stage.metrics.observe("SendMessage", "ILLEGAL_TOPIC", 0.001)
        lines = (await stage.http.get("/metrics")).text.splitlines()
        node = 'cluster="tidewheel",node_id="tidewheel",node_type="broker"'
        grpc = 'protocol_type="grpc",is_system="false"'
        for expected in (
            f'rocketmq_messages_in_total{{{node},topic="t",is_system="false"}} 3.0',
            f"rocketmq_timing_messages{{{node}}} 1.0",
            f'rocketmq_producer_connections{{{node},language="PYTHON",version="5.1.2",{grpc}}} 1.0',
            f'rocketmq_consumer_connections{{{node},consumer_group="g",consume_mode="PULL",'
            f'language="PYTHON",version="5.1.2",{grpc}}} 1.0',
            f"rocketmq_consumer_group_number{{{node}}} 1.0",
            'mq_refused_total{reason="ILLEGAL_TOPIC"} 1.0',
        ):
            assert same_series(expected) in map(same_series, lines), expected
        assert value_of(lines, "rocketmq_messages_out_total") == 1
        assert value_of(lines, "mq_acknowledged_total") == 1
        assert value_of(lines, "rocketmq_consumer_lag_messages") == 1
        assert not [line for line in lines if "_created" in line]

    play(scenario)


def test_a_scrape_lets_others_have_a_turn_of_the_loop_after_each_family() -> None:
    async def scenario(stage: Stage) -> None:
        families = [family.name for family in stage.metrics.registry.collect()]
        scraping, turns = asyncio.ensure_future(stage.http.get("/metrics")), 0
        while not scraping.done():
            turns += 1
            await asyncio.sleep(0)
        text = scraping.result().text
        assert [line.split()[2] for line in text.splitlines() if line.startswith("# HELP")] == [
            line.split()[2]
            for line in generate_latest(stage.metrics.registry).decode().splitlines()
            if line.startswith("# HELP")
        ]
        assert turns > len(families) + len(TIMER_BOUNDS_SECONDS) > 40

    play(scenario)


def test_a_scrape_during_which_the_core_goes_says_so() -> None:
    async def scenario(stage: Stage) -> None:
        in_turns, looked = stage.metrics.in_turns, []

        def look_and_break() -> Iterator[Metric | None]:
            for family in in_turns():
                looked.append("" if family is None else family.name)
                yield family
                if looked.count("mq_ready") == 1 and looked[-1] == "mq_ready":
                    stage.live.stop_on_internal_error(AssertionError("a bug"))

        stage.metrics.in_turns = look_and_break  # type: ignore[method-assign]  # the core goes amid a look
        lines = (await stage.http.get("/metrics")).text.splitlines()
        assert looked.count("mq_ready") == 2
        assert value_of(lines, "mq_ready") == 0
        stage.live.broken.exception()

    play(scenario)


def test_lateness_is_a_histogram_in_seconds() -> None:
    async def scenario(stage: Stage) -> None:
        stage.live.core.statistics.count_lateness(["t"], np.array([0, 2]), np.array([7, 3_000]))
        lines = (await stage.http.get("/metrics")).text.splitlines()
        buckets = {
            line.partition('le="')[2].partition('"')[0]: float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith("mq_delivery_lateness_seconds_bucket")
        }
        assert (buckets["0.005"], buckets["0.01"], buckets["2.5"], buckets["5.0"], buckets["+Inf"]) == (
            0,
            1,
            1,
            2,
            2,
        )
        assert value_of(lines, "mq_delivery_lateness_seconds_sum") == pytest.approx(3.007)

    play(scenario)


def test_timers_are_measured_by_topic_horizon_and_cause() -> None:
    async def scenario(stage: Stage) -> None:
        for topic, in_ms in (("a", 4_000), ("a", 50_000), ("b", 7_000_000), ("b", 86_400_001)):
            await stage.http.post("/api/messages", json={"topic": topic, "body": "x", "in_ms": in_ms})
        await stage.http.post("/api/timers/cancel", json={"topic": "a", "key": "nobody"})
        stage.live.core.statistics.lateness_by_cause["a", "burst"] += 3
        paid = {"topic": "a", "body": "x", "cancel": {"key": "nobody"}}
        await stage.http.post("/api/messages", json=paid)
        stage.live.core.statistics.clock_jumps["backward"] += 1
        lines = (await stage.http.get("/metrics")).text.splitlines()
        node = 'cluster="tidewheel",node_id="tidewheel",node_type="broker"'
        for expected in (
            f'mq_timer_pending{{{node},topic="a"}} 2.0',
            f'mq_timer_pending{{{node},topic="b"}} 2.0',
            f"mq_timer_next_due_seconds{{{node}}} 4.0",
            f'rocketmq_timer_message_snapshot{{{node},timer_bound_s="5"}} 1.0',
            f'rocketmq_timer_message_snapshot{{{node},timer_bound_s="60"}} 1.0',
            f'rocketmq_timer_message_snapshot{{{node},timer_bound_s="300"}} 0.0',
            f'rocketmq_timer_message_snapshot{{{node},timer_bound_s="14400"}} 1.0',
            f'rocketmq_timer_message_snapshot{{{node},timer_bound_s="86400"}} 0.0',
            f'mq_timer_verdicts_total{{{node},verdict="NEVER_SET"}} 2.0',
            f'mq_timer_carried_verdicts_total{{{node},topic="a",verdict="NEVER_SET"}} 1.0',
            f'mq_lateness_cause_total{{{node},topic="a",cause="burst"}} 3.0',
            f'mq_clock_jumps_total{{{node},direction="backward"}} 1.0',
        ):
            assert same_series(expected) in map(same_series, lines), expected

    play(scenario)


def same_series(line: str) -> tuple[str, frozenset[str], str]:
    """Return a line of a scrape so that the order of its labels does not matter."""
    name, _, rest = line.partition("{")
    labels, _, value = rest.rpartition("} ")
    return name, frozenset(labels.split(",")), value


def value_of(lines: list[str], name: str) -> float:
    """Return the value of a metric that has one series."""
    [line] = [line for line in lines if line.startswith(f"{name}{{")]
    return float(line.rpartition(" ")[2])


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"by": "30m"}, 409, "TW-164"),
        ({"by": "soon"}, 400, "TW-148"),
        ({"by": "-30m"}, 400, "TW-148"),
        ({"by": 30}, 400, "TW-130"),
        ({}, 400, "TW-130"),
    ],
)
def test_real_time_is_shown_and_not_advanced(body: dict[str, Any], status: int, code: str) -> None:
    async def scenario(stage: Stage) -> None:
        refused = await stage.http.post("/api/clock/advance", json=body)
        assert (refused.status_code, refused.json()["code"]) == (status, code)
        shown = (await stage.http.get("/api/clock")).json()
        assert shown == {"kind": "real", "now_ms": str(NOW_MS), "offset_ms": "0"}

    play(scenario)


def test_a_virtual_clock_is_advanced_and_times_are_shown_in_real_time() -> None:
    async def scenario(stage: Stage) -> None:
        for topic, span_ms in (("a-late", 120_000), ("a-soon", 60_000), ("b", 1)):
            sent = {"topic": topic, "body": "x", "keys": ["k"], "at_ms": NOW_MS + span_ms}
            assert (await stage.http.post("/api/messages", json=sent)).status_code == 201
        moved = (await stage.http.post("/api/clock/advance", json={"by": "30s"})).json()
        assert moved == {"kind": "virtual", "now_ms": str(NOW_MS + 30_000), "offset_ms": "30000"}
        waiting = (await stage.http.get("/api/timers", params={"topic-prefix": "a-"})).json()["timers"]
        assert [(one["topic"], one["keys"], one["due_ms"]) for one in waiting] == [
            ("a-soon", ["k"], str(NOW_MS + 30_000)),
            ("a-late", ["k"], str(NOW_MS + 90_000)),
        ]
        found = (await stage.http.get("/api/messages", params={"topic": "b", "key": "k"})).json()["messages"]
        assert {one["store_ms"] for one in found} == {str(NOW_MS - 30_000), str(NOW_MS - 29_999)}
        topic = (await stage.http.get("/api/topics/b", params={"since_ms": NOW_MS - 29_999})).json()
        assert sum(int(queue["end_offset"]) - int(queue["since_offset"]) for queue in topic["queues"]) == 1

    play(scenario, "virtual")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/api/groups/g/receive", "POST"),
        ("PUT", "/api/messages", "GET, POST"),
        ("DELETE", "/api/topics/t/messages", "GET, POST"),
    ],
)
def test_a_method_that_is_not_served_is_told_which_are(
    at_desk: Callable[..., None], method: str, path: str, allowed: str
) -> None:
    async def scenario(desk: Any) -> None:
        answer = await desk.http.request(method, path)
        assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
        assert f"{method} {path} is not served here; this path takes {allowed}." in answer.json()["message"]

    at_desk(scenario)


def test_a_message_that_is_too_large_is_refused_as_a_large_request_is(at_desk: Callable[..., None]) -> None:
    async def scenario(desk: Any) -> None:
        body = "x" * (limits.BODY_BYTES_MAX + 1)
        answer = await desk.http.post("/api/messages", json={"topic": "t", "body": body})
        assert (answer.status_code, answer.json()["code"]) == (413, "TW-142")

    at_desk(scenario)
