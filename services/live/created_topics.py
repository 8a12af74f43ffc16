"""Records which topics sends create, so that the answer to a send can report a misspelt topic.

The core creates a topic when a message is sent to it and `auto_create` is on. The topics are looked up before
and after the core stores the messages, in the same event loop step. Of several concurrent sends, only the one
that created the topic reports it. A repeated send reports nothing, because its topic exists.

The core checks some properties of a message only after it has created the topic, for example whether the
topic accepts a message of this type. The refusal of such a message names the topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from commitlog.records.message import Message
from services.broker.spine.topics import Topics
from tidewheel.errors import ClientMistake, NotFound, RefusedByState, TidewheelError


class CreatedTopics:
    """The topics that the sends of one request created, and have not been reported yet."""

    def __init__(self) -> None:
        self._queue_counts: dict[str, int] = {}

    @contextmanager
    def recording(self, topics: Topics, messages: Sequence[Message]) -> Iterator[None]:
        """Record the topics of messages that are created within the block, which must not await."""
        missing = {one.topic for one in messages if one.topic not in topics}
        yield
        self._queue_counts |= {name: topics.get(name).queue_count for name in missing if name in topics}

    def take(self, topic: str) -> int | None:
        """Return the number of queues of a topic that was created, once. Return None for another topic."""
        return self._queue_counts.pop(topic, None)

    def named_in(self, refusal: TidewheelError, topic: str) -> TidewheelError:
        """Return the refusal of a message to a topic. If the topic was created, and has not been reported,
        add this to the detail.
        """
        if not isinstance(refusal, ClientMistake | NotFound | RefusedByState):
            return refusal  # The broker may be unable to keep the topic.
        count = self.take(topic)
        if count is None:
            return refusal
        queues = f"{count} {'queue' if count == 1 else 'queues'}"
        said = f"The call created the topic {topic}, with {queues}: delete it if its name is misspelt."
        return type(refusal)(f"{refusal.detail} {said}".strip())
