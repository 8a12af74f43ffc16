"""The benchmarks' modules, which find each other by their bare names, and a broker for their load."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from services.process.event_loop import new_event_loop
from tests.unit.benchmarks.in_process import InProcess, Play, in_process

SCENARIO_SECONDS = 60
BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def peers() -> Iterator[Any]:
    """`peers(name)` is a module of the comparison; its folder is last in the path, as it has a `rocketmq`."""
    sys.path.append(str(BENCHMARKS / "peers"))
    yield importlib.import_module
    sys.path.remove(str(BENCHMARKS / "peers"))


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """`play(scenario)` runs it on a broker of this process."""

    def play(scenario: Callable[[InProcess], Awaitable[None]]) -> None:
        async def whole() -> None:
            async with asyncio.timeout(SCENARIO_SECONDS), in_process(tmp_path) as server:
                await scenario(server)

        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(whole())

    return play
