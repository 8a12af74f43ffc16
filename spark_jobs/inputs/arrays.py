"""Values as databases hand them out -> Arrow columns of the types that the audit works with.

The quick way takes a whole column at once and suits the shop's own types. Where a value is of another type,
the column goes value by value: an id of any type becomes the text that messages have as their key, a
timestamp becomes milliseconds since 1970 (UTC where it has no zone), a whole number may come as a decimal.
Anything else is refused with the value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time
from typing import Any, Final

import pyarrow as pa

MILLISECONDS: Final = "_ms"

_SHOWN_CHARACTERS_MAX: Final = 60


class UnfitValue(ValueError):
    """A value that its column cannot hold: `column` by our name, `said` by what it is not."""

    def __init__(self, column: str, value: object, said: str) -> None:
        shown = repr(value)[:_SHOWN_CHARACTERS_MAX]
        super().__init__(f"{shown} is no {said}")
        self.column = column


def array_of(field: pa.Field, values: Sequence[Any], constants: Mapping[str, str] | None = None) -> pa.Array:
    """Return a column of the field's type; `constants` translates values.

    Raises:
        UnfitValue: when a value cannot be made one of that type.
    """
    found = _plainly(values)
    if found is not None and pa.types.is_null(found.type):
        return pa.nulls(len(values), field.type)
    if found is None or found.type != field.type:
        convert = _as_text if pa.types.is_string(field.type) else _as_integer
        converted = [None if value is None else convert(field.name, value) for value in values]
        found = pa.array(converted, field.type)
    return found if not constants else _translated(found, constants)


def _plainly(values: Sequence[Any]) -> pa.Array | None:
    """Return the values as Arrow takes them by itself; asked for a type, it would cut 1.5 to 1 in silence."""
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError, UnicodeError):
        return None


def _translated(found: pa.Array, constants: Mapping[str, str]) -> pa.Array:
    encoded = found.dictionary_encode()
    ours = [constants.get(theirs, theirs) for theirs in encoded.dictionary.to_pylist()]
    return pa.DictionaryArray.from_arrays(encoded.indices, pa.array(ours, found.type)).cast(found.type)


def _as_text(column: str, value: Any) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError as error:
            raise UnfitValue(column, bytes(value), "text") from error
    text = str(value)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UnfitValue(column, value, "text") from error
    return text


def _as_integer(column: str, value: Any) -> int:
    is_time = column.endswith(MILLISECONDS)
    said = "time (milliseconds since 1970, or a timestamp)" if is_time else "whole number"
    try:
        number = _as_ms(value) if is_time else _whole(value)
    except (ValueError, TypeError, ArithmeticError) as error:
        raise UnfitValue(column, value, said) from error
    if not -(1 << 63) <= number < 1 << 63:
        raise UnfitValue(column, value, said)
    return number


def _as_ms(value: Any) -> int:
    if isinstance(value, str) and not value.strip().lstrip("-").isdecimal():
        value = datetime.fromisoformat(value)
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time())
    if isinstance(value, datetime):
        since = (value if value.tzinfo else value.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
        return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000
    return _whole(value)


def _whole(value: Any) -> int:
    number = int(value)
    if not isinstance(value, str) and number != value:
        raise ValueError(value)
    return number
