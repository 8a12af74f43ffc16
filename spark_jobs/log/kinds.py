"""What a record is, in one word: by its topic, its transaction type, and whether it delivers a timer.

kind          records
normal        a message under the topic that it was sent to
commit        likewise, of type commit: it is also the outcome of the half that it names
delivered     likewise, of a timer that was due or (verb FIRE) wanted before
dead letter   of a group's dead letter topic
half          of RocketMQ's half topic: sent, not decided
outcome       how a half ended that was not committed: ROLLBACK or EXPIRED
check         how often a half was asked about
timer         of the timer topic, or of RocketMQ 4's topic of delay levels: to be delivered later
verb          what was done to a timer: CANCEL
ack           ranges of queue offsets that a group has done with
lease         leases that outlive a restart or ended unacknowledged
group, topic, schedule, retention    what was set, made or deleted
system        of another topic that brokers keep for themselves
damage        bytes that are no record
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from commitlog.record import TYPE_COMMIT, TYPE_MASK
from spark_jobs.log.ragged import Flags, Integers
from txn.half import CHECK_TOPIC, HALF_TOPIC, OUTCOME_TOPIC

KINDS: Final = (
    "normal", "commit", "delivered", "dead letter", "half", "outcome", "check", "timer", "verb", "ack",
    "lease", "group", "topic", "schedule", "retention", "system", "damage",
)  # fmt: skip
MESSAGES: Final = ("normal", "commit", "delivered", "dead letter")
"""The kinds that consumers can get."""

_BY_TOPIC: Final = {
    HALF_TOPIC: "half",
    OUTCOME_TOPIC: "outcome",
    CHECK_TOPIC: "check",
    "rmq_sys_wheel_timer": "timer",
    "TW_SYS_VERB": "verb",
    "TW_SYS_ACK": "ack",
    "TW_SYS_LEASE": "lease",
    "TW_SYS_GROUP": "group",
    "TW_SYS_TOPIC": "topic",
    "TW_SYS_SCHEDULE": "schedule",
    "TW_SYS_RETENTION": "retention",
}
TOPICS: Final = {kind: topic for topic, kind in _BY_TOPIC.items()}
_BY_PREFIX: Final = {
    "%DLQ%": "dead letter",
    "TW_SYS_": "system",
    "RMQ_SYS_": "system",
    "rmq_sys_": "system",
    "SCHEDULE_TOPIC_": "timer",
    "%RETRY%": "normal",
}


def kinds_of(topics: pa.DictionaryArray, sys_flags: Integers, delivers_timer: Flags) -> pa.StringArray:
    """The kind of each record."""
    by_topic = np.array([KINDS.index(of_topic(name)) for name in topics.dictionary.to_pylist()], np.int8)
    codes = by_topic[topics.indices.to_numpy()]
    is_normal = codes == 0
    codes[is_normal & (sys_flags & TYPE_MASK == TYPE_COMMIT)] = KINDS.index("commit")
    codes[is_normal & delivers_timer] = KINDS.index("delivered")
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(KINDS)).dictionary_decode()


def of_topic(name: str) -> str:
    """The kind of a topic's records; those of a user's topic are "normal" until more is known of them."""
    if name in _BY_TOPIC:
        return _BY_TOPIC[name]
    return next((kind for prefix, kind in _BY_PREFIX.items() if name.startswith(prefix)), "normal")
