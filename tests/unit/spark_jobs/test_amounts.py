"""Amounts in the smallest coin, as they are read by who answers for them."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.amounts import amount, amounts


@pytest.mark.parametrize(
    ("minor", "currency", "shown"),
    [
        (300, "EUR", "3.00 EUR"),
        (123_450, "eur", "1,234.50 EUR"),
        (-5, "GBP", "-0.05 GBP"),
        (1_500, "JPY", "1,500 JPY"),
        (1_500, "KWD", "1.500 KWD"),
        (0, None, "0.00"),
        (12, "", "0.12"),
        (1_500, "POINTS", "1,500 of the smallest coin of POINTS"),
    ],
)
def test_an_amount_has_the_decimals_of_its_currency(minor: int, currency: str | None, shown: str) -> None:
    assert amount(minor, currency) == shown


@given(st.integers(-(2**63), 2**63 - 1), st.sampled_from([("EUR", 2), ("JPY", 0), ("BHD", 3), ("CLF", 4)]))
def test_an_amount_is_the_number_that_was_given(minor: int, currency: tuple[str, int]) -> None:
    shown = amount(minor, currency[0])
    assert Decimal(shown.removesuffix(f" {currency[0]}").replace(",", "")) == Decimal(minor).scaleb(
        -currency[1]
    )


def test_sums_of_two_currencies_are_not_added_up() -> None:
    assert amounts({"JPY": 300, "EUR": 1_250, "USD": 0}) == "12.50 EUR and 300 JPY"
