"""Check-backs answered over long polls, for a barrier whose client has no stream of its own.

    poll of topics --> questions --> each: the table's answer --> commit, rollback or unknown at the broker
                   --> none, or an error that may pass --> the next poll, after a pause

Rules
1. Nothing but the table answers (`Barrier.answer`). What fails on the way is left to the next check-back.
2. The first poll is made before the block begins: a wrong topic or a missing right is an error there. A
   broker that is gone is waited for, with a warning. A later refusal is an error in the log, and asked again.
3. At the end of the block the open polls are cut off, and the answers under way are finished.

A `Client` has its polls in one thread with a loop of its own; an `AsyncClient` in tasks of the application's.
Cost: a poll for each POLL_TOPICS_MAX topics, and threads of the loop's executor, which look at the table.
Weak spot: the next poll waits for the answers to all questions of this one, each for a lock at most as long
as the fence does (1 s).
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
"""The table's answer for a message id and the properties of its message; it may block."""

log = logging.getLogger(__name__)


@asynccontextmanager
async def answers_in_this_loop(
    client: AsyncClient, topics: Sequence[str], answer: Answer
) -> AsyncIterator[None]:
    """Answer check-backs of topics, which have the wire's names, by tasks; raise a refusal of the broker."""
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
    """Answer the same by a thread of its own; raise the same."""
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

    atexit.register(end)  # of a block that is never left; later the thread could not end
    try:
        yield
    finally:
        atexit.unregister(end)
        end()


async def _in_a_loop(
    client: Client, topics: Sequence[str], answer: Answer, begun: Future[Callable[[], None]]
) -> None:
    """Answer until what `begun` gets is called; `begun` gets the error of a first poll, too."""
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
    """The polls of some topics, one after the other."""

    def __init__(
        self, client: AsyncClient, topics: Sequence[str], answer: Answer, stop: asyncio.Event
    ) -> None:
        self._client, self._topics, self._answer, self._stop = client, topics, answer, stop
        self._failures = 0

    async def first(self) -> list[Question]:
        """Return the questions that wait; raise a refusal of the broker."""
        try:
            return await self._asked(AT_ONCE)
        except PASSING as error:
            self._warn(error)
            return []

    async def run(self, questions: list[Question]) -> None:
        """Answer questions, and poll for more until the block ends."""
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
        """Answer a question; one that cannot be answered is asked again."""
        try:
            outcome = await asyncio.to_thread(self._answer, question.message_id, question.properties)
        except Exception:  # of a driver; the polls must outlive it
            log.exception("The outcome of message %s is unknown for now", question.message_id)
            outcome = Outcome.UNKNOWN
        with failures_left_to_check_backs(question.message_id, outcome):
            await self._client.run(halves.end(question.transaction_id, ENDS[outcome]))
