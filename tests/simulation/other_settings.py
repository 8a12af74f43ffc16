"""Settings that differ from given ones in every field, to find a core that reads one in `apply`.

Every field of `BrokerSettings`, and of the policies in it, gets another value of its type, including new
fields. A type without a rule here is a `TypeError`: a rule must be added. Fields in `EXEMPT` are unchanged.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any, Final

from services.broker.spine.settings import BrokerSettings

EXEMPT: Final[Mapping[str, str]] = {
    "segment_bytes": "of the store: a core that opens one takes the size that its files have",
}
"""Fields that are equal in both cores, with the reason."""


def other_settings(settings: BrokerSettings, chance: random.Random) -> BrokerSettings:
    """Return settings that differ from these in every field that is not exempt."""
    return _other(settings, chance, EXEMPT)


def _other(value: Any, chance: random.Random, exempt: Mapping[str, str] = EXEMPT) -> Any:
    """Return another value of the same type; raise `TypeError` if there is no rule for the type."""
    if is_dataclass(value) and not isinstance(value, type):
        names = [one.name for one in fields(value) if one.name not in exempt]
        return replace(value, **{name: _other(getattr(value, name), chance, {}) for name in names})
    if value is None:
        return chance.randrange(1, 1 << 40)  # an optional limit
    if isinstance(value, bool):
        return not value
    if isinstance(value, Enum):
        return chance.choice([one for one in type(value) if one is not value])
    if isinstance(value, int):
        return chance.choice([one for one in (value // 3, value + 1, value * 3) if 0 < one != value])
    if isinstance(value, str):
        return f"not {value}"
    if isinstance(value, tuple):
        return tuple(_other(one, chance) for one in value)
    raise TypeError(f"no rule says what another {type(value).__name__} is than {value!r}: add one")
