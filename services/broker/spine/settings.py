"""The settings of the broker core."""

from __future__ import annotations

from dataclasses import dataclass, field

from commitlog import limits
from commitlog.log.retention import RetentionPolicy
from commitlog.records.message import Host
from services.broker.spine.values import StartPosition
from txn.checkback import CheckBackPolicy


@dataclass(slots=True, frozen=True, kw_only=True)
class BrokerSettings:
    """The settings of the broker core. Times are in milliseconds and sizes in bytes.

    `segment_bytes` applies only to new stores. An existing store keeps its segment size.
    """

    broker_name: str = "tidewheel"
    store_host: Host = ("127.0.0.1", 8081)
    segment_bytes: int = limits.SEGMENT_BYTES_DEFAULT
    auto_create_topics: bool = True
    queue_count: int = limits.QUEUE_COUNT_DEFAULT
    tail_entries_max: int = limits.TAIL_ENTRIES_MAX
    cut_queues_max: int = limits.CUT_QUEUES_MAX
    invisible_ms_min: int = limits.INVISIBLE_MS_MIN
    auto_renew_lease_ms: int = limits.AUTO_RENEW_LEASE_MS
    attempts_max: int = limits.ATTEMPTS_DEFAULT
    group_start: StartPosition = StartPosition.EARLIEST
    delay_ms_max: int = limits.DELAY_MS_MAX
    dedupe_ms: int = limits.DEDUPE_MS
    timer_history_ms: int = limits.TIMER_HISTORY_MS
    timers_per_topic_max: int = limits.TIMERS_PER_TOPIC_MAX
    lite_topics_max: int = limits.LITE_TOPICS_MAX
    lite_topic_bytes_max: int = limits.LITE_TOPIC_BYTES_DEFAULT
    lite_subscriptions_per_client_max: int = limits.LITE_SUBSCRIPTIONS_PER_CLIENT_MAX
    sync_flush: bool = True
    retention: RetentionPolicy = field(default_factory=RetentionPolicy)
    housekeeping_ms: int = 10_000
    check_back: CheckBackPolicy = field(default_factory=CheckBackPolicy)
