"""The reasons for which a message that was delivered to a queue is not finished, by consumer group.

The events of `tidewheel explain` name the place of each message in its queue and the groups that finished it.
The other groups of its topic have not finished it. For each of them, the reason is derived from its policy,
its consumers and its progress in this queue. A message that was sent back has a new place, and what groups
finished before no longer counts. From the dead letters of a group of this topic, only this group receives it;
for the other groups, the former place counts.
A timer or a half that has not ended has no place in a queue, and its state contains the reason.

Cost: a request for each topic, and one for each group that has not finished a message.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol

from commitlog.records.kinds import DEAD_LETTER_PREFIX
from services.status.judgement import counted, why_behind
from tidewheel.errors import NotFound

MESSAGES_MAX: Final = 5
GROUPS_MAX: Final = 10
ACKNOWLEDGED: Final = "acknowledged"
"""How the state of a message begins that is in a queue and not discarded or given up (`services.explain`)."""
FINISHED: Final = "finished"
"""The event of a message that was withdrawn from a group, or given up for it."""
DEAD_LETTER: Final = "dead letter"
"""The event of a message that a group has given up. Its place is that among the dead letters of the group."""
SENT_BACK: Final = "sent back"
"""The event of a message that was redriven, or moved to a topic in which it was before."""
REDRIVEN_FROM: Final = f"from the dead letters of {DEAD_LETTER_PREFIX}"
"""How the note of `SENT_BACK` begins for a dead letter (`services.explain`); its group and offset follow."""

Answer = dict[str, Any]


class Asked(Protocol):
    """The requests that are used of a broker's HTTP interface."""

    def get(self, *path: str) -> Any:
        """Return an answer in JSON; raise `TidewheelError`."""


class Waiting(NamedTuple):
    """A message that a group has not finished, and the reason; `group` is empty if no group receives it."""

    topic: str
    message_id: str
    group: str
    why: str


def waiting(broker: Asked, told: Answer) -> list[Waiting]:
    """Return the reasons for the first messages and groups of an answer of `/api/explain`."""
    return [
        one
        for message in told["messages"][:MESSAGES_MAX]
        if message["state"].startswith(ACKNOWLEDGED)
        for one in _of_message(broker, message, told["events"])
    ]


def _of_message(broker: Asked, message: Answer, events: list[Answer]) -> Iterator[Waiting]:
    topic, message_id = message["topic"], message["message_id"]
    whole = [one for one in events if (one["topic"], one["message_id"]) == (topic, message_id)]
    own = since_sent_back(whole)
    place, done = place_in(own), done_in(own)
    if place is None:
        return
    of_group = redriven_for(own[0], whole)
    with suppress(NotFound):  # the topic was deleted
        groups = [one["group"] for one in broker.get("topics", topic, "use")["groups"]]
        if not groups:
            yield Waiting(topic, message_id, "", f"no group receives the topic {topic}")
        elif of_group and of_group not in groups:
            gone = f"the group {of_group}, to which alone it was sent back, does not receive {topic}"
            yield Waiting(topic, message_id, "", gone)
        if of_group:
            done = done_in(whole) - {of_group} | done & {of_group}
        for name in [one for one in groups if one not in done][:GROUPS_MAX]:
            its_place = place if of_group in ("", name) else place_in(whole)
            if why := why_unfinished(broker.get("groups", name), topic, its_place):
                yield Waiting(topic, message_id, name, why)


def place_in(events: list[Answer]) -> tuple[int, int] | None:
    """Return the queue and the queue offset of a message by its first event that has them."""
    places = ((one["queue_id"], int(one["queue_offset"])) for one in events if one["queue_id"] is not None)
    return next(places, None)


def done_in(events: list[Answer]) -> set[str]:
    """Return the groups that finished a message in these events."""
    return {one["group"] for one in events if one["what"] in (ACKNOWLEDGED, FINISHED)}


def since_sent_back(events: list[Answer]) -> list[Answer]:
    """Return the events of a message since it was last sent back, or all if it never was."""
    starts = [at for at, one in enumerate(events) if one["what"] == SENT_BACK]
    return events[starts[-1] :] if starts else events


def redriven_for(event: Answer, events: list[Answer]) -> str:
    """Return the group that alone receives a message since an event, or an empty string if all groups do.

    A message is redriven to the group alone in the topic in which this group has given it up.
    """
    if event["what"] != SENT_BACK or not event["note"].startswith(REDRIVEN_FROM):
        return ""
    group: str = event["note"].removeprefix(REDRIVEN_FROM).rpartition(":")[0]
    given_up_by = {one["group"] for one in events if one["what"] == DEAD_LETTER}
    return group if group in given_up_by else ""


def why_unfinished(group: Answer, topic: str, place: tuple[int, int] | None) -> str:
    """Return why a group has not finished the message at a queue and offset; empty if it has passed it."""
    if place is None:
        return ""
    queue_id, offset = place
    queues = (one for one in group["queues"] if (one["topic"], one["queue_id"]) == (topic, queue_id))
    queue = next(queues, None)
    if queue is None or int(queue["committed_offset"]) > offset:
        return ""
    said = [why_behind(group) or f"{counted(group['consumers'], 'consumer')} of the group connected"]
    if before := offset - int(queue["committed_offset"]):
        said.append(f"up to {before:,} unfinished before it in queue {queue_id}")
    if queue["in_flight"]:
        said.append(f"{queue['in_flight']:,} of the queue leased now")
    if queue["waiting"]:
        said.append(f"{queue['waiting']:,} of the queue to be delivered again")
    return "; ".join(said)
