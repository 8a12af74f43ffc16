"""Forms: representations of our values in a service's JSON, derived from an example with a known value.

    our value                     JSON examples                  form
    ID, as text                   7, "7"                         number, text
    amount in the smallest unit   300, 3.0, "3.00"               the same number of decimals
    time, ms since 1970           1764277200000, 1764277200,     milliseconds, seconds,
                                  "2026-11-27T21:00:00Z"         ISO 8601 with its fraction and zone

A form must reproduce the example from the known value, times within `APART_MS_MAX`. If an order's total is
300, the amount 3.0 has two decimals, and the amount 4.5 has no form.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from spark_jobs.staging.bodies import text_of

Form = Callable[[Any], Any]
"""Our value -> its representation in the service's JSON."""

APART_MS_MAX: Final = 1_000
"""Maximum difference of equal times, because a service may read its clock separately for row and message."""

_SECONDS_MAX: Final = 100_000_000_000
_DECIMALS_MAX: Final = 4
_QUARTER_MS: Final = 900_000
_ZONE_MS_MAX: Final = 14 * 3_600_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_FRACTION: Final = re.compile(r"[.,](\d+)")
_DATE_CHARACTERS: Final = 10
_MILLISECOND_DIGITS: Final = 3


def form_of(column: str, told: Any, known: Any) -> Form | None:
    """Return the form of the JSON value `told`, which represents `known` in our column, or None."""
    if isinstance(told, bool) or told is None or known is None:
        return None
    return _FORMS[column](told, known) if column in _FORMS else None


def is_same(column: str, told: Any, known: Any) -> bool:
    """Return whether a JSON value represents the known value of our column."""
    form = form_of(column, told, known)
    return form is not None and (column in TIMES or form(known) == told)


def form_by_type(column: str, like: Any) -> Form | None:
    """Return the form of a column by an example without a known value.

    Return None for an amount, whose unit is unknown, a boolean, or a time without a zone.
    """
    if column in TIMES:
        return _time_form(like, _moment(like))
    if column == "total_pence" or isinstance(like, bool):
        return None
    return as_number if isinstance(like, int) else str


def _moment(told: Any) -> int | None:
    """Return a JSON time in milliseconds since 1970, or None if it is no time or has no zone."""
    if isinstance(told, int | float) or (isinstance(told, str) and told.isdecimal()):
        return round(float(told) * _unit_ms(told))
    try:
        at = datetime.fromisoformat(told)
    except (TypeError, ValueError):
        return None
    return None if at.tzinfo is None else (at - _EPOCH) // _MS


def _unit_ms(told: Any) -> int:
    """Return the unit of a numeric time in milliseconds, 1,000 or 1, by its magnitude."""
    return 1_000 if abs(float(told)) < _SECONDS_MAX else 1


def _id_form(told: Any, known: Any) -> Form | None:
    if text_of(told) != known:
        return None
    return as_number if isinstance(told, int) else str


def as_number(text: Any) -> Any:
    """Return a text of digits without leading zeros as an int, and any other value unchanged."""
    is_number = isinstance(text, str) and text.isascii() and text.isdigit() and str(int(text)) == text
    return int(text) if is_number else text


def _amount_form(told: Any, known: Any) -> Form | None:
    amount = _decimal(told)
    for decimals in range(1 + _DECIMALS_MAX):
        if amount is not None and amount == Decimal(known).scaleb(-decimals):
            return lambda value: _amount(told, Decimal(value).scaleb(-decimals))
    return None


def _decimal(told: Any) -> Decimal | None:
    try:
        return Decimal(str(told))
    except InvalidOperation:
        return None


def _amount(like: Any, amount: Decimal) -> Any:
    """Return an amount in the type of `like`: text with at least as many decimals, or a number."""
    if isinstance(like, str):
        decimals = max(len(like.partition(".")[2]), -int(amount.normalize().as_tuple().exponent))
        return f"{amount:.{decimals}f}"
    return int(amount) if isinstance(like, int) and amount == int(amount) else float(amount)


def _time_form(told: Any, known: Any) -> Form | None:
    if known is None or not isinstance(told, int | float | str):
        return None
    if isinstance(told, str) and not told.isdecimal():
        return _iso_form(told, known)
    unit = _unit_ms(told)
    if abs(float(told) * unit - known) > APART_MS_MAX:
        return None
    if isinstance(told, float):
        return lambda ms: ms / unit
    return (lambda ms: str(ms // unit)) if isinstance(told, str) else lambda ms: ms // unit


def _iso_form(told: str, known: int) -> Form | None:
    try:
        at = datetime.fromisoformat(told)
    except ValueError:
        return None
    zone = at.tzinfo
    if zone is None:
        zone = _zone_of(at, known)
    if abs((at.replace(tzinfo=zone) - _EPOCH) // _MS - known) > APART_MS_MAX:
        return None

    def written(ms: int) -> str:
        moment = (_EPOCH + ms * _MS).astimezone(zone)
        text = _iso(moment if at.tzinfo else moment.replace(tzinfo=None), told)
        return text.removesuffix("+00:00") + "Z" if told.endswith("Z") else text

    return written


def _zone_of(local: datetime, known: int) -> timezone:
    """Return the offset to UTC, in quarters of an hour, of a local time at a known moment.

    Return UTC if the offset exceeds 14 hours.
    """
    apart_ms = (local.replace(tzinfo=UTC) - _EPOCH) // _MS - known
    offset_ms = round(apart_ms / _QUARTER_MS) * _QUARTER_MS
    return timezone(offset_ms * _MS) if abs(offset_ms) <= _ZONE_MS_MAX else UTC


def _iso(moment: datetime, like: str) -> str:
    """Return a moment in ISO 8601, with the separator and precision of `like`."""
    if len(like) <= _DATE_CHARACTERS:
        return moment.date().isoformat()
    fraction = _FRACTION.search(like)
    if fraction:
        timespec = "milliseconds" if len(fraction[1]) <= _MILLISECOND_DIGITS else "microseconds"
    else:
        timespec = "seconds" if like.count(":", 0, 19) > 1 else "minutes"
    return moment.isoformat(like[_DATE_CHARACTERS], timespec)


TIMES: Final = frozenset(("placed_ms", "due_ms", "paid_ms", "timed_out_ms", "cancelled_ms"))
_FORMS: Final[dict[str, Callable[[Any, Any], Form | None]]] = {
    **dict.fromkeys(("order_id", "customer_id", "currency", "sku"), _id_form),
    **dict.fromkeys(("total_pence", "quantity"), _amount_form),
    **dict.fromkeys(TIMES, _time_form),
}

COLUMNS: Final = tuple(name for name in _FORMS if name not in ("sku", "quantity"))
"""The columns of an order that may be fields of its messages."""
