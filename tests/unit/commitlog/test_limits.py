"""Tests that limits are consistent.

Defaults are within their limits, and containers fit the largest record.
"""

from __future__ import annotations

import pytest

from commitlog import limits
from commitlog.records import record

ALL = {name: value for name, value in vars(limits).items() if name.isupper() and isinstance(value, int)}
BOUNDED = sorted({name.rpartition("_")[0] for name in ALL if name.endswith(("_DEFAULT", "_MIN"))})


@pytest.mark.parametrize("name", BOUNDED)
def test_a_default_lies_within_its_bounds(name: str) -> None:
    found = [ALL[end] for end in (f"{name}_MIN", f"{name}_DEFAULT", f"{name}_MAX") if end in ALL]
    assert found == sorted(found)


@pytest.mark.parametrize("name", sorted(name for name in ALL if not name.endswith("_MIN")))
def test_every_bound_is_one(name: str) -> None:
    assert ALL[name] > 0


def test_what_holds_records_holds_the_largest() -> None:
    """A record must fit in a segment together with the closing blank.

    Properties and other fields must fit in a record together with the body.
    """
    rest = record.RECORD_BYTES_MIN + record.CRC_BYTES + limits.PROPERTIES_STORED_BYTES_MAX
    assert limits.BODY_BYTES_MAX + rest <= limits.RECORD_BYTES_MAX
    assert limits.RECORD_BYTES_MAX + record.BLANK_BYTES <= limits.SEGMENT_BYTES_MIN
    assert limits.SEGMENT_BYTES_MIN < limits.SEGMENT_BYTES_SMALL < limits.SEGMENT_BYTES_DEFAULT
    for bytes_max in (
        limits.RECEIVE_BYTES_MAX,
        limits.REQUEST_BYTES_MAX,
        limits.CALLERS_UNFLUSHED_BYTES_MAX,
        limits.CALLERS_WAITING_BYTES_MAX,
        limits.CALLS_PER_TURN_BYTES_MAX,
        limits.CHECKS_READ_PER_TICK_BYTES_MAX,
        limits.ANSWERS_BYTES_MAX,
    ):
        assert bytes_max >= limits.RECORD_BYTES_MAX
