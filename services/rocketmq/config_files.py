"""The small files beside an Apache RocketMQ log: topics, offsets, and how far its timers are.

    config/topics.json           topicConfigTable: name -> queue counts, permission, attributes
    config/consumerOffset.json   offsetTable: "topic@group" -> queue -> next offset
    config/delayOffset.json      offsetTable: delay level -> next offset in SCHEDULE_TOPIC_XXXX
    config/timercheck            seven 8-byte integers: read up to (ms), timer log position, next offset in
                                 rmq_sys_wheel_timer, the same of a master, state version, timestamp, counter

RocketMQ's JSON is not quite JSON: integer keys come unquoted. It moves the old file to `.bak` before it
writes a new one, so a missing or torn file gives way to that; what is wrong in both is told, not guessed.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from commitlog.records.kinds import HALF_TOPIC
from commitlog.records.message import MessageType
from services.store.read_only.reading import Reader

TOPICS: Final = "config/topics.json"
CONSUMER_OFFSETS: Final = "config/consumerOffset.json"
DELAY_OFFSETS: Final = "config/delayOffset.json"
GROUPS: Final = "config/subscriptionGroup.json"
TIMER_CHECK: Final = "config/timercheck"
TIMER_CHECK_BYTES: Final = 4096
TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"

_BARE_KEY: Final = re.compile(r'"(?:[^"\\]|\\.)*"|([{,]\s*)(-?\d+)(?=\s*:)')
_TIMER_CHECK: Final = struct.Struct(">7q")
_MESSAGE_TYPE: Final = "message.type"
_QUEUE_TYPE: Final = "queue.type"
_READ_WRITE: Final = 6


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic as RocketMQ's configuration has it; one without a message type takes all.

    `has_batches`: its records hold several messages each; told on export only.
    """

    name: str
    queue_count: int
    message_type: MessageType
    has_batches: bool = False


@dataclass(frozen=True, slots=True)
class TimerCheck:
    """How far RocketMQ's wheel is: it has delivered up to `read_ms`, of records below `queue_offset`."""

    read_ms: int = 0
    queue_offset: int = 0


@dataclass(slots=True)
class RocketmqConfig:
    """What the config files of a store say; `notes` tells what could not be read."""

    topics: dict[str, TopicConfig] = field(default_factory=dict)
    group_offsets: dict[tuple[str, str], dict[int, int]] = field(default_factory=dict)
    delay_offsets: dict[int, int] = field(default_factory=dict)
    timer_check: TimerCheck | None = None
    notes: list[str] = field(default_factory=list)

    def half_offset(self) -> int:
        """Return the queue offset below which every half has ended or was written again."""
        return self.group_offsets.get((HALF_TOPIC, TRANSACTION_GROUP), {}).get(0, 0)


def read_config(files: Reader) -> RocketmqConfig:
    """Return the config of the store whose files these are; what is missing stays empty."""
    config = RocketmqConfig()
    for name, entry in _table(files, TOPICS, "topicConfigTable", config.notes).items():
        config.topics[name] = _topic(name, entry)
    for name, offsets in _table(files, CONSUMER_OFFSETS, "offsetTable", config.notes).items():
        topic, _, group = name.partition("@")
        config.group_offsets[(topic, group)] = _integers(offsets)
    config.delay_offsets = _integers(_table(files, DELAY_OFFSETS, "offsetTable", config.notes))
    config.timer_check = _timer_check(files)
    return config


def parse_json(text: str) -> Any:
    """Return JSON as RocketMQ writes it, integer keys unquoted; raise ValueError."""
    return json.loads(_BARE_KEY.sub(_quoted, text))


def topics_json(topics: Mapping[str, TopicConfig], now_ms: int) -> str:
    """`config/topics.json` for these topics."""
    table = {
        topic.name: {
            "attributes": {_MESSAGE_TYPE: topic.message_type.value}
            | ({_QUEUE_TYPE: "BatchCQ"} if topic.has_batches else {}),
            "order": False,
            "perm": _READ_WRITE,
            "readQueueNums": topic.queue_count,
            "topicFilterType": "SINGLE_TAG",
            "topicName": topic.name,
            "topicSysFlag": 0,
            "writeQueueNums": topic.queue_count,
        }
        for topic in topics.values()
    }
    return json.dumps({"dataVersion": _version(now_ms), "topicConfigTable": table}, indent="\t")


def consumer_offsets_json(offsets: Mapping[tuple[str, str], Mapping[int, int]], now_ms: int) -> str:
    """`config/consumerOffset.json`; keys are quoted, which RocketMQ reads as well."""
    table = {f"{topic}@{group}": dict(queues) for (topic, group), queues in offsets.items()}
    return json.dumps({"dataVersion": _version(now_ms), "offsetTable": table}, indent="\t")


def delay_offsets_json(offsets: Mapping[int, int], now_ms: int) -> str:
    """`config/delayOffset.json`."""
    return json.dumps({"dataVersion": _version(now_ms), "offsetTable": dict(offsets)}, indent="\t")


def groups_json(groups: list[str], now_ms: int) -> str:
    """`config/subscriptionGroup.json`, with RocketMQ's own defaults for each group."""
    table = {group: {"groupName": group, "consumeEnable": True, "retryQueueNums": 1} for group in groups}
    return json.dumps({"dataVersion": _version(now_ms), "subscriptionGroupTable": table}, indent="\t")


def timer_check_bytes(check: TimerCheck, now_ms: int) -> bytes:
    """`config/timercheck` of a wheel that has no timer log yet."""
    fields = _TIMER_CHECK.pack(check.read_ms, 0, check.queue_offset, check.queue_offset, 0, now_ms, 0)
    return fields.ljust(TIMER_CHECK_BYTES, b"\0")


def _table(files: Reader, path: str, member: str, notes: list[str]) -> dict[str, Any]:
    """One member of a JSON file or of its `.bak`; empty if neither is there or can be read."""
    found = [name for name in (path, f"{path}.bak") if files.size(name) > 0]
    for name in found:
        try:
            table = parse_json(files.read(name, 0, files.size(name)).decode())[member]
        except (ValueError, KeyError, TypeError):
            notes.append(f"{name} cannot be read as RocketMQ's JSON.")
            continue
        if isinstance(table, dict):
            return table
    return {}


def _quoted(match: re.Match[str]) -> str:
    return f'{match[1]}"{match[2]}"' if match[2] else match[0]


def _integers(table: Any) -> dict[int, int]:
    return {int(key): int(value) for key, value in table.items()} if isinstance(table, dict) else {}


def _topic(name: str, entry: Mapping[str, Any]) -> TopicConfig:
    queue_count = max(int(entry.get("readQueueNums", 1)), int(entry.get("writeQueueNums", 1)), 1)
    attributes = entry.get("attributes") or {}
    wanted = str(attributes.get(_MESSAGE_TYPE) or attributes.get(f"+{_MESSAGE_TYPE}") or "")
    known = {one.value: one for one in MessageType}
    return TopicConfig(name, queue_count, known.get(wanted, MessageType.MIXED))


def _version(now_ms: int) -> dict[str, int]:
    return {"counter": 1, "stateVersion": 0, "timestamp": now_ms}


def _timer_check(files: Reader) -> TimerCheck | None:
    if files.size(TIMER_CHECK) < _TIMER_CHECK.size:
        return None
    fields = _TIMER_CHECK.unpack(files.read(TIMER_CHECK, 0, _TIMER_CHECK.size))
    return TimerCheck(read_ms=fields[0], queue_offset=fields[2])
