"""Delivers check-backs by long poll to producers that have no stream.

    poll of topics --> open --> check-back for a half of a topic   --> answered with the half
                            --> timeout, or the broker stops       --> answered without halves

Rules:
- A poll is queued for each of its topics while it has fewer than `count_max` check-backs, with less than
  RECEIVE_BYTES_MAX of messages. The first check-back wakes the poll, which accepts further check-backs until
  its task runs.
- The check-backs of a topic rotate over the topic's polls, because each check-back moves its poll to the end
  of the queue.
- The first poll of a topic triggers the check-backs of halves that are waiting for a producer, and each
  check-back triggers the next check-back.
- Unsent check-backs hold at most COMMANDS_WAITING_ALL_BYTES_MAX bytes plus one message in memory. If this
  limit delays a half, the check-backs of its topic are restarted when memory becomes available.
- A producer answers a check-back with an ordinary request to end the transaction. If a poll is aborted, its
  check-backs are repeated according to the check-back times of the topic.

A producer gets no check-backs between two polls. A half that becomes due between two polls waits for the next
poll without a timer. An open poll costs one entry for each of its topics.
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
"""Return a half message with its times converted for callers, or None if the message is damaged."""


@dataclass(slots=True, frozen=True)
class PolledHalf:
    """A check-back of a transaction, with the half's message."""

    transaction_id: str
    topic: str
    message: Message


@dataclass(slots=True, eq=False)
class CheckBackPoll:
    """An open poll and its pending check-backs."""

    client_id: str
    count_max: int
    topics: tuple[str, ...]
    halves: list[PolledHalf] = field(default_factory=list)
    held_bytes: int = 0

    @property
    def has_room(self) -> bool:
        """Whether the poll can take another check-back."""
        return len(self.halves) < self.count_max and self.held_bytes < limits.RECEIVE_BYTES_MAX


class CheckBackPolls:
    """Open polls by topic. `came` is called with the topic when a topic gets its first open poll."""

    def __init__(self, long_polls: LongPolls, came: Callable[[str], None]) -> None:
        self._long_polls, self._came = long_polls, came
        self._lines: dict[str, dict[CheckBackPoll, None]] = {}
        self._held_bytes = 0
        self._short = dict[str, None]()
        """Topics with an open poll and a half that did not fit into the limit for `_held_bytes`."""

    @contextmanager
    def open_poll(self, client_id: str, topics: Iterable[str], count_max: int) -> Iterator[CheckBackPoll]:
        """Yield a poll of some topics, which is open until the block ends."""
        poll = CheckBackPoll(client_id, count_max, tuple(topics))
        alone = [topic for topic in poll.topics if topic not in self._lines]
        for topic in poll.topics:
            self._lines.setdefault(topic, {})[poll] = None
        try:
            for topic in alone:
                self._came(topic)
            yield poll
        finally:
            self._remove_poll(poll)

    async def wait(self, poll: CheckBackPoll, seconds: float) -> None:
        """Return when a poll has a check-back or times out, or when the broker stops."""
        if not poll.halves:
            await self._long_polls.wait(poll, seconds)

    def set_held_bytes(self, poll: CheckBackPoll, count_bytes: int) -> None:
        """Set the number of bytes that a poll's check-backs hold in memory, or 0 after the answer is sent."""
        self._held_bytes += count_bytes - poll.held_bytes
        poll.held_bytes = count_bytes
        assert self._held_bytes >= 0, "more bytes were released than held"
        if not self._is_full:
            short, self._short = self._short, {}
            for topic in short:
                if topic in self._lines:  # otherwise the next poll of the topic is its first poll
                    with suppress(StoreUnwell, BrokerBroken):
                        self._came(topic)

    def add_check_back(self, question: CheckBack, read: Read) -> str:
        """Give a check-back to the topic's next poll. Return the poll's client id, or "" if there is none."""
        line = self._lines.get(question.topic, {})
        if line and self._is_full:
            self._short[question.topic] = None
            return ""
        poll = next(iter(line), None)
        message = None if poll is None else read()
        if poll is None or message is None:
            return ""
        poll.halves.append(PolledHalf(question.transaction_id, question.topic, message))
        self.set_held_bytes(poll, poll.held_bytes + len(message.body))
        if poll.has_room:
            del line[poll]
            line[poll] = None
        else:
            self._remove_poll(poll)
        self._long_polls.notify(poll)
        return poll.client_id

    @property
    def _is_full(self) -> bool:
        return self._held_bytes >= limits.COMMANDS_WAITING_ALL_BYTES_MAX

    def _remove_poll(self, poll: CheckBackPoll) -> None:
        for topic in poll.topics:
            line = self._lines.get(topic, {})
            line.pop(poll, None)
            if not line:
                self._lines.pop(topic, None)

    def producer_views(self, topic: str = "") -> list[ProducerView]:
        """Return the producers with an open poll for a topic, or for any topic if the name is empty."""
        lines = self._lines if not topic else {topic: self._lines.get(topic, {})}
        return [
            ProducerView(name, one.client_id, True) for name, line in sorted(lines.items()) for one in line
        ]
