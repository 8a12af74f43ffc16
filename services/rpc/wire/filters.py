"""The filter expression of a receive. The default type is tags."""

from __future__ import annotations

from consumequeue.filters.filter import Filter, parse_tags
from consumequeue.filters.sql_filter import parse_sql
from services.rpc.generated import definition_pb2 as wire


def wanted(expression: wire.FilterExpression) -> Filter:
    """Parse the filter of a client. Raises `IllegalFilter`."""
    if expression.type == wire.FilterType.SQL:
        return parse_sql(expression.expression)
    return parse_tags(expression.expression)
