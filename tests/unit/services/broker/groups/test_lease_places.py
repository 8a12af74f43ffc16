"""All places that keep the state of a lease agree after each of its beginnings and ends."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from commitlog.records.message import MessageType
from services.broker.groups.group_values import GroupPolicy, GroupQueue, GroupStart
from services.broker.groups.lite_subscribing import LiteStart, LiteStartPosition
from services.broker.spine.scheduler import Purpose
from services.broker.spine.values import Delivery, StartPosition, Subscriber
from tests.lease_places import check_leases
from tests.unit.services.broker.groups.test_receiving import Bench
from tidewheel.errors import InvalidReceiptHandle

BROKER = Path(__file__).parents[5] / "services" / "broker"
LEASE_MS, KEY = 20_000, GroupQueue("g", "t", 0)
KINDS = {"plain": "", "of a message group": "a"}
Ends = Callable[[Bench, list[Delivery]], object]
ENDS: dict[str, Ends] = {
    "acknowledged": lambda bench, got: [bench.ack(one) for one in got],
    "acknowledged together": lambda bench, got: bench.broker.receiving.ack_many(
        "g", "t", [one.receipt_handle for one in got], bench.now_ms
    ),
    "run out": lambda bench, got: bench.advance(LEASE_MS),
    "released": lambda bench, got: [
        bench.broker.receiving.release("g", "t", one.receipt_handle, bench.now_ms) for one in got
    ],
    "given up": lambda bench, got: [
        bench.broker.receiving.forward_to_dead_letter("g", "t", one.receipt_handle, bench.now_ms)
        for one in got
    ],
    "replaced, then run out": lambda bench, got: [
        [bench.broker.receiving.retry("g", "t", one.receipt_handle, 7, bench.now_ms) for one in got],
        check_leases(bench.broker),
        bench.advance(7),
    ],
    "buried": lambda bench, got: [
        bench.broker.group_views.set_policy("g", GroupPolicy(attempts_max=1), bench.now_ms),
        bench.advance(LEASE_MS),
    ],
    "of a group that leaves": lambda bench, got: bench.broker.group_views.delete("g", "t", bench.now_ms),
    "of a group that is forgotten": lambda bench, got: bench.broker.group_views.delete("g", "", bench.now_ms),
    "of a group that is reset": lambda bench, got: bench.broker.group_views.reset(
        "g", "t", GroupStart(StartPosition.EARLIEST), False, bench.now_ms
    ),
}


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", ENDS)
def test_every_end_of_a_lease_ends_it_everywhere(bench: Bench, kind: str, end: str) -> None:
    for _ in range(3):
        bench.send(KINDS[kind])
    got = bench.receive()
    check_leases(bench.broker)
    assert len(bench.broker.groups.leases.all_leases()) == len(got) > 0
    ENDS[end](bench, got)
    check_leases(bench.broker)
    assert not bench.broker.groups.leases.all_leases()
    for one in got:
        with pytest.raises(InvalidReceiptHandle):
            bench.ack(one)


@pytest.mark.parametrize("kind", KINDS)
def test_a_lease_that_is_acknowledged_twice_in_a_call_ends_once(bench: Bench, kind: str) -> None:
    bench.send(KINDS[kind])
    (got,) = bench.receive()
    fields, _, generation = got.receipt_handle.rpartition(" ")
    handles = [got.receipt_handle, got.receipt_handle, f"{fields} 0{generation}"]
    first, *others = bench.broker.receiving.ack_many("g", "t", handles, bench.now_ms)
    assert not isinstance(first, Exception)
    assert all(isinstance(one, InvalidReceiptHandle) for one in others)
    assert bench.broker.statistics.acknowledged["t", "g"] == 1
    check_leases(bench.broker)


@pytest.mark.parametrize("end", ["gone", "silent", "nack", "restart", "restart and the same receive"])
def test_leases_that_the_broker_renews_end_everywhere(bench: Bench, end: str) -> None:
    bench.send("a")
    (got,) = bench.receive(auto_renew=True, attempt_id="first")
    bench.broker.receiving.renew_client("c", bench.now_ms + 5)
    check_leases(bench.broker)
    if end == "gone":
        bench.broker.receiving.expire_client("c", bench.now_ms)
    elif end == "nack":
        bench.broker.receiving.retry("g", "t", got.receipt_handle, 7, bench.now_ms)
        check_leases(bench.broker)
    elif end != "silent":
        bench.reopen()
        check_leases(bench.broker)
        assert len(bench.broker.groups.leases.all_leases()) == 1
    if end == "restart and the same receive":
        assert len(bench.receive(auto_renew=True, attempt_id="first")) == 1
        check_leases(bench.broker)
    bench.advance(3_600_000)
    check_leases(bench.broker)
    assert not bench.broker.groups.leases.all_leases()


def test_a_lite_topic_that_is_read_anew_loses_its_lease_everywhere(bench: Bench) -> None:
    bench.broker.topics.create("l", MessageType.LITE, 1, bench.now_ms)
    subscriber = Subscriber("g", "l", "c")
    bench.send(topic="l", lite_topic="x")
    bench.broker.lite.subscribe(subscriber, ["x"], LiteStart(LiteStartPosition.MIN), bench.now_ms)
    assert len(bench.receive(topic="l")) == 1
    check_leases(bench.broker)
    bench.broker.lite.unsubscribe(subscriber, ["x"], bench.now_ms)
    bench.broker.lite.subscribe(subscriber, ["x"], LiteStart(LiteStartPosition.MIN), bench.now_ms)
    assert not bench.broker.groups.leases.all_leases()
    check_leases(bench.broker)


def test_a_lease_on_what_retention_deletes_stands_everywhere_until_it_ends(bench: Bench) -> None:
    for message_group in ("", "a"):
        bench.send(message_group)
    (plain, ordered) = bench.receive()
    bench.broker.groups.skip_deleted_messages([("t", 0, 2)])
    check_leases(bench.broker)
    assert len(bench.broker.groups.leases.all_leases()) == 2
    bench.ack(ordered)
    bench.broker.receiving.release("g", "t", plain.receipt_handle, bench.now_ms)
    check_leases(bench.broker)
    assert not bench.broker.groups.leases.all_leases()


PLANTED: dict[str, Callable[[Bench, int], object]] = {
    "Leases": lambda bench, one: bench.broker.groups.leases._leases.pop(one),
    "the scheduler": lambda bench, one: bench.broker._scheduler.cancel(Purpose.LEASE, one),
    "the scheduler's time": lambda bench, one: bench.broker._scheduler.schedule(
        Purpose.LEASE, one, bench.now_ms + 1
    ),
    "a timer of nobody": lambda bench, one: bench.broker._scheduler.schedule(
        Purpose.LEASE, one + 1, bench.now_ms + 1
    ),
    "InFlight": lambda bench, one: bench.broker.groups.in_flight(KEY).return_message(0),
    "GroupOffsets": lambda bench, one: bench.broker.groups.in_flight(KEY).offsets.finish(0, 1),
    "a client": lambda bench, one: bench.broker.groups.leases._generations_of.clear(),
    "a message group": lambda bench, one: bench.broker.groups.in_flight(KEY).message_groups.done("a"),
}


@pytest.mark.parametrize("place", PLANTED)
def test_a_place_that_has_lost_a_lease_is_seen(bench: Bench, place: str) -> None:
    bench.send("a")
    bench.receive(auto_renew=True)
    check_leases(bench.broker)
    (generation,) = (lease.generation for _, lease in bench.broker.groups.leases.all_leases())
    PLANTED[place](bench, generation)
    with pytest.raises(AssertionError):
        check_leases(bench.broker)


MUTATORS = {
    "leases": {"begin", "replace", "restore", "end"},
    "flight": {"lease", "lease_run", "lease_found", "replace", "finished", "give_back"},
}


def test_only_groups_begins_replaces_and_ends_leases() -> None:
    found = set[tuple[str, str]]()
    for path in BROKER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            owner = _owner(node.value) if isinstance(node, ast.Attribute) else ""
            if isinstance(node, ast.Attribute) and node.attr in MUTATORS.get(owner, ()):
                found.add((path.name, owner))
    assert found == {("groups.py", "leases"), ("groups.py", "flight")}


def _owner(value: ast.expr) -> str:
    """Which of the two a value is, by its name: "" of anything else."""
    if isinstance(value, ast.Call):
        value = value.func
    name = value.attr if isinstance(value, ast.Attribute) else getattr(value, "id", "")
    name = {"in_flight": "flight", "peek_in_flight": "flight"}.get(name, name.removeprefix("_"))
    return name if name in MUTATORS else ""
