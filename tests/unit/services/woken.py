"""Whose waiters a broker's effects notify."""

from __future__ import annotations

from collections.abc import Iterable

from services.broker.spine.values import Notify, WakeUpKey


def woken(effects: Iterable[object]) -> set[WakeUpKey]:
    """Topics and subscribers."""
    return {key for one in effects if isinstance(one, Notify) for key in one.keys}
