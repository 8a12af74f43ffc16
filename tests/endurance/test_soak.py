"""All official clients at once, at 70 % of what they can do together: nothing is lost, nothing grows.

    make test-clients                     (builds the clients)
    .venv/bin/python -m pytest tests/endurance/test_soak.py --soak-seconds 600 -s

What all can do is measured first, without pauses; then each language goes on at 70 % of what it sent or
received, whichever was less. The memory is looked at when what the broker remembers for ten minutes, to know
a repeated send or commit, has reached its size. Prints JSON. The clients and who tells them share the machine
with the broker.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from commitlog.limits import DEDUPE_MS
from tests.clients.libraries import LIBRARIES, PYTHON
from tests.clients.process_client import ProcessClient
from tests.endurance.conftest import BrokerProcess
from tests.endurance.soak import Lane, Tally

PART_OF_MAX = 0.7
WARM_SECONDS, FULL_SECONDS, SETTLE_SECONDS = 15.0, 45.0, DEDUPE_MS / 1_000
LOOK_SECONDS = 2.0
DRAIN_SECONDS = 60.0
GROWTH_PERCENT_MAX = 5.0
ROOT = Path(__file__).parents[2]
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path / "store")
    process.start()
    yield process
    assert process.stop() == 0


@pytest.fixture
def lanes(broker: BrokerProcess, tmp_path: Path) -> Iterator[list[Lane]]:
    """A lane for Python, and for each language whose program is built."""
    built = [PYTHON, *(library for library in LIBRARIES.values() if library.is_built())]
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    with ExitStack() as stack:
        clients = [ProcessClient(library, broker.listen, environment) for library in built]
        lanes = [Lane(client, lambda name, kind: create_topic(broker, name, kind)) for client in clients]
        for lane in lanes:
            stack.callback(lane.stop)
        yield lanes


def test_all_clients_at_once_lose_nothing_and_the_broker_does_not_grow(
    broker: BrokerProcess, lanes: list[Lane], soak_seconds: float
) -> None:
    time.sleep(min(WARM_SECONDS, soak_seconds))
    for lane in lanes:
        lane.begin_phase()
    full_seconds = min(FULL_SECONDS, soak_seconds)
    time.sleep(full_seconds)
    fullest = {lane.name: lane.begin_phase() for lane in lanes}
    for lane in lanes:
        lane.slow_down(PART_OF_MAX * rate(fullest[lane.name], full_seconds))
    await_drained(lanes, behind_max=1_000)
    time.sleep(min(SETTLE_SECONDS, soak_seconds))
    for lane in lanes:
        lane.begin_phase()
    looks, processor_seconds = watched(broker, soak_seconds)
    soaked = {lane.name: lane.begin_phase() for lane in lanes}
    for lane in lanes:
        lane.rest()
    await_drained(lanes)
    shown = {
        "soak_seconds": soak_seconds,
        "full_per_second": {name: round(rate(tally, full_seconds)) for name, tally in fullest.items()},
        "languages": {name: figures(tally, soak_seconds) for name, tally in soaked.items()},
        "broker": {**memory(looks), "processor_percent": round(100 * processor_seconds / soak_seconds, 1)},
    }
    print(json.dumps(shown, indent=2))
    every = [*fullest.values(), *soaked.values(), *(lane.tally for lane in lanes)]
    assert not [error for tally in every for error in tally.errors]
    assert {lane.name: lane.open_count for lane in lanes} == dict.fromkeys((lane.name for lane in lanes), 0)
    assert sum(tally.early + tally.twice for tally in every) == 0
    if soak_seconds >= SETTLE_SECONDS:
        assert shown["broker"]["growth_percent"] <= GROWTH_PERCENT_MAX


def await_drained(lanes: list[Lane], behind_max: int = 0) -> None:
    """Wait until few enough messages are on their way."""
    ends = time.monotonic() + DRAIN_SECONDS
    while sum(lane.open_count for lane in lanes) > behind_max and time.monotonic() < ends:
        time.sleep(LOOK_SECONDS / 10)


def watched(broker: BrokerProcess, seconds: float) -> tuple[list[int], float]:
    """Look at the broker for so long: its resident bytes each `LOOK_SECONDS`, and its processor seconds."""
    looks, ends, before = [], time.monotonic() + seconds, processor_seconds(broker)
    while time.monotonic() < ends:
        looks.append(resident_bytes(broker))
        time.sleep(LOOK_SECONDS)
    return looks, processor_seconds(broker) - before


def rate(tally: Tally, seconds: float) -> float:
    """Messages a second that were both sent and received."""
    return min(tally.sent, tally.received) / seconds


def memory(looks: list[int]) -> dict[str, float]:
    """The resident memory at the beginning and at the end, each the median of a tenth of the looks."""
    tenth = max(1, len(looks) // 10)
    first, last = statistics.median(looks[:tenth]), statistics.median(looks[-tenth:])
    return {
        "resident_first_mib": round(first / 2**20, 1),
        "resident_last_mib": round(last / 2**20, 1),
        "resident_most_mib": round(max(looks) / 2**20, 1),
        "growth_percent": round(100 * (last / first - 1), 1),
    }


def figures(tally: Tally, seconds: float) -> dict[str, Any]:
    """What a language did and how long it took."""
    return {
        "sent": tally.sent,
        "per_second": round(tally.sent / seconds, 1),
        "received": tally.received,
        "twice": tally.twice,
        "early": tally.early,
        "errors": len(tally.errors),
        "send_ms": spread(tally.send_ms),
        "arrive_ms": spread(tally.arrive_ms),
        "late_ms": spread(tally.late_ms),
    }


def spread(values: list[float]) -> dict[str, float]:
    """The median, the slowest hundredth, the slowest."""
    if len(values) < 2:
        return {}
    cuts = statistics.quantiles(values, n=100)
    return {"p50": round(cuts[49], 2), "p99": round(cuts[98], 2), "most": round(max(values), 2)}


def create_topic(broker: BrokerProcess, name: str, message_type: str) -> None:
    body = json.dumps({"name": name, "message_type": message_type}).encode()
    urlopen(Request(f"http://{broker.http}/api/topics", body, {"Content-Type": "application/json"})).close()


def resident_bytes(broker: BrokerProcess) -> int:
    assert broker.process is not None
    return int(Path(f"/proc/{broker.process.pid}/statm").read_text().split()[1]) * 4096


def processor_seconds(broker: BrokerProcess) -> float:
    assert broker.process is not None
    fields = Path(f"/proc/{broker.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


@pytest.fixture
def soak_seconds(request: pytest.FixtureRequest) -> float:
    return float(request.config.getoption("--soak-seconds"))
