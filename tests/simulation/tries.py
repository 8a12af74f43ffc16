"""Tries of one message, each with its properties in another order; and other choices of a seed."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from commitlog import limits
from commitlog.records.message import Message

TAILS = (1, 4, limits.TAIL_ENTRIES_MAX)
"""Entries of a queue that a world's brokers gather before writing them to a file, by seed."""
CUTS = (1, limits.CUT_QUEUES_MAX)
"""Queues that a cut of the log processes in one call, by seed."""


def some_properties(number: int) -> dict[str, str]:
    """Return the properties of a world's message: none to three."""
    return {name: str(number) for name in "abc"[: number % 4]}


def tried(message: Message, number: int) -> Message:
    """Return the message as sent by its client the `number`th time."""
    pairs = list(message.properties.items())
    Random(f"{message.message_id} {number}").shuffle(pairs)
    return replace(message, properties=dict(pairs), born_ms=message.born_ms + number)
