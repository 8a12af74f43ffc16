"""Queries for half messages, which yield to the event loop after each batch of a few hundred.

A broker may have a million open half messages, and a query with a filter must read the record of each half
message. Without pauses, a query would block the event loop.
"""

from __future__ import annotations

import asyncio

from services.broker.halves.half_views import page_of
from services.broker.spine.values import HalfFilter, HalfPage, HalfView
from services.live.live_broker import LiveBroker


async def query_page(live: LiveBroker, wanted: HalfFilter, after: int | None, count_max: int) -> HalfPage:
    """Return up to `count_max` matching half messages after the offset `after`, sorted by offset."""
    found: list[HalfView] = []
    while True:
        more = live.query(live.core.half_views.scan_page, wanted, after, count_max + 1 - len(found))
        found, after = found + more.halves, more.after
        if len(found) > count_max or after is None:
            return page_of(found, count_max)
        await asyncio.sleep(0)
