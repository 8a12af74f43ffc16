"""Conversion of database values to Arrow columns of the audit's types.

A column of the shop's own types is converted at once, any other column value by value. An id of any type
becomes the text that messages have as their key. A timestamp becomes milliseconds since 1970, without its
microseconds; if it has no zone, it is in the given zone, else in UTC. `infinity`, MySQL's zero date, and the
last day of 9999 in a column of `_ENDS` become null. A whole number may be given as a decimal. Any other value
is refused, and the error shows it: no number is rounded, a local time that a zone's clocks show twice or
never is not guessed, and a number that is no plausible time is not taken for one (`units`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, tzinfo
from decimal import Decimal
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.inputs.units import END_SECOND, FIRST_SECOND, NEVER_MS, is_plausible, shown_as_ms, unit_of
from spark_jobs.inputs.zones import TimeOfNoZone, moment, zone_of

MILLISECONDS: Final = "_ms"
FIRST_MS: Final = -62_135_596_800_000
LAST_MS: Final = 253_402_300_799_999
"""The years 1 to 9999, the range of Python's dates; a time outside of it is refused."""
BEFORE_ALL_MS: Final = -(1 << 63)
"""The value that `column_reads` selects for PostgreSQL's `-infinity`; it is refused."""

_ENDS: Final = frozenset({"paid_ms", "timed_out_ms", "cancelled_ms", "delivered_ms"})
_SHOWN_CHARACTERS_MAX: Final = 60
_TEXT: Final = "text"
_TIME: Final = "time (milliseconds since 1970, or a timestamp, of the years 1 to 9999)"
_WHOLE: Final = "whole number"
_NEVER: Final = frozenset({"infinity", "+infinity", "inf"})
_EXACT_MAX: Final = 1 << 53
_DIGITS: Final = re.compile(r"\s*[+-]?[0-9]+\s*")
_WITH_ZONE: Final = r":[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}(:?[0-9]{2})?)$"
_NO_TIME: Final = re.compile(r"0000-00-00([ T]00:00:00(\.0+)?)?(\+00:00)?")


class UnfitValue(ValueError):
    """A value that does not fit the type of its column.

    `column` is our name of the column, and `row` the index of the row in the given ones. `advice` is an
    alternative to correcting the row, with `{theirs}` for the column's name and `{table}` for the section's.
    """

    advice = ""
    key = ""
    """The row's key; "" if the key is the value that does not fit."""

    def __init__(self, column: str, row: int, value: object, said: str) -> None:
        """Make the error about `value`; `said` is the predicate of its sentence."""
        super().__init__(f"{shown_value(value)} {said}")
        self.column, self.row = column, row
        if isinstance(value, bytes):
            self.advice = (
                "read a view in which it is the text that your messages have, as encode({theirs}, 'hex') "
                "makes one of bytes in PostgreSQL and hex() in SQLite and MySQL"
            )


class WrongUnit(ValueError):
    """A number that is no plausible time in milliseconds since 1970; its argument is the number."""


def array_of(
    field: pa.Field,
    values: Sequence[Any],
    constants: Mapping[str, str] | None = None,
    zone: str = "",
    *,
    has_own_numbers: bool = False,
) -> pa.Array:
    """Return a column of the field's type.

    `constants` maps the user's values to ours; its key "" also maps nulls. `zone` is the zone of times
    without one; "" means UTC. With `has_own_numbers`, numbers in a column of times are the user's own, and
    must be plausible times.

    Raises:
        UnfitValue: when a value cannot be converted to that type.
    """
    if constants and "" in constants:
        values = ["" if value is None else value for value in values]
    found = _plainly(values)
    if found is not None and pa.types.is_null(found.type):
        return pa.nulls(len(values), field.type)
    is_time = field.name.endswith(MILLISECONDS)
    is_counted = has_own_numbers and found is not None and pa.types.is_integer(found.type)
    if is_time and found is not None and pa.types.is_string(found.type):
        found = _parsed(found, zone)
    if found is None or found.type != field.type or (is_time and not _are_times(found, is_counted)):
        found = pa.array(_each_converted(field, values, zone, has_own_numbers), field.type)
    if field.name in _ENDS:  # not in a due time, where that day means "never"
        found = pc.if_else(pc.greater_equal(found, NEVER_MS.start), None, found)
    return found if not constants else _translated(found, constants)


def _plainly(values: Sequence[Any]) -> pa.Array | None:
    """Return the values in the type that Arrow infers, or None if it infers none.

    With a given type, Arrow would truncate 1.5 to 1 without an error.
    """
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError, TypeError, UnicodeError):
        return None


def _each_converted(field: pa.Field, values: Sequence[Any], zone: str, has_own_numbers: bool) -> list[Any]:
    is_time = field.name.endswith(MILLISECONDS)
    said = _TEXT if pa.types.is_string(field.type) else _TIME if is_time else _WHOLE
    as_ms = partial(_as_ms, zone=zone_of(zone or "UTC"), has_own_numbers=has_own_numbers)
    conversions: dict[str, Callable[[Any], Any]] = {_TEXT: _as_text, _TIME: as_ms, _WHOLE: _as_whole}
    return [
        None if value is None else _converted(conversions[said], said, field.name, row, value)
        for row, value in enumerate(values)
    ]


