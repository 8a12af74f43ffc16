"""Parsers for times and durations in a query or a body. Their errors contain the name of the field."""

from __future__ import annotations

from typing import Final

from services.broker.spine.errors import IllegalDeliveryTime
from services.ops.requests.request import Moment, Span
from services.times import moments
from tidewheel import durations
from tidewheel.errors import ClientMistake

ZERO: Final = "0"


def moment_of(moment: Moment, now_ms: int, field: str) -> int:
    """Parse a time. Raise `ClientMistake` with the name of the field."""
    try:
        return moments.moment_ms(str(moment), now_ms)
    except ValueError as error:
        raise ClientMistake(f"{field} is {str(moment)[:80]!r}: {error}.") from error


def due_of(moment: Moment, now_ms: int, field: str) -> int:
    """Parse a due time. Raise `IllegalDeliveryTime` with the name of the field."""
    try:
        return moments.due_ms(str(moment), now_ms)
    except ValueError as error:
        raise IllegalDeliveryTime(f"{field} is {str(moment)[:80]!r}: {error}.") from error


def delay_of(span: Span, field: str) -> int:
    """Return a delay in milliseconds. Raise `IllegalDeliveryTime` with the name of the field."""
    return _span_ms(span, field, IllegalDeliveryTime)


def span_in(span: Span, field: str) -> int:
    """Return a duration in milliseconds. Raise `ClientMistake` with the name of the field."""
    return _span_ms(span, field, ClientMistake)


def _span_ms(span: Span, field: str, error: type[ClientMistake]) -> int:
    """Parse a duration. A number without a unit is refused, except for 0."""
    if span == ZERO:
        return 0
    try:
        return durations.span_ms(span)
    except ValueError as why:
        raise error(f"{field} is {span[:80]!r}: {why}.") from why
