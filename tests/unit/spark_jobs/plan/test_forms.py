"""A value is written into JSON as the service has written others."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.plan.forms import form_by_type, form_of, is_same

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MADRID = timezone(timedelta(hours=1))
TIMES = st.integers(1_500_000_000_000, 1_900_000_000_000)


def iso(zone: timezone | None, timespec: str, separator: str = "T") -> Callable[[int], str]:
    def written(ms: int) -> str:
        at = (EPOCH + timedelta(milliseconds=ms)).astimezone(zone)
        return at.isoformat(separator, timespec)

    return written


def local(ms: int) -> str:
    return iso(MADRID, "milliseconds", " ")(ms).removesuffix("+01:00")


WRITERS: dict[str, Callable[[int], Any]] = {
    "milliseconds": lambda ms: ms,
    "seconds": lambda ms: ms // 1_000,
    "parts of seconds": lambda ms: ms / 1_000,
    "text": str,
    "ISO": iso(UTC, "milliseconds"),
    "ISO with Z": lambda ms: iso(UTC, "microseconds")(ms).replace("+00:00", "Z"),
    "ISO in a zone": iso(MADRID, "seconds"),
    "local": local,
}


@pytest.mark.parametrize("name", WRITERS)
@given(TIMES, TIMES)
def test_a_time_is_written_as_another_one(name: str, known: int, value: int) -> None:
    write = WRITERS[name]
    form = form_of("paid_ms", write(known), known)
    assert form is not None
    assert form(value) == write(value)
    assert is_same("paid_ms", write(known), known)
    if abs(known - value) > 2_000 and name != "local":
        assert not is_same("paid_ms", write(known), value)
    if name != "local":
        again = form_by_type("paid_ms", write(known))
        assert again is not None
        assert again(value) == write(value)


def test_a_local_time_has_no_form_by_itself() -> None:
    assert form_by_type("due_ms", "2026-11-27 21:00:00") is None


@pytest.mark.parametrize("decimals", range(4))
@pytest.mark.parametrize("is_text", [False, True])
@given(st.integers(1, 10**9), st.integers(0, 10**9))
def test_an_amount_has_as_many_decimals_as_another(
    decimals: int, is_text: bool, known: int, value: int
) -> None:
    def write(amount: int) -> Any:
        scaled = Decimal(amount).scaleb(-decimals)
        if is_text:
            return f"{scaled:.{decimals}f}"
        return float(scaled) if decimals else amount

    form = form_of("total_pence", write(known), known)
    assert form is not None
    assert form(value) == write(value)


@pytest.mark.parametrize(
    ("told", "known", "value", "written"),
    [
        *(("3.0", 300, 305, "3.05"), ("3.0", 300, 310, "3.1"), ("3", 300, 305, "3.05"), ("3", 300, 400, "4")),
        *(("3.00", 300, 310, "3.10"), (3, 300, 305, 3.05), (3.0, 300, 305, 3.05), ("300", 300, 0, "0")),
    ],
)
def test_an_amount_is_never_rounded(told: Any, known: int, value: int, written: Any) -> None:
    form = form_of("total_pence", told, known)
    assert form is not None
    assert form(value) == written


@pytest.mark.parametrize("told", [4.5, "x", True, None, [3], {"a": 3}, "NaN", 3.0001])
def test_what_is_no_amount_of_an_order_has_no_form(told: Any) -> None:
    assert form_of("total_pence", told, 300) is None


@given(st.integers(0, 10**12) | st.text(max_size=5), st.integers(0, 10**12) | st.text(max_size=5))
def test_an_id_is_a_number_where_others_are(known: int | str, value: int | str) -> None:
    form = form_of("customer_id", known, str(known))
    assert form is not None
    if isinstance(known, int) == isinstance(value, int):
        assert form(str(value)) == value or (isinstance(value, str) and form(value) == value)
    assert form("A-7") == "A-7"
    assert form("007") == "007"