def _parsed(texts: pa.Array, zone: str) -> pa.Array | None:
    """Return times that are texts of one form as milliseconds since 1970, and zero dates as null.

    Return None if the forms differ, if a time is before 1970, or if the zone's clocks show a time twice or
    never.
    """
    texts = pc.if_else(pc.match_substring_regex(texts, f"^{_NO_TIME.pattern}$"), None, texts)
    try:
        if pc.any(pc.match_substring_regex(texts, _WITH_ZONE)).as_py():
            times = texts.cast(pa.timestamp("us", "UTC"))
        else:
            times = pc.assume_timezone(texts.cast(pa.timestamp("us")), zone or "UTC")
    except (pa.ArrowException, ValueError):
        return None
    since = times.cast(pa.int64())
    first = pc.min(since).as_py()
    return pc.divide(since, 1000) if first is None or first >= 0 else None


def _are_times(found: pa.Array, is_counted: bool) -> bool:
    """Return whether all values are in the years 1 to 9999, or a user's numbers in the plausible years."""
    ends = pc.min_max(found).as_py()
    first, last = (FIRST_SECOND * 1000, END_SECOND * 1000 - 1) if is_counted else (FIRST_MS, LAST_MS)
    return ends["min"] is None or bool(ends["min"] >= first and ends["max"] <= last)


def _translated(found: pa.Array, constants: Mapping[str, str]) -> pa.Array:
    encoded = found.dictionary_encode()
    ours = [constants.get(theirs, theirs) for theirs in encoded.dictionary.to_pylist()]
    return pa.DictionaryArray.from_arrays(encoded.indices, pa.array(ours, found.type)).cast(found.type)


def _converted(convert: Callable[[Any], Any], said: str, column: str, row: int, value: Any) -> Any:
    """Return a value converted to the type of its column; raise `UnfitValue`."""
    value = bytes(value) if isinstance(value, bytearray | memoryview) else value
    try:
        return convert(value)
    except TimeOfNoZone as error:
        refused = UnfitValue(column, row, value, str(error))
        refused.advice = "name a view in which its zone is given"
        raise refused from error
    except WrongUnit as error:
        raise _of_wrong_unit(column, row, value, error.args[0]) from error
    except (ValueError, TypeError, ArithmeticError) as error:
        raise UnfitValue(column, row, value, f"is no {said}") from error


def _of_wrong_unit(column: str, row: int, value: Any, number: int) -> UnfitValue:
    """Return the error about a number that is no plausible time, with the unit that it suggests."""
    unit = unit_of(number)
    looks = f"looks like {unit.name}" if unit else "is in no unit that is known"
    said = f"is no time in milliseconds since 1970, where it is {shown_as_ms(number)}: it {looks}"
    refused = UnfitValue(column, row, value, said)
    refused.advice = (
        f"write in [{{table}}] of a --mapping, as table, the name of a view that has {unit.sql} in its place"
        if unit
        else f"write in [{{table}}] of a --mapping, as table, the name of a view that has milliseconds since "
        f"1970, or a timestamp, as {column}"
    )
    return refused


def _as_text(value: Any) -> str:
    """Return the text of a key or a status, as messages have it; raise `ValueError`."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        if abs(value) > _EXACT_MAX:  # not exact: two keys may have become one
            raise ValueError(value)
        return str(int(value))
    text = format(value, "f") if isinstance(value, Decimal) else str(value)
    text.encode()
    return text


def _as_ms(value: Any, zone: tzinfo, has_own_numbers: bool) -> int | None:
    """Return milliseconds since 1970; None for `infinity`, which means "never", and for MySQL's zero date.

    Raises:
        WrongUnit: when a number of the user's is no plausible time.
        ValueError: when the value is no time of the years 1 to 9999.
    """
    if isinstance(value, str) and (value.strip().lower() in _NEVER or _NO_TIME.fullmatch(value)):
        return None
    if isinstance(value, float | Decimal) and value == float("inf"):
        return None
    number = _since_1970(value, zone)
    is_number = isinstance(value, int | float | Decimal) or (
        isinstance(value, str) and _DIGITS.fullmatch(value)
    )
    if has_own_numbers and is_number and not is_plausible(number):
        raise WrongUnit(number)
    if not FIRST_MS <= number <= LAST_MS:
        raise ValueError(value)
    return number


def _since_1970(value: Any, zone: tzinfo) -> int:
    if isinstance(value, str) and not _DIGITS.fullmatch(value):
        value = datetime.fromisoformat(value)
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time())
    if isinstance(value, datetime):
        since = (value if value.tzinfo else moment(value, zone)) - datetime(1970, 1, 1, tzinfo=UTC)
        return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000
    return _whole(value)


def _as_whole(value: Any) -> int:
    number = _whole(value)
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(value)
    return number


def _whole(value: Any) -> int:
    if isinstance(value, str) and not _DIGITS.fullmatch(value):
        raise ValueError(value)
    number = int(value)
    if not isinstance(value, str) and number != value:
        raise ValueError(value)
    return number


def shown_value(value: object) -> str:
    """Return a value as error messages show it, in at most `_SHOWN_CHARACTERS_MAX` characters."""
    if value == BEFORE_ALL_MS:
        return "-infinity"
    plain = isinstance(value, int | float | Decimal)
    shown = f"{value.hex()} (bytes)" if isinstance(value, bytes) else str(value) if plain else repr(value)
    return shown[:_SHOWN_CHARACTERS_MAX]
