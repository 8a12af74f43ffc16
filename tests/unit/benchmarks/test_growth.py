"""The load on a broker that has grown, against one of ours; a row on processes; and the table."""

from __future__ import annotations

import argparse
import asyncio
import copy
from pathlib import Path
from typing import Any

import pytest

from tests.unit.benchmarks.in_process import InProcess, Play


def stored(server: InProcess) -> int:
    return sum(one.messages for one in server.live.core.statistics.stored.values())


@pytest.mark.parametrize(
    ("kind", "messages", "calls"),
    [
        ("send-1", 60, {"SendMessage": 60}),
        ("send-16", 256, {"SendMessage": 16}),
        ("receive", 60, {"SendMessage": 60, "AckMessage": 60}),
        ("delayed", 60, {"SendMessage": 60}),
    ],
)
def test_a_sample_asks_all_topics_and_groups_and_all_is_answered_well(
    peers: Any, play: Play, kind: str, messages: int, calls: dict[str, int]
) -> None:
    load = peers("growth_load")

    async def scenario(server: InProcess) -> None:
        grown = load.Grown("grown", server, topics=3, groups=2)
        await grown.fill()
        assert {one.name: one.queue_count for one in server.live.core.topics.all()} == {
            load.topic_of(number): 8 for number in range(3)
        }
        server.observed.clear()
        before = stored(server)
        await grown.sample(kind, 64 if kind == "send-16" else 60)
        assert stored(server) - before == messages
        assert {one: server.observed.count((one, "OK")) for one in calls} == calls
        assert set(server.observed) == {(one, "OK") for one in calls}
        (cost,) = grown.costs[kind]
        assert cost["server_us"] > 0

    play(scenario)


def test_timers_that_are_late_fail_the_sample(
    peers: Any, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, http2 = peers("growth_load"), peers("peers_http2")
    monkeypatch.setattr(load, "DELIVERY_SECONDS", -load.DUE_SECONDS / 2)

    async def scenario(server: InProcess) -> None:
        with pytest.raises(http2.LoadFailed, match="5 of 5 timers were late"):
            await load.Grown("grown", server).sample("delayed", 5)

    play(scenario)


def test_a_topic_that_has_nothing_fails_the_sample(
    peers: Any, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, http2 = peers("growth_load"), peers("peers_http2")

    async def nothing(*_: object) -> None:
        """Store no message."""

    monkeypatch.setattr(load.Grown, "_store", nothing)

    async def scenario(server: InProcess) -> None:
        with pytest.raises(http2.LoadFailed, match="group-000000 received nothing from topic-000000"):
            await load.Grown("grown", server).sample("receive", 1)

    play(scenario)


def test_a_broker_after_many_ids_is_beside_a_new_one(
    peers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = peers("growth_rows")
    monkeypatch.setattr(rows, "KINDS", {"send-1": None})
    given = argparse.Namespace(flush="sync", rounds=2, calls=16, minutes=0.01)
    found = asyncio.run(rows.measure("ids", tmp_path, given))
    new, old = found["brokers"]
    assert [len(one["costs"]["send-1"]) for one in (new, old)] == [2, 2]
    assert old["facts"]["ids"] > 0
    assert all(one["facts"]["anonymous_mb"] < one["facts"]["resident_mb"] for one in (new, old))
    assert list(tmp_path.iterdir()) == []


def sample(server_us: float) -> dict[str, float]:
    return {"server_us": server_us}


MEMORY = {"resident_mb": 150.0, "anonymous_mb": 80.0}
FOUND: dict[str, Any] = {
    "machine": {
        "date": "2026-11-27", "cores": 2, "processor": "a processor", "python": "3.11", "load_before": 0.1,
        "load_after": 1.0,
    },
    "commit": "abc",
    "options": {"rounds": 3, "calls": 2_000, "flush": "sync"},
    "figures": [
        {
            "row": "topics",
            "brokers": [
                {
                    "broker": "1 topic",
                    "costs": {"send-1": [sample(100), sample(200), sample(400)]},
                    "facts": MEMORY | {"idle_ms": 1.25},
                },
                {
                    "broker": "250 topics",
                    "costs": {"send-1": [sample(110), sample(200), sample(360)]},
                    "facts": MEMORY | {"bytes_each": 2_345},
                },
            ],
        }
    ],
    "failures": [],
}  # fmt: skip


def test_a_broker_is_compared_with_the_first_of_its_row_in_the_same_round(peers: Any) -> None:
    made = peers("growth_table").table(FOUND)
    assert "| 1 topic | 200 us |  |  |  | 150 MB (80) | idle 1.2 ms/s |" in made
    assert "| 250 topics | 200 us, 1.00 (0.90-1.10) |  |  |  | 150 MB (80) | 2,345 bytes each |" in made
    assert "tidewheel abc; 2 cores (a processor), Python 3.11; rounds: 3, of 2,000 messages" in made


def test_a_row_that_failed_is_told(peers: Any) -> None:
    found = copy.deepcopy(FOUND) | {"failures": [{"row": "ids", "why": "no"}]}
    assert "- ids: no" in peers("growth_table").table(found)
