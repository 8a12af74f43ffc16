"""Every kind of file and every fault: the table of `tests.endurance.damage`, which `-s` prints."""

from __future__ import annotations

import os

from tests.endurance.damage import Damage, markdown, table


def test_one_damaged_file_at_a_time() -> None:
    rows = table(Damage(), int(os.environ.get("DAMAGE_BIT_STEP", "97")))
    print(markdown(rows))
    unsaid = [one for row in rows.values() for one in row.unsaid]
    assert not unsaid, unsaid[:20]
