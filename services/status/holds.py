"""Requests for the hold of a topic, for the results of operations on its timers."""

from __future__ import annotations

from contextlib import suppress

from services.status.asking import Api
from tidewheel.errors import AccessRefused, NotFound


def is_held(api: Api, topic: str) -> bool:
    """Return whether the timers of a topic are held. If the topic cannot be viewed, return False."""
    with suppress(AccessRefused, NotFound):
        hold = api.get("topics", topic)["hold"]
        return hold is not None and hold["per_second"] is None
    return False
