"""Check-backs by long polls, for producers without a stream.

    poll of topics --> open: it can be asked --> a question about a half of one of them --> answered with it
                                             --> its time is up, or the broker stops    --> answered with none

Rules:
- A poll is in the lines of its topics while it has room: fewer than `count_max` questions, whose messages
  have less than RECEIVE_BYTES_MAX. The first question wakes it, and it takes more until its turn comes.
- Polls of a topic are asked in turn: after a question a poll moves to the end of the line.
- The first poll of a topic starts the check-backs of halves that wait for a producer; each check-back starts
  the next one.
- Questions whose answers are not sent yet hold at most COMMANDS_WAITING_ALL_BYTES_MAX and one message. A
  half that found no room starts the check-backs of its topic again when there is room.
- The answer to a question is an ordinary end. A question whose poll breaks off is asked again by the
  check-back times of its topic.

Between two polls a producer cannot be asked; a half that is due then waits, without a timer, for the next.
Cost: an entry for each topic of an open poll.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from commitlog import limits
from commitlog.message import Message
from services.broker.spine.values import CheckBack
from services.live.errors import BrokerBroken, StoreUnwell
from services.live.long_polls import LongPolls
from services.live.transactions import ProducerView

Read = Callable[[], Message | None]
"""Return a half message, with times as callers have them; None if damage has taken the message."""


@dataclass(slots=True, frozen=True)
class AskedHalf:
    """A question how a transaction ended, and the half's message."""

    transaction_id: str
    topic: str
    message: Message


@dataclass(slots=True, eq=False)
class CheckBackPoll:
    """An open poll, and the questions that it has taken."""

    client_id: str
    count_max: int
    topics: tuple[str, ...]
    halves: list[AskedHalf] = field(default_factory=list)
    held_bytes: int = 0

    @property
    def has_room(self) -> bool:
        """Whether it takes another question."""
        return len(self.halves) < self.count_max and self.held_bytes < limits.RECEIVE_BYTES_MAX


class CheckBackPolls:
    """Open polls by topic; `came` is called with each topic that gets its first poll."""

    def __init__(self, long_polls: LongPolls, came: Callable[[str], None]) -> None:
        self._long_polls, self._came = long_polls, came
        self._lines: dict[str, dict[CheckBackPoll, None]] = {}
        self._held_bytes = 0
        self._short = dict[str, None]()
        """Topics with a poll and a half that found no room in `_held_bytes`."""

    @contextmanager
    def one(self, client_id: str, topics: Iterable[str], count_max: int) -> Iterator[CheckBackPoll]:
        """Yield a poll of topics, which can be asked within the block."""
        poll = CheckBackPoll(client_id, count_max, tuple(topics))
        alone = [topic for topic in poll.topics if topic not in self._lines]
        for topic in poll.topics:
            self._lines.setdefault(topic, {})[poll] = None
        try:
            for topic in alone:
                self._came(topic)
            yield poll
        finally:
            self._leave(poll)

    async def wait(self, poll: CheckBackPoll, seconds: float) -> None:
        """Return when a poll has a question, its time is up, or the broker stops."""
        if not poll.halves:
            await self._long_polls.wait(poll, seconds)

    def hold(self, poll: CheckBackPoll, count_bytes: int) -> None:
        """Set the bytes that a poll's questions hold in memory; 0 after the answer."""
        self._held_bytes += count_bytes - poll.held_bytes
        poll.held_bytes = count_bytes
        assert self._held_bytes >= 0, "more bytes were released than held"
        if not self._is_full:
            short, self._short = self._short, {}
            for topic in short:
                if topic in self._lines:  # else its next poll is a first one
                    with suppress(StoreUnwell, BrokerBroken):
                        self._came(topic)

    def ask(self, question: CheckBack, read: Read) -> str:
        """Ask the next poll of a topic that has room; return its client's id, empty when there is none."""
        line = self._lines.get(question.topic, {})
        if line and self._is_full:
            self._short[question.topic] = None
            return ""
        poll = next(iter(line), None)
        message = None if poll is None else read()
        if poll is None or message is None:
            return ""
        poll.halves.append(AskedHalf(question.transaction_id, question.topic, message))
        self.hold(poll, poll.held_bytes + len(message.body))
        if poll.has_room:
            del line[poll]
            line[poll] = None
        else:
            self._leave(poll)
        self._long_polls.notify(poll)
        return poll.client_id

    @property
    def _is_full(self) -> bool:
        return self._held_bytes >= limits.COMMANDS_WAITING_ALL_BYTES_MAX

    def _leave(self, poll: CheckBackPoll) -> None:
        for topic in poll.topics:
            line = self._lines.get(topic, {})
            line.pop(poll, None)
            if not line:
                self._lines.pop(topic, None)

    def views(self, topic: str = "") -> list[ProducerView]:
        """Return the producers of a topic, or of all, that wait for questions."""
        lines = self._lines if not topic else {topic: self._lines.get(topic, {})}
        return [
            ProducerView(name, one.client_id, True) for name, line in sorted(lines.items()) for one in line
        ]
