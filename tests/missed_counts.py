"""What a broker says that retention took from groups before they had finished it."""

from __future__ import annotations

from collections import Counter

from services.broker.broker import Broker


def missed_counts(broker: Broker) -> Counter[tuple[str, str]]:
    """How many messages each group has missed, by (topic, group)."""
    kept = broker.groups.missed_messages.items()
    return Counter({(topic, group): missed.message_count for group, topic, missed in kept})
