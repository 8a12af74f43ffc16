"""While a node leads it looks at the shared log's records, and says what is wrong with them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from services.cluster.metrics import ClusterMetrics
from services.cluster.watching.scrubbing import FIRST_SECONDS, POLL_SECONDS, LogScrubber
from sharedlog.engine import Head
from sharedlog.fold import Position
from sharedlog.record import CHAIN_AT_GENESIS, NOBODY, encode
from sharedlog.scrub import DOCTOR, CheckResult, Scrub
from tests.genesis import genesis_of
from tests.memory_engine import MemoryEngine

CLUSTER = b"one cluster's id"


class Rows(MemoryEngine):
    """An engine with one record, whose rows have the faults that a test says."""

    faults: tuple[str, ...] = ()

    def count_rows(self, from_record: int) -> CheckResult:
        return CheckResult(list(self.faults), 0, is_whole=True)


class Stage:
    """The looks of a leader, whose pauses a test ends."""

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self.engine, self.now_ms = Rows(Random(1), Head(0, NOBODY, Position(0, CHAIN_AT_GENESIS))), 0
        self.engine.is_well = True
        self.engine.create_log(encode(genesis_of(CLUSTER)))
        begin = lambda: Scrub(self.engine, CLUSTER, lambda: self.now_ms)  # noqa: E731
        self.scrubbing = LogScrubber(begin, executor, self._pause)
        self._paused: asyncio.Queue[float] = asyncio.Queue()
        self._goes_on = asyncio.Event()

    async def _pause(self, seconds: float) -> None:
        self._paused.put_nowait(seconds)
        await self._goes_on.wait()
        self._goes_on.clear()

    async def looked(self) -> None:
        """Let the first look begin, and wait until it is over."""
        assert await self._paused.get() == FIRST_SECONDS
        await self.look_again()

    async def look_again(self) -> None:
        self._goes_on.set()
        assert await self._paused.get() == POLL_SECONDS

    def scraped(self) -> list[str]:
        """The samples that the looks give Prometheus."""
        node: Any = SimpleNamespace()
        metrics = ClusterMetrics(node, node, node, self.scrubbing, node)
        return [f"{one.name} {one.value}" for family in metrics._scrub_metrics() for one in family.samples]


def play(scenario: Callable[[Stage], Awaitable[None]]) -> None:
    async def run() -> None:
        with ThreadPoolExecutor(1) as executor:
            await scenario(Stage(executor))

    asyncio.run(run())


def fail(bug: BaseException) -> None:
    raise bug


def test_a_fault_is_logged_once_and_told_until_it_is_gone() -> None:
    async def scenario(stage: Stage) -> None:
        scrubbing = stage.scrubbing
        assert (scrubbing.view(), stage.scraped()) == (None, [])
        with capture_logs() as logs:
            async with scrubbing.watching(fail):
                await stage.looked()
                assert scrubbing.sentences() == []
                stage.engine.faults = ("Record 7 is missing.",)
                for _ in range(3):
                    await stage.look_again()
                assert scrubbing.sentences() == [f"the shared log is damaged: Record 7 is missing. {DOCTOR}"]
                stage.now_ms = 5_000
                assert stage.scraped() == [
                    "tidewheel_cluster_log_faults 1",
                    "tidewheel_cluster_log_counted_age_seconds 5.0",
                    "tidewheel_cluster_log_read_age_seconds 5.0",
                ]
                stage.engine.faults = ()
                await stage.look_again()
                assert scrubbing.sentences() == []
        assert [one["event"] for one in logs] == [
            "the shared log is damaged",
            "the shared log has no fault any more",
        ]
        assert logs[0]["why"] == "Record 7 is missing."
        assert scrubbing.view() is None, "who leads no more tells nothing"

    play(scenario)


def test_an_engine_that_does_not_answer_is_looked_at_again() -> None:
    async def scenario(stage: Stage) -> None:
        async with stage.scrubbing.watching(fail):
            await stage.looked()
            stage.engine.is_away = True
            await stage.look_again()
            stage.engine.is_away, stage.engine.faults = False, ("Record 7 is missing.",)
            await stage.look_again()
            assert stage.scrubbing.faults == ["Record 7 is missing."]

    play(scenario)


def test_a_bug_in_a_look_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(stage: Stage) -> None:
        monkeypatch.setattr(stage.engine, "count_rows", lambda _: [][0])
        met: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        async with stage.scrubbing.watching(met.set_result):
            stage._goes_on.set()
            assert isinstance(await met, IndexError)

    play(scenario)
