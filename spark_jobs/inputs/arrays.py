"""Values as databases hand them out -> Arrow columns of the types that the audit works with.

The quick way takes a whole column at once and suits the shop's own types. Where a value is of another type,
the column goes value by value: an id of any type becomes the text that messages have as their key, a
timestamp becomes milliseconds since 1970 (in the zone that is given where it has none, else UTC; null where
it is `infinity` or MySQL's zero date, or an end on the last day of 9999), a whole number may come as a
decimal. Anything else is refused with the value: nothing is rounded or cut, a time that a zone's clocks show
twice, or never, is not guessed, and a number that is no plausible time is not taken for one (`units`).
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
"""The years 1 to 9999, of which Python has dates: what is outside is no time of an order."""
BEFORE_ALL_MS: Final = -(1 << 63)
"""What `column_reads` makes of PostgreSQL's `-infinity`, which is refused."""

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
    """A value that its column cannot hold: `column` by our name, `row` of those given, `advice` beside that
    of correcting the row, with `{theirs}` for the column's name and `{table}` for that of the section.
    """

    advice = ""
    key = ""
    """The row's key, where another column does not fit."""

    def __init__(self, column: str, row: int, value: object, said: str) -> None:
        """Refuse a value; `said` says of it what is wrong."""
        super().__init__(f"{shown_value(value)} {said}")
        self.column, self.row = column, row
        if isinstance(value, bytes):
            self.advice = (
                "read a view in which it is the text that your messages have, as encode({theirs}, 'hex') "
                "makes one of bytes in PostgreSQL and hex() in SQLite and MySQL"
            )


class WrongUnit(ValueError):
    """A number that is no plausible time in milliseconds; the number is its argument."""


def array_of(
    field: pa.Field,
    values: Sequence[Any],
    constants: Mapping[str, str] | None = None,
    zone: str = "",
    *,
    has_own_numbers: bool = False,
) -> pa.Array:
    """Return a column of the field's type.

    `constants` translates values, "" also those that are none. `zone` is that of times that have none; UTC if
    it is "". `has_own_numbers`: numbers of a time are the user's, and must be plausible.

    Raises:
        UnfitValue: when a value cannot be made one of that type.
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
    if field.name in _ENDS:  # as a due time, that day is one that never comes
        found = pc.if_else(pc.greater_equal(found, NEVER_MS.start), None, found)
    return found if not constants else _translated(found, constants)


def _plainly(values: Sequence[Any]) -> pa.Array | None:
    """Return the values as Arrow takes them by itself; asked for a type, it would cut 1.5 to 1 in silence."""
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
    """Return the milliseconds since 1970 of times that are written alike; None if one is not as the others,
    or before 1970, or is not one time in the zone.
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
    """Return whether all are times, and if they were numbers of the user's none implausible."""
    ends = pc.min_max(found).as_py()
    first, last = (FIRST_SECOND * 1000, END_SECOND * 1000 - 1) if is_counted else (FIRST_MS, LAST_MS)
    return ends["min"] is None or bool(ends["min"] >= first and ends["max"] <= last)


def _translated(found: pa.Array, constants: Mapping[str, str]) -> pa.Array:
    encoded = found.dictionary_encode()
    ours = [constants.get(theirs, theirs) for theirs in encoded.dictionary.to_pylist()]
    return pa.DictionaryArray.from_arrays(encoded.indices, pa.array(ours, found.type)).cast(found.type)


def _converted(convert: Callable[[Any], Any], said: str, column: str, row: int, value: Any) -> Any:
    """Return a value as one of the type that a column has."""
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
    """Return the refusal of a number that is no plausible time, with what it looks like."""
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
    """Return the text of a key or a status, as a message would have it."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        if abs(value) > _EXACT_MAX:  # two such keys may have become one
            raise ValueError(value)
        return str(int(value))
    text = format(value, "f") if isinstance(value, Decimal) else str(value)
    text.encode()
    return text


def _as_ms(value: Any, zone: tzinfo, has_own_numbers: bool) -> int | None:
    """Return milliseconds since 1970; None of `infinity`, which is never, and of MySQL's zero date.

    Raises:
        WrongUnit: of a number of the user's that is no plausible time.
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
    """Return a value as a message shows it."""
    if value == BEFORE_ALL_MS:
        return "-infinity"
    plain = isinstance(value, int | float | Decimal)
    shown = f"{value.hex()} (bytes)" if isinstance(value, bytes) else str(value) if plain else repr(value)
    return shown[:_SHOWN_CHARACTERS_MAX]
