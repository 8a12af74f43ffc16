"""Messages that a group failed on, and would have been given again by RocketMQ.

RocketMQ moves the group's offset past such a message and writes a copy for that group into a retry topic,
at once or through a delay level. Tidewheel gives the message itself again; so its offset is left open in the
group's progress. The original is found by its topic and message id, in one more pass over the log, which
only a store with pending retries needs. A copy whose original retention has deleted is told of in a note.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from commitlog.records import properties
from commitlog.records.record import TYPE_COMMIT, TYPE_NORMAL, Record
from services.rocketmq.config_files import RocketmqConfig
from services.rocketmq.names import RETRY_PREFIX
from services.rocketmq.source import RocketmqLog
from tidewheel import property_names

GroupQueue = tuple[str, str, int]
"""(group, topic, queue id)."""

_ORIGIN_TOPIC = "RETRY_TOPIC"


class Retry(NamedTuple):
    """A pending copy: which group failed on which message."""

    group: str
    topic: str
    message_id: str


def retry_of(record: Record, retry_topic: str, config: RocketmqConfig) -> Retry:
    """Return what a record of a retry topic is a copy of.

    A retry topic is `%RETRY%group`; for POP consumers `%RETRY%group_topic` or `%RETRY%group+topic`.
    """
    name = retry_topic.removeprefix(RETRY_PREFIX)
    group = next((group for topic, group in config.group_offsets if topic == retry_topic), "")
    group = group or name.partition("+")[0]
    topic = properties.value_of(record.properties, _ORIGIN_TOPIC)
    topic = topic or name.removeprefix(group).lstrip("+_")
    return Retry(group, topic, properties.value_of(record.properties, property_names.MESSAGE_ID))


def find_unfinished(
    log: RocketmqLog, config: RocketmqConfig, retries: Iterable[Retry], say: Callable[[str], None]
) -> dict[GroupQueue, set[int]]:
    """Return the queue offsets that each group has to be given again."""
    wanted: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for retry in retries:
        wanted[(retry.topic, retry.message_id)].add(retry.group)
    unfinished: defaultdict[GroupQueue, set[int]] = defaultdict(set)
    if not wanted:
        return unfinished
    say("looking for the messages that groups have to retry")
    missing = set(wanted)
    topics = {topic for topic, _ in wanted}
    for found in log.records():
        record = found.record
        if record.topic not in topics or record.type not in (TYPE_NORMAL, TYPE_COMMIT):
            continue
        name = (record.topic, properties.value_of(record.properties, property_names.MESSAGE_ID))
        for group in wanted.get(name, ()):
            unfinished[(group, record.topic, record.queue_id)].add(record.queue_offset)
            missing.discard(name)
    config.notes.extend(
        f"A message of {topic} with id {message_id!r} was to be retried, but the log no longer holds it."
        for topic, message_id in sorted(missing)
    )
    return unfinished
