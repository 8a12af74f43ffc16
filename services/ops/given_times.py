"""Moments and spans of time in a query or a body, each read with its field named in what is wrong."""

from __future__ import annotations

from services.broker.errors import IllegalDeliveryTime
from services.ops.request import Moment
from services.times import moments
from tidewheel import durations
from tidewheel.errors import ClientMistake


def moment_of(moment: Moment, now_ms: int, field: str) -> int:
    """Read a moment; raise `ClientMistake` naming the field."""
    try:
        return moments.moment_ms(str(moment), now_ms)
    except ValueError as error:
        raise ClientMistake(f"{field} is {str(moment)[:80]!r}: {error}.") from error


def due_of(moment: Moment, now_ms: int, field: str) -> int:
    """Read a due time; raise `IllegalDeliveryTime` naming the field."""
    try:
        return moments.due_ms(str(moment), now_ms)
    except ValueError as error:
        raise IllegalDeliveryTime(f"{field} is {str(moment)[:80]!r}: {error}.") from error


def span_of(span: Moment, field: str) -> int:
    """Read a span of time; raise `IllegalDeliveryTime` naming the field."""
    try:
        text = str(span)
        return moments.whole_ms(text) if text.isascii() and text.isdigit() else durations.span_ms(text)
    except ValueError as error:
        raise IllegalDeliveryTime(f"{field} is {str(span)[:80]!r}: {error}.") from error


def span_in(span: Moment, field: str) -> int:
    """Return a span in milliseconds that a body gives as such, or as 30s; raise `ClientMistake`."""
    if isinstance(span, int) and span >= 0:
        return span
    try:
        return durations.span_ms(str(span))
    except ValueError as error:
        raise ClientMistake(f"{field} is {str(span)[:80]!r}: {error}, or as a number of ms.") from error
