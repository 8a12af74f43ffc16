"""Delivery of transaction check-backs by long polling, for producers without a Telemetry stream.

    poll of topics --> open --> check-back for one of the topics   --> response with the half message
                            --> timeout, or the broker stops       --> response without half messages

Rules:
- A poll is queued for each of its topics. When a poll has `count_max` check-backs or RECEIVE_BYTES_MAX bytes
  of messages, it is removed from all queues. The first check-back wakes the poll's task. The poll accepts
  further check-backs until the task runs.
- The check-backs for a topic are distributed among the polls in rotation. A poll that receives a check-back
  moves to the end of the queue.
- The first poll for a topic triggers the check-backs that are waiting for a producer. Each check-back then
  triggers the next check-back.
- Unsent check-backs use at most COMMANDS_WAITING_ALL_BYTES_MAX bytes plus one message. If this limit delays
  the check-backs for a topic, the check-backs resume when memory becomes available.
- To answer a check-back, a producer sends a regular request to end the transaction. If a poll is aborted, the
  topic's check-back policy determines when the check-backs are repeated.

Between two polls, a producer receives no check-backs. A check-back that becomes due between two polls waits
for the next poll and needs no timer. Memory usage is one entry per topic and open poll.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from commitlog import limits
from commitlog.records.message import Message
from services.broker.spine.values import CheckBackRequest
from services.live.clients.long_polls import LongPolls
from services.live.errors import BrokerBroken, StoreUnavailable
from services.live.transactions import ProducerView

Read = Callable[[], Message | None]
"""Returns a half message with timestamps in real time, or None if the message is damaged."""


@dataclass(slots=True, frozen=True)
class PolledHalf:
    """A transaction check-back and its half message."""

    transaction_id: str
    topic: str
    message: Message


@dataclass(slots=True, eq=False)
class CheckBackPoll:
    """An open poll and the check-backs to send in the response."""

    client_id: str
    count_max: int
    topics: tuple[str, ...]
    halves: list[PolledHalf] = field(default_factory=list)
    held_bytes: int = 0

    @property
    def has_room(self) -> bool:
        """Return whether the poll can accept another check-back."""
        return len(self.halves) < self.count_max and self.held_bytes < limits.RECEIVE_BYTES_MAX


class CheckBackPolls:
    """The open polls for each topic.

    `came` is called with the name of a topic when the first poll for the topic is opened.
    """

    def __init__(self, long_polls: LongPolls, came: Callable[[str], None]) -> None:
        self._long_polls, self._came = long_polls, came
        self._lines: dict[str, dict[CheckBackPoll, None]] = {}
        self._held_bytes = 0
        self._short = dict[str, None]()
        """Topics with an open poll whose check-backs are delayed by the memory limit."""

    @contextmanager
    def open_poll(self, client_id: str, topics: Iterable[str], count_max: int) -> Iterator[CheckBackPoll]:
        """Open a poll for `topics`, and close the poll at the end of the block."""
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
        """Wait until the poll has a check-back, the timeout expires, or the broker stops."""
        if not poll.halves:
            await self._long_polls.wait(poll, seconds)

    def set_held_bytes(self, poll: CheckBackPoll, count_bytes: int) -> None:
        """Set the memory usage of a poll's check-backs, in bytes.

        The caller must set the usage to 0 after sending the response. Delayed check-backs resume when memory
        becomes available.
        """
        self._held_bytes += count_bytes - poll.held_bytes
        poll.held_bytes = count_bytes
        assert self._held_bytes >= 0, "more bytes were released than held"
        if not self._is_full:
            short, self._short = self._short, {}
            for topic in short:
                if topic in self._lines:  # Without an open poll, the check-backs resume at the next poll.
                    with suppress(StoreUnavailable, BrokerBroken):
                        self._came(topic)

    def add_check_back(self, question: CheckBackRequest, read: Read) -> str:
        """Add a check-back to the next poll for its topic. Return the client id of the poll.

        Return "" if the topic has no open poll, the memory limit is reached, or the half message is damaged.
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
        """Return the producers with an open poll for `topic`, or for any topic if `topic` is empty."""
        lines = self._lines if not topic else {topic: self._lines.get(topic, {})}
        return [
            ProducerView(name, one.client_id, True) for name, line in sorted(lines.items()) for one in line
        ]
