"""The engine's clock is off where nodes agree with each other, and not with it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from services.cluster.election.lag_and_skew import LagAndSkew
from services.cluster.watching.clocks import FRESH_MS, ClockComparison
from sharedlog.engine import Stored
from sharedlog.record import CHAIN_AT_GENESIS, NOBODY, Kind, SharedRecord, encode_facts

WALL_MS = 1_800_000_000_000


class Bench:
    """A node that follows; its clock is ahead of the engine's by `skew_ms`."""

    def __init__(self, skew_ms: int) -> None:
        self.now_ms, self.skew_ms = 1_000, skew_ms
        self.lag_and_skew = LagAndSkew(lambda: WALL_MS + self.now_ms, lambda: self.now_ms)
        self.clocks = ClockComparison(self.lag_and_skew, lambda: self.now_ms)
        for _ in range(3):
            self.lag_and_skew.record_read([], lambda: 0)
            self.lag_and_skew.record_read([self.taken()], lambda: 1)

    def taken(self) -> Stored:
        """A record that the engine takes now."""
        return Stored(0, b"", WALL_MS + self.now_ms - self.skew_ms)

    def led(self, ahead_ms: int) -> None:
        """Read a BEAT of a leader whose clock is ahead of the engine's."""
        stored = self.taken()
        body = encode_facts({"clock_ms": stored.appended_ms + ahead_ms})
        record = SharedRecord(bytes(16), Kind.BEAT, 1, NOBODY, 0, CHAIN_AT_GENESIS, body)
        self.clocks.record_leader_clock(stored, record)


@pytest.mark.parametrize(("skew_ms", "which"), [(10_000, "10.0 s behind"), (-10_000, "10.0 s ahead of")])
def test_nodes_that_agree_name_the_engines_clock(skew_ms: int, which: str) -> None:
    bench = Bench(skew_ms)
    assert bench.clocks.engine_clock_warning() == "", "this node alone knows nothing"
    bench.led(skew_ms - 300)
    bench.clocks.record_skew("node c", skew_ms + 500)
    said = bench.clocks.engine_clock_warning()
    assert f"the engine's clock is {which} those of this node and of node c and the leader" in said
    bench.now_ms += FRESH_MS + 1
    assert bench.clocks.engine_clock_warning() == "", "of the past"


@pytest.mark.parametrize(
    ("skew_ms", "other_ms"), [(10_000, 0), (0, 10_000), (0, 0), (10_000, -10_000), (10_000, 6_000)]
)
def test_a_node_whose_clock_alone_is_off_blames_nobody(skew_ms: int, other_ms: int) -> None:
    bench = Bench(skew_ms)
    bench.led(other_ms)
    assert bench.clocks.engine_clock_warning() == ""


def test_it_is_logged_once_when_it_begins_and_ends(capsys: pytest.CaptureFixture[str]) -> None:
    bench, looks = Bench(10_000), 0

    async def pause(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            bench.led(10_000)
        if looks == 4:
            bench.led(0)
        if looks == 6:
            raise asyncio.CancelledError

    with suppress(asyncio.CancelledError):
        asyncio.run(bench.clocks.watch(pause))
    said = capsys.readouterr().out
    assert (said.count("engine is off"), said.count("engine is right again")) == (1, 1)
