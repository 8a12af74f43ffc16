"""The newest part of a log as input of a proposal: its topics, with samples of their messages.

Cost: one pass over at most `BYTES_READ_MAX` of the log, record by record, which takes some seconds.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from commitlog.facts import acks
from commitlog.log.published_log import open_log
from spark_jobs.log.parts import part_batches
from spark_jobs.log.scan.decode import ALL, Wanted
from spark_jobs.log.scan.slices import slices
from spark_jobs.proposing.facts import LogFacts, Message, Topic
from tidewheel import property_names

BYTES_READ_MAX: Final = 64 * 1024 * 1024
KEYS_SAMPLED: Final = 300
"""Maximum number of messages kept per topic: the newest, one per key."""

_WANTED: Final = Wanted(
    (
        "physical_offset", "kind", "topic", "store_ms", "body", "first_key", "real_topic", "due_ms",
        "cancels", "user_properties",
    ),
    bodies=ALL,
    kinds=frozenset(("normal", "commit", "delivered", "half", "timer", "ack")),
)  # fmt: skip
_UNDER_REAL_TOPIC: Final = ("half", "timer")
_RETRY: Final = "%RETRY%"
_PREFIXES_MAX: Final = 100
"""Maximum number of timer key prefixes counted per topic. The deadlines of all orders have the same one."""

Record = Mapping[str, Any]


@dataclass(slots=True)
class _Tally:
    """Running counts and sampled messages of one topic."""

    kinds: Counter[str] = field(default_factory=Counter)
    without_key: int = 0
    messages: dict[str, Record] = field(default_factory=dict)
    groups: Counter[str] = field(default_factory=Counter)
    cancels: Counter[str] = field(default_factory=Counter)
    timer_keys: Counter[str | None] = field(default_factory=Counter)

    def add(self, record: Record) -> None:
        """Count a record, and keep it as the newest message of its key.

        A half is not kept, and a delivery does not replace another message.
        """
        self.kinds[record["kind"]] += 1
        key = record["first_key"] or ""
        if record["kind"] == "half":
            return
        if not key:
            self.without_key += 1
        elif record["kind"] != "delivered" or key not in self.messages:
            self.messages.pop(key, None)
            self.messages[key] = record
            if len(self.messages) > KEYS_SAMPLED:
                del self.messages[next(iter(self.messages))]

    def add_timer_key(self, record: Record) -> None:
        """Count the prefix of a timer key before the message's key."""
        timer_key = dict(record["user_properties"] or ()).get(property_names.TIMER_KEY)
        if timer_key is None:
            return
        key = record["first_key"] or ""
        prefix = timer_key.removesuffix(key) if key and timer_key.endswith(key) else None
        is_known = prefix in self.timer_keys or len(self.timer_keys) < _PREFIXES_MAX
        self.timer_keys[prefix if is_known else None] += 1


def read(store: Path, bytes_max: int = BYTES_READ_MAX) -> LogFacts:
    """Return the facts of the newest part of a store's log, at most `bytes_max` bytes.

    Raise `NotAStore`, `StoreTooNew` or `NoRecords`.
    """
    log = open_log(store)
    begin = max(log.first_offset, log.end_offset - bytes_max)
    tallies: defaultdict[str, _Tally] = defaultdict(_Tally)
    timers: dict[int, str] = {}
    records = first_ms = last_ms = 0
    for part in slices(log, first_offset=begin):
        for batch in part_batches(part, _WANTED):
            for record in batch.to_pylist():
                records += 1
                first_ms = first_ms or record["store_ms"]
                last_ms = max(last_ms, record["store_ms"])
                _count(record, tallies, timers)
    topics = [_topic(name, tally) for name, tally in sorted(tallies.items())]
    is_from_first = begin == log.first_offset
    return LogFacts(tuple(topics), records, last_ms, begin == 0, first_ms if is_from_first else 0)


def _count(record: Record, tallies: defaultdict[str, _Tally], timers: dict[int, str]) -> None:
    kind = record["kind"]
    if kind == "ack":
        for group, topic, count in _acknowledged(record["body"]):
            tallies[topic].groups[group] += count
        return
    topic = record["real_topic"] if kind in _UNDER_REAL_TOPIC else record["topic"]
    if not topic or topic.startswith(_RETRY):
        return
    if kind == "timer":
        timers[record["physical_offset"]] = topic
        tallies[topic].add_timer_key(record)
    if record["cancels"] and kind != "delivered":
        cancelled = timers.get(int(record["cancels"].split(" ")[0]))
        if cancelled:
            tallies[topic].cancels[cancelled] += 1
    tallies[topic].add(record)


def _acknowledged(body: bytes) -> Iterator[tuple[str, str, int]]:
    """Yield group, topic and number of messages of an acknowledgement record.

    Skipped messages and topics that begin with `%` (retries and dead letters) are left out.
    """
    for group, topic, _, ranges, is_passed in acks.decode(body):
        if not is_passed and not topic.startswith("%"):
            yield group, topic, sum(count for _, count in ranges)


def _topic(name: str, tally: _Tally) -> Topic:
    return Topic(
        name,
        tally.kinds["half"],
        tally.kinds["normal"],
        tally.kinds["timer"],
        tally.kinds["delivered"],
        tally.without_key,
        tuple(_message(key, record) for key, record in tally.messages.items()),
        dict(tally.groups),
        dict(tally.cancels),
        dict(tally.timer_keys),
    )


def _message(key: str, record: Record) -> Message:
    try:
        body = json.loads(record["body"] or b"")
    except (ValueError, RecursionError):
        body = {}
    return Message(key, body if isinstance(body, dict) else {}, record["store_ms"], record["due_ms"])
