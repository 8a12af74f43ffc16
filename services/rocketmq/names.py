"""RocketMQ's own topics, and the properties of its timers, that an import must understand."""

from __future__ import annotations

from typing import Final

from services.broker.spine.topics import is_system

LEVEL_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
DISCARD_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
RETRY_PREFIX: Final = "%RETRY%"

DELAY_LEVEL: Final = "DELAY"
DELETED_KEY: Final = "TIMER_DEL_UNIQKEY"
CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"

_BROKER_TOPICS: Final = frozenset({"SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", DISCARD_TOPIC})


def is_broker_topic(name: str) -> bool:
    """Return whether a topic serves RocketMQ itself, not its users."""
    return is_system(name) or name in _BROKER_TOPICS
