"""Formats amounts in the smallest unit of a currency.

ISO 4217 defines the decimals of a currency: mostly two, but none for JPY and three for KWD. An amount without
a currency is in hundredths. The decimals of any other unit (`POINTS`) are unknown, so the text is a whole
number of its smallest coin.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_WITHOUT_DECIMALS: Final = (
    "BIF", "CLP", "DJF", "GNF", "ISK", "JPY", "KMF", "KRW", "PYG", "RWF", "UGX", "UYI", "VND", "VUV", "XAF",
    "XOF", "XPF",
)  # fmt: skip
_WITH_THREE: Final = ("BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND")
_WITH_FOUR: Final = ("CLF", "UYW")
_DECIMALS: Final = (
    dict.fromkeys(_WITHOUT_DECIMALS, 0) | dict.fromkeys(_WITH_THREE, 3) | dict.fromkeys(_WITH_FOUR, 4)
)
"""ISO 4217 currencies whose number of decimals is not two."""

_DECIMALS_ELSE: Final = 2
_CODE: Final = re.compile("[A-Za-z]{3}")


def code_of(currency: str | None) -> str:
    """Return a currency without blanks, an ISO 4217 code in capitals, or "" if there is none."""
    named = (currency or "").strip()
    return named.upper() if _CODE.fullmatch(named) else named


def amount(minor: int, currency: str | None) -> str:
    """Format an amount in the smallest unit, such as `1,234.50 EUR`."""
    code = code_of(currency)
    if code and not _CODE.fullmatch(code):
        return f"{minor:,} of the smallest coin of {code}"
    decimals = _DECIMALS.get(code, _DECIMALS_ELSE)
    whole, rest = divmod(abs(minor), 10**decimals)
    text = f"{'-' if minor < 0 else ''}{whole:,}" + (f".{rest:0{decimals}d}" if decimals else "")
    return f"{text} {code}".rstrip()


def amounts(sums: Mapping[str, int]) -> str:
    """Format the nonzero sums by currency (`""` for none): `12.50 EUR and 300 JPY`."""
    return " and ".join(amount(sums[one], one) for one in sorted(sums) if sums[one])
