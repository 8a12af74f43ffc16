"""The second core differs from the first in every setting, and a setting of an unknown type is noticed."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import pytest

from services.broker.spine.settings import BrokerSettings
from tests.simulation.other_settings import EXEMPT, other_settings


def leaves(settings: Any, path: str = "") -> dict[str, Any]:
    """Return the values of all fields, including those of policies, by path."""
    if not is_dataclass(settings):
        return {path: settings}
    return {
        key: value
        for one in fields(settings)
        for key, value in leaves(getattr(settings, one.name), f"{path}.{one.name}".strip(".")).items()
    }


@pytest.mark.parametrize("number", range(20))
def test_every_field_has_another_value(number: int) -> None:
    first = BrokerSettings()
    before, after = leaves(first), leaves(other_settings(first, random.Random(number)))
    assert before.keys() == after.keys()
    assert {name for name in before if before[name] == after[name]} == set(EXEMPT)


def test_exempt_fields_are_there_and_have_a_reason() -> None:
    assert EXEMPT.keys() <= {one.name for one in fields(BrokerSettings)}
    assert all(EXEMPT.values())


def test_a_field_of_an_unknown_type_is_noticed() -> None:
    @dataclass(frozen=True)
    class Grown(BrokerSettings):
        weight: float = 0.5

    with pytest.raises(TypeError, match="no rule says what another float is"):
        other_settings(Grown(), random.Random(1))
