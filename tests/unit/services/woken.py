"""Whose waiters a broker's effects notify."""

from __future__ import annotations

from collections.abc import Iterable

from services.broker.spine.values import WakeReceivers, WakeUpKey


def woken(effects: Iterable[object]) -> set[WakeUpKey]:
    """Topics and subscribers."""
    return {key for one in effects if isinstance(one, WakeReceivers) for key in one.keys}
