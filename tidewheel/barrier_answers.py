"""Answers to check-backs over HTTP long polls, for barriers with a `Client` or `AsyncClient`.

    poll of topics --> check-backs --> each: look up the table --> commit, rollback or unknown at the broker
                   --> none, or a transient error --> the next poll, after a pause

Rules
1. Only the table decides (`Barrier.answer`). A failure is left to the next check-back.
2. The first poll precedes the block: an illegal topic or a missing right is raised there. An unreachable
   broker is retried, with a warning. A later refusal is logged as an error and retried.
3. The end of the block cancels open polls and waits for answers in progress.

A `Client` polls in one thread with its own loop; an `AsyncClient` in tasks of the application's loop.
Cost: one poll per POLL_TOPICS_MAX topics; the loop's executor reads the table.
Weak spot: the next poll waits for all answers to this one, each of which may wait for the fence's lock
timeout (1 s).
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from tidewheel.barrier_halves import Outcome, failures_left_to_check_backs
from tidewheel.client import halves
from tidewheel.client.clients import AsyncClient, Client, for_another_loop, own_name
from tidewheel.client.halves import POLL_TOPICS_MAX, End, Question
from tidewheel.client.patience import PASSING, PAUSES_S, pause_after, unless
from tidewheel.client.spans import Span
from tidewheel.errors import TidewheelError

QUESTIONS: Final = 16
WAIT: Final = "20s"
AT_ONCE: Final = "0s"
ENDS: Final[dict[Outcome, End]] = {
    Outcome.COMMITTED: "commit",
    Outcome.ROLLED_BACK: "rollback",
    Outcome.UNKNOWN: "unknown",
}

Answer = Callable[[str, Mapping[str, str]], Outcome]
"""Return the outcome for a message id and its properties; may block."""

log = logging.getLogger(__name__)


@asynccontextmanager
async def answers_in_this_loop(
    client: AsyncClient, topics: Sequence[str], answer: Answer
) -> AsyncIterator[None]:
    """Answer check-backs of topics (wire names) in tasks; raise a refusal by the broker."""
    stop = asyncio.Event()
    parts = [topics[first : first + POLL_TOPICS_MAX] for first in range(0, len(topics), POLL_TOPICS_MAX)]
    polls = [Polls(client, part, answer, stop) for part in parts]
    found = [await one.first() for one in polls]
    tasks = [asyncio.create_task(one.run(more)) for one, more in zip(polls, found, strict=True)]
    try:
        yield
    finally:
        stop.set()
        await asyncio.gather(*tasks)


@contextmanager
def answers_in_a_thread(client: Client, topics: Sequence[str], answer: Answer) -> Iterator[None]:
    """Answer check-backs in a separate thread; raise as `answers_in_this_loop` does."""
    begun = Future[Callable[[], None]]()
    thread = threading.Thread(
        target=lambda: asyncio.run(_in_a_loop(client, topics, answer, begun)),
        name="tidewheel-check-backs",
        daemon=True,
    )
    thread.start()
    stop = begun.result()

    def end() -> None:
        stop()
        thread.join()

    atexit.register(end)  # for a block that never exits; after atexit the thread could not end
    try:
        yield
    finally:
        atexit.unregister(end)
        end()


async def _in_a_loop(
    client: Client, topics: Sequence[str], answer: Answer, begun: Future[Callable[[], None]]
) -> None:
    """Set `begun` to a stop function, or to the first poll's error; answer until stopped."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    try:
        async with (
            for_another_loop(client) as own,
            answers_in_this_loop(own, topics, answer),
        ):
            begun.set_result(lambda: _call_in(loop, stop.set))
            await stop.wait()
    except BaseException as error:
        if begun.done():
            raise
        begun.set_exception(error)


def _call_in(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(call)


class Polls:
    """Sequential polls of some topics."""

    def __init__(
        self, client: AsyncClient, topics: Sequence[str], answer: Answer, stop: asyncio.Event
    ) -> None:
        self._client, self._topics, self._answer, self._stop = client, topics, answer, stop
        self._failures = 0

    async def first(self) -> list[Question]:
        """Return pending check-backs; raise a refusal by the broker."""
        try:
            return await self._asked(AT_ONCE)
        except PASSING as error:
            self._warn(error)
            return []

    async def run(self, questions: list[Question]) -> None:
        """Answer check-backs, and poll for more until the block ends."""
        while True:
            await asyncio.gather(*map(self._end, questions))
            if self._stop.is_set():
                return
            questions = await unless(self._stop, self._patiently()) or []

    async def _asked(self, wait: Span) -> list[Question]:
        poll = halves.check_backs(self._topics, count=QUESTIONS, wait=wait, name=own_name())
        return await self._client.run(poll)

    async def _patiently(self) -> list[Question]:
        """Poll; after an error, pause and return nothing."""
        if self._failures:
            await asyncio.sleep(pause_after(self._failures - 1))
        try:
            found = await self._asked(WAIT)
        except PASSING as error:
            self._warn(error)
        except TidewheelError as error:
            self._failures = len(PAUSES_S)
            log.error("Check-backs of %s are refused: %s", ", ".join(self._topics), error)
        else:
            self._failures = 0
            return found
        return []

    def _warn(self, error: TidewheelError) -> None:
        self._failures += 1
        log.warning("There are no check-backs of %s now: %s", ", ".join(self._topics), error)

    async def _end(self, question: Question) -> None:
        """Answer a check-back; after a failure the broker repeats it."""
        try:
            outcome = await asyncio.to_thread(self._answer, question.message_id, question.properties)
        except Exception:  # a driver's error must not stop the polls
            log.exception("The outcome of message %s is unknown for now", question.message_id)
            outcome = Outcome.UNKNOWN
        with failures_left_to_check_backs(question.message_id, outcome):
            await self._client.run(halves.end(question.transaction_id, ENDS[outcome]))
