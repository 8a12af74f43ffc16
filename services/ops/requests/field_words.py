"""Names of fields in other brokers and libraries, which error messages for unknown fields use."""

from __future__ import annotations

from typing import Final

_SPANS: Final = ("in", "after", "wait", "lease", "to")

SYNONYMS: Final[dict[str, tuple[str, ...]]] = {
    "delay": _SPANS,
    "delay_ms": _SPANS,
    "delay_seconds": _SPANS,
    "delayseconds": _SPANS,
    "deliver_after": _SPANS,
    "in": ("to", "after", "wait"),
    "due": ("at", "to"),
    "time": ("at", "to"),
    "when": ("at", "to"),
    "deliver_at": ("at", "to"),
    "scheduled_at": ("at", "to"),
    "delivery_time": ("at", "to"),
    "at": ("to",),
    "data": ("body",),
    "message": ("body",),
    "payload": ("body",),
    "text": ("body",),
    "value": ("body",),
    "json": ("body_json",),
    "base64": ("body_base64",),
    "key": ("keys", "timer_key"),
    "tags": ("tag", "filter"),
    "attributes": ("properties",),
    "headers": ("properties",),
    "fields": ("properties",),
    "group": ("message_group",),
    "id": ("idempotency_key",),
    "message_id": ("idempotency_key", "id"),
    "limit": ("count",),
    "max": ("count", "limit"),
    "max_messages": ("count",),
    "n": ("count", "limit"),
    "timeout": ("wait", "lease"),
    "poll": ("wait",),
    "invisible": ("lease",),
    "visibility": ("lease",),
    "visibility_timeout": ("lease",),
    "handle": ("receipt_handles",),
    "handles": ("receipt_handles",),
    "receipt_handle": ("receipt_handles",),
    "timezone": ("time_zone",),
    "zone": ("time_zone",),
    "tz": ("time_zone",),
}
"""By a name that callers give, the fields that they may mean, the likeliest first."""
