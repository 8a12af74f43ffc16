"""The filter of a receive, from the wire."""

from __future__ import annotations

import pytest

from commitlog.records import properties
from consumequeue.filters.errors import IllegalFilter
from services.rpc.generated import definition_pb2 as wire
from services.rpc.wire.filters import wanted

PAID = properties.encode({"TAGS": "paid", "price": "5"})


@pytest.mark.parametrize(
    ("expression", "is_wanted"),
    [
        (wire.FilterExpression(), True),
        (wire.FilterExpression(expression="*"), True),
        (wire.FilterExpression(expression="paid||sent"), True),
        (wire.FilterExpression(type=wire.FilterType.TAG, expression="*"), True),
        (wire.FilterExpression(type=wire.FilterType.TAG, expression="sent"), False),
        (wire.FilterExpression(type=wire.FilterType.SQL, expression="price > 3"), True),
        (wire.FilterExpression(type=wire.FilterType.SQL, expression="TAGS = 'sent'"), False),
    ],
)
def test_a_filter_is_by_tag_unless_the_client_says_sql(
    expression: wire.FilterExpression, is_wanted: bool
) -> None:
    assert wanted(expression).matches(PAID) is is_wanted


@pytest.mark.parametrize(
    ("language", "expression"), [("TAG", "price > 3 | x"), ("SQL", "*"), ("SQL", ""), ("SQL", "paid||sent")]
)
def test_what_is_not_of_its_language_is_refused(language: str, expression: str) -> None:
    with pytest.raises(IllegalFilter):
        wanted(wire.FilterExpression(type=language, expression=expression))
