"""A call to the engine that hangs: how long, and why, as the engine's settings tell."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from threading import Event, Thread
from typing import Any

import pytest

from services.cluster.watching.unanswered import (
    ANSWER_MS,
    POLL_SECONDS,
    REPEAT_SECONDS,
    EngineDiagnosis,
    TimedEngine,
)
from sharedlog.engine import Head
from sharedlog.errors import EngineUnavailable
from sharedlog.fold import Position
from sharedlog.record import CHAIN_AT_GENESIS, NOBODY
from tests.memory_engine import MemoryEngine

HEAD = Head(0, NOBODY, Position(0, CHAIN_AT_GENESIS))
BAD = "synchronous_standby_names needs 1 in step; now: none."


class Hanging(MemoryEngine):
    """An engine that takes no record until it is let."""

    def __init__(self) -> None:
        super().__init__(Random(1))
        self.is_well = self.is_deaf = True
        self.came, self.goes_on = Event(), Event()

    def append_unchecked(self, stored: bytes) -> None:
        self.came.set()
        assert self.goes_on.wait(30)
        if self.is_deaf:
            raise EngineUnavailable("the connection broke")


def test_an_engine_tells_for_how_long_its_oldest_call_has_waited() -> None:
    now_ms, engine = 1_000, Hanging()
    watched = TimedEngine(engine, lambda: now_ms)
    errors: list[EngineUnavailable] = []

    def note() -> None:
        try:
            watched.append_unchecked(b"")
        except EngineUnavailable as error:
            errors.append(error)

    assert watched.read(0, 100) == []
    assert watched.bounds() == (0, 0)
    assert watched.waiting_ms() == 0
    thread = Thread(target=note)
    thread.start()
    assert engine.came.wait(30)
    now_ms = 5_000
    watched.read(0, 100)
    assert watched.waiting_ms() == 4_000
    engine.goes_on.set()
    thread.join(30)
    assert len(errors) == 1
    assert watched.waiting_ms() == 0, "one that has failed waits no more"


def test_what_has_failed_is_over_once_its_like_is_answered_or_a_new_record_is_read() -> None:
    engine = Hanging()
    engine.goes_on.set()
    watched = TimedEngine(engine, lambda: 0)
    engine.create_log(b"one")
    assert watched.answers()
    assert watched.read(0, 100)
    with pytest.raises(EngineUnavailable):
        watched.append_unchecked(b"mine")
    assert watched.read(0, 100)
    assert not watched.answers(), "what was read before does not tell that anything is taken now"
    engine.create_log(b"another's")
    assert watched.read(1, 100)
    assert watched.answers()
    with pytest.raises(EngineUnavailable):
        watched.append_unchecked(b"mine")
    engine.is_deaf = False
    watched.append_unchecked(b"mine")
    assert watched.answers()


class Stage:
    """A watch whose pauses a test ends, over a call that waits as long as the test says."""

    def __init__(self) -> None:
        self.waiting_ms, self.answers, self.looks, self.found = 0, True, 0, [BAD]
        self.error: Exception | None = None
        self.watch = EngineDiagnosis(lambda: self.waiting_ms, lambda: self.answers, self._look, self._pause)
        self._paused: asyncio.Queue[float] = asyncio.Queue()
        self._goes_on = asyncio.Event()

    async def _look(self) -> list[str]:
        self.looks += 1
        if self.error is not None:
            raise self.error
        return self.found

    async def _pause(self, seconds: float) -> None:
        self._paused.put_nowait(seconds)
        await self._goes_on.wait()
        self._goes_on.clear()

    async def paused(self) -> float:
        """How long the watch pauses."""
        return await self._paused.get()

    async def go_on(self) -> float:
        """Let a pause be over; how long the next one is."""
        self._goes_on.set()
        return await self.paused()


def play(scenario: Callable[[Stage], Awaitable[None]]) -> None:
    async def run() -> None:
        stage = Stage()
        task = asyncio.create_task(stage.watch.watch())
        try:
            assert await stage.paused() == POLL_SECONDS
            await scenario(stage)
        finally:
            task.cancel()
            await asyncio.wait({task})

    asyncio.run(run())


def test_what_waits_for_long_is_told_with_its_reason_until_it_is_answered() -> None:
    async def scenario(stage: Stage) -> None:
        stage.waiting_ms = ANSWER_MS - 1
        assert await stage.go_on() == POLL_SECONDS
        assert (stage.looks, stage.watch.sentence, stage.watch.seconds) == (0, "", 0.0)
        stage.waiting_ms = 4_000
        assert stage.watch.sentence == "The shared log has not answered for 4 s."
        assert await stage.go_on() == REPEAT_SECONDS
        stage.waiting_ms = 9_000
        assert stage.watch.sentence == f"The shared log has not answered for 9 s. {BAD}"
        assert await stage.go_on() == REPEAT_SECONDS
        assert stage.looks == 2
        stage.waiting_ms, stage.answers = 0, False
        assert stage.watch.sentence == ""
        assert await stage.go_on() == POLL_SECONDS
        assert stage.looks == 2, "it waits no more since it has failed: that is no answer"
        stage.answers = True
        assert await stage.go_on() == POLL_SECONDS
        assert stage.looks == 3, "a leader that has refused new messages looks again"

    play(scenario)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"found": []}, "slow, full or out of reach. To look: tidewheel cluster doctor URL"),
        (
            {"error": EngineUnavailable("PostgreSQL did not answer: timeout")},
            "PostgreSQL did not answer: timeout",
        ),
    ],
)
def test_what_the_settings_do_not_tell_is_said_all_the_same(given: dict[str, Any], said: str) -> None:
    async def scenario(stage: Stage) -> None:
        vars(stage).update(given)
        stage.waiting_ms = 4_000
        await stage.go_on()
        assert said in stage.watch.sentence

    play(scenario)
