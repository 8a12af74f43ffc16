"""A sample of `tests/endurance/damage.py`: one damaged file at a time, each kind, few places.

Nothing is lost but what was hit and existed once, and nothing is lost in silence.
"""

from __future__ import annotations

import pytest

from commitlog import layout
from tests.endurance.damage import Damage, table

BIT_STEP = 60_013
KINDS = (
    layout.COMMITLOG,
    layout.CONSUMEQUEUE,
    layout.KEEP,
    layout.KEYINDEX,
    layout.TIMERS,
    layout.TIMER_ENDS,
    layout.TIMER_NAMES,
    "snapshot newest",
    "snapshot older",
)


@pytest.fixture(scope="module")
def damage() -> Damage:
    return Damage()


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_but_what_was_hit_and_existed_once_and_nothing_in_silence(
    damage: Damage, kind: str
) -> None:
    rows = table(damage, BIT_STEP, [kind], files_max=1)
    unsaid = [one for row in rows.values() for one in row.unsaid]
    assert sum(row.runs for row in rows.values()) > 5
    assert [sum(row.silent + row.needless for row in rows.values()), unsaid] == [0, []]
