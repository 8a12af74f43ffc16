"""Every kind of file and every fault: the table of `tests.endurance.damage`, which `-s` prints."""

from __future__ import annotations

import pytest

from tests.endurance.damage import Damage, markdown, table


def test_one_damaged_file_at_a_time(request: pytest.FixtureRequest) -> None:
    step = request.config.getoption("--bit-step")
    if not step:
        pytest.skip("make test plays a sample in tests/unit/services/store; all of it: --bit-step 97")
    rows = table(Damage(), step)
    print(markdown(rows))
    unsaid = [one for row in rows.values() for one in row.unsaid]
    assert not unsaid, unsaid[:20]
