"""Records the topics that a request creates, so that its response can report a possibly misspelt name.

If `auto_create` is on, the core creates a missing topic when a message is sent to the topic or received from
it. The topics are looked up before and after the call of the core, in the same event loop iteration. Of
several concurrent requests, only the request that created the topic reports it. A repeated send reports
nothing, because the topic already exists.

Some properties of a message are checked only after the topic has been created, such as whether the topic
accepts the message type. If such a check fails, the error names the created topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from services.broker.spine.topics import Topics
from tidewheel.errors import ClientMistake, NotFound, RefusedByState, TidewheelError


class CreatedTopics:
    """The topics that were created by one request and are not yet reported."""

    def __init__(self) -> None:
        self._queue_counts: dict[str, int] = {}

    @contextmanager
    def recording(self, topics: Topics, names: Iterable[str]) -> Iterator[None]:
        """Record which of the named topics are created within the block. The block must not await."""
        missing = {name for name in names if name not in topics}
        yield
        self._queue_counts |= {name: topics.get(name).queue_count for name in missing if name in topics}

    def take(self, topic: str) -> int | None:
        """Return the queue count of a created topic, and mark the topic as reported.

        Return None if the topic was not created or has already been reported.
        """
        return self._queue_counts.pop(topic, None)

    def with_created_topic_note(self, refusal: TidewheelError, topic: str) -> TidewheelError:
        """Return the refusal of a message, with a note if the send created the topic.

        If the creation has already been reported, the refusal is returned unchanged.
        """
        if not isinstance(refusal, ClientMistake | NotFound | RefusedByState):
            return refusal  # The creation of the topic may never become durable.
        count = self.take(topic)
        if count is None:
            return refusal
        queues = f"{count} {'queue' if count == 1 else 'queues'}"
        said = f"The call created the topic {topic}, with {queues}: delete it if its name is misspelt."
        return type(refusal)(f"{refusal.detail} {said}".strip())
