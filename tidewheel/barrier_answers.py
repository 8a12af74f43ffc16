"""Answers to transaction check-backs over HTTP long polls, for barriers with a `Client` or `AsyncClient`.

    poll of topics --> check-backs --> each: look up the table --> commit, rollback or unknown at the broker
                   --> none, or a transient error --> the next poll, after a pause

Rules
1. The table alone determines the outcome (`Barrier.answer`). If an answer fails, the broker repeats the
   check-back.
2. The first poll runs before the block is entered, so that an illegal topic or a missing permission is
   reported there. If the broker is unreachable, a warning is logged and the poll is retried. A later error is
   logged and the poll is retried.
3. When the block ends, open polls are cancelled and answers in progress are completed.

A `Client` polls in one thread with its own event loop. An `AsyncClient` polls in tasks of the application's
event loop. Cost: one poll per `POLL_TOPICS_MAX` topics. The table is read in the executor of the event loop.
Limitation: the next poll starts only after all check-backs of the current poll are answered, and each answer
may wait for the lock timeout of the fence (1 s).
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
"""A function that returns the outcome for a message id and its properties. The function may block."""

log = logging.getLogger(__name__)


@asynccontextmanager
async def answers_in_this_loop(
    client: AsyncClient, topics: Sequence[str], answer: Answer
) -> AsyncIterator[None]:
    """Answer check-backs of topics in tasks. Topic names include the namespace prefix.

    Raises errors of the first poll.
    """
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
    """Answer check-backs in a separate thread. Raises the errors of `answers_in_this_loop`."""
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

    atexit.register(end)  # for a block that is never exited, because the thread cannot end after atexit
    try:
        yield
    finally:
        atexit.unregister(end)
        end()


async def _in_a_loop(
    client: Client, topics: Sequence[str], answer: Answer, begun: Future[Callable[[], None]]
) -> None:
    """Set `begun` to a stop function, or to the error of the first poll.

    Then answer check-backs until stopped.
    """
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
    """Sequential polls for a set of topics."""

    def __init__(
        self, client: AsyncClient, topics: Sequence[str], answer: Answer, stop: asyncio.Event
    ) -> None:
        self._client, self._topics, self._answer, self._stop = client, topics, answer, stop
        self._failures = 0

    async def first(self) -> list[Question]:
        """Return pending check-backs. Raises permanent errors of the broker."""
        try:
            return await self._asked(AT_ONCE)
        except PASSING as error:
            self._warn(error)
            return []

    async def run(self, questions: list[Question]) -> None:
        """Answer check-backs and poll for more until the block ends."""
        while True:
            await asyncio.gather(*map(self._end, questions))
            if self._stop.is_set():
                return
            questions = await unless(self._stop, self._patiently()) or []

    async def _asked(self, wait: Span) -> list[Question]:
        poll = halves.check_backs(self._topics, count=QUESTIONS, wait=wait, name=own_name())
        return await self._client.run(poll)

    async def _patiently(self) -> list[Question]:
        """Poll once. After an error, pause and return an empty list."""
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
        """Answer a check-back. If the answer fails, the broker repeats the check-back."""
        try:
            outcome = await asyncio.to_thread(self._answer, question.message_id, question.properties)
        except Exception:  # a driver error must not stop the polls
            log.exception("The outcome of message %s is unknown for now", question.message_id)
            outcome = Outcome.UNKNOWN
        with failures_left_to_check_backs(question.message_id, outcome):
            await self._client.run(halves.end(question.transaction_id, ENDS[outcome]))
