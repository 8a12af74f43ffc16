"""A session is tried while those that stand go on: what refuses it is told, until one is opened."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from services.cluster.watching.sessions import REPEAT_SECONDS, TRIAL_SECONDS, SessionTrials
from sharedlog.errors import SessionRefused


class Door:
    """An engine that lets in, or does not."""

    refusal = ""
    count = 0

    def attempt(self) -> int:
        self.count += 1
        if self.refusal:
            raise SessionRefused(self.refusal)
        return 0


def test_a_refusal_is_told_until_a_session_is_opened() -> None:
    async def run() -> None:
        door, paused, goes_on = Door(), asyncio.Queue[float](), asyncio.Event()

        async def pause(seconds: float) -> None:
            paused.put_nowait(seconds)
            await goes_on.wait()
            goes_on.clear()

        with ThreadPoolExecutor(1) as executor:
            sessions = SessionTrials(door.attempt, executor, pause)
            watching = asyncio.create_task(sessions.watch())
            assert (await paused.get(), door.count) == (TRIAL_SECONDS, 0), "a start has opened one just now"
            for refusal, seconds in (
                ("", TRIAL_SECONDS),
                ("a wrong password", REPEAT_SECONDS),
                ("", TRIAL_SECONDS),
            ):
                door.refusal = refusal
                goes_on.set()
                assert await paused.get() == seconds
                assert sessions.view() == {"sessions_refused": refusal}
                assert [one.endswith(refusal) for one in sessions.sentences()] == ([True] if refusal else [])
            assert door.count == 3
            watching.cancel()

    asyncio.run(run())
