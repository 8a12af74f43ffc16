"""Delivers check-backs by long poll to producers that have no Telemetry stream.

    poll of topics --> open --> check-back for a half of a topic   --> response with the half
                            --> timeout, or the broker stops       --> response without halves

Rules:
- A poll is queued for each of its topics while it has fewer than `count_max` check-backs, with less than
  RECEIVE_BYTES_MAX of messages. The first check-back wakes the poll, which accepts further check-backs until
  its task runs.
- The check-backs of a topic rotate over the topic's polls, because each check-back moves its poll to the end
  of the queue.
- The first open poll of a topic triggers the check-backs of half messages that are waiting for a producer.
  Each check-back then triggers the next check-back.
- Unsent check-backs hold at most COMMANDS_WAITING_ALL_BYTES_MAX bytes plus one message in memory. If the
  limit delays a half message, the check-backs of its topic are restarted when memory becomes available.
- A producer answers a check-back with an ordinary request to end the transaction. If a poll is aborted, its
  check-backs are repeated according to the check-back times of the topic.

A producer receives no check-backs between two polls. A half message that becomes due between two polls waits
for the next poll, and needs no timer. An open poll costs one entry for each of its topics.
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
    """A check-back of a transaction, with the half message."""

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
        """Whether the poll can accept another check-back."""
        return len(self.halves) < self.count_max and self.held_bytes < limits.RECEIVE_BYTES_MAX


class CheckBackPolls:
    """The open polls by topic; `came` is called with each topic that gets its first open poll."""

    def __init__(self, long_polls: LongPolls, came: Callable[[str], None]) -> None:
        self._long_polls, self._came = long_polls, came
        self._lines: dict[str, dict[CheckBackPoll, None]] = {}
        self._held_bytes = 0
        self._short = dict[str, None]()
        """The topics with an open poll and a half message that the limit for `_held_bytes` delays."""

    @contextmanager
    def open_poll(self, client_id: str, topics: Iterable[str], count_max: int) -> Iterator[CheckBackPoll]:
        """Open a poll of `topics` for the duration of the `with` block."""
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
        """Wait until a poll has a check-back, `seconds` have passed, or the broker stops."""
        if not poll.halves:
            await self._long_polls.wait(poll, seconds)

    def set_held_bytes(self, poll: CheckBackPoll, count_bytes: int) -> None:
        """Set the number of bytes that a poll's check-backs hold in memory, or 0 after the response is sent.

        If memory becomes available, restart the check-backs of the topics that were delayed.
        """
        self._held_bytes += count_bytes - poll.held_bytes
        poll.held_bytes = count_bytes
        assert self._held_bytes >= 0, "more bytes were released than held"
        if not self._is_full:
            short, self._short = self._short, {}
            for topic in short:
                if topic in self._lines:  # Without an open poll, the next poll restarts the check-backs.
                    with suppress(StoreUnwell, BrokerBroken):
                        self._came(topic)

    def add_check_back(self, question: CheckBack, read: Read) -> str:
        """Add a check-back to the next poll of its topic, and return the poll's client id.

        Return "" if the topic has no open poll, if memory is short, or if the half message is damaged.
        """
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
