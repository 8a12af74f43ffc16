"""Tries of one message, each with its properties in an order of its own; and what else a seed chooses."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from commitlog import limits
from commitlog.message import Message

TAILS = (1, 4, limits.TAIL_ENTRIES_MAX)
"""How many entries of a queue a world's brokers gather before a file has them, by the seed."""
CUTS = (1, limits.CUT_QUEUES_MAX)
"""How many queues a cut of the log looks at in one call, by the seed."""


def some_properties(number: int) -> dict[str, str]:
    """Return the properties of a world's message: none to three."""
    return {name: str(number) for name in "abc"[: number % 4]}


def tried(message: Message, number: int) -> Message:
    """Return the message as its client sends it the `number`th time."""
    pairs = list(message.properties.items())
    Random(f"{message.message_id} {number}").shuffle(pairs)
    return replace(message, properties=dict(pairs), born_ms=message.born_ms + number)
