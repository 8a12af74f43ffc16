"""Numbers of any unit, each told by its size alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.inputs.units import END_SECOND, FACTORS, FIRST_SECOND, is_plausible, unit_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECONDS = st.integers(FIRST_SECOND, END_SECOND - 1)


@given(SECONDS)
def test_milliseconds_of_two_centuries_are_plausible(second: int) -> None:
    assert is_plausible(second * 1000)


@pytest.mark.parametrize("name", FACTORS)
@given(SECONDS)
def test_a_time_in_another_unit_is_told_with_what_makes_it_milliseconds(name: str, second: int) -> None:
    factor, divisor = FACTORS[name]
    second -= second % 86_400 if name == "days" else 0
    number = second * 1000 * divisor // factor
    if number * factor // divisor < FIRST_SECOND * 1000:
        return
    unit = unit_of(number)
    assert not is_plausible(number)
    assert unit is not None
    assert unit.name == f"{name} since 1970"


@pytest.mark.parametrize("form", ["%Y%m%d", "%Y%m%d%H%M", "%Y%m%d%H%M%S", "%Y%m%d%H%M%S123"])
@given(SECONDS)
def test_a_date_that_is_written_as_digits_is_told(form: str, second: int) -> None:
    number = int((EPOCH + timedelta(seconds=second)).strftime(form))
    unit = unit_of(number)
    assert not is_plausible(number)
    assert unit is not None
    assert unit.name.startswith("a date written as digits")


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_no_number_is_plausible_and_of_another_unit(number: int) -> None:
    if is_plausible(number):
        assert unit_of(number) is None
