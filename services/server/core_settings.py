"""Conversion of the broker's settings to the settings of the core."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final

from commitlog import limits
from commitlog.log.retention import RetentionPolicy
from commitlog.records.message import Host
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import StartPosition
from services.settings.config import Address, ServeSettings
from txn.checkback import CheckBackPolicy

HOUR_MS: Final = 3_600_000


def core_settings(settings: ServeSettings, segment_bytes: int | None = None) -> BrokerSettings:
    """Return the settings of the core. `segment_bytes` is the segment size of a new store."""
    return BrokerSettings(
        broker_name=settings.broker_name,
        store_host=store_host(settings.advertise or settings.listen),
        segment_bytes=segment_bytes or settings.segment_bytes or limits.SEGMENT_BYTES_DEFAULT,
        auto_create_topics=settings.auto_create,
        queue_count=settings.queue_count,
        invisible_ms_min=settings.invisible_ms_min,
        auto_renew_lease_ms=settings.auto_renew_lease_ms,
        attempts_max=settings.attempts_max,
        group_start=StartPosition(settings.group_start),
        sync_flush=settings.flush == "sync",
        housekeeping_ms=settings.housekeeping_ms,
        timers_per_topic_max=settings.timers_per_topic,
        lite_topics_max=settings.lite_topics,
        lite_topic_bytes_max=settings.lite_topic_bytes,
        lite_subscriptions_per_client_max=settings.lite_subscriptions,
        timer_history_ms=int(settings.timer_history_hours * HOUR_MS),
        retention=RetentionPolicy(
            age_ms=None if settings.retain_hours is None else int(settings.retain_hours * HOUR_MS),
            log_bytes_max=settings.retain_bytes,
            group_pin_ms=int(settings.group_pin_hours * HOUR_MS),
        ),
        check_back=CheckBackPolicy(
            immunity_ms=settings.check_immunity_ms,
            interval_ms=settings.check_interval_ms,
            count_max=settings.check_count_max,
        ),
    )


def store_host(address: Address) -> Host:
    """Return the address that records contain as their store host, which must be an IP address."""
    try:
        host = ip_address(address.host)
    except ValueError:
        return "127.0.0.1", address.port
    return ("127.0.0.1" if host.is_unspecified else str(host)), address.port
