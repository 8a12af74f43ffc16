"""Why somebody does something is stored as a property of a record: it cannot end that and begin another."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from services.ops.routes import OPERATIONS

SHAPES = {
    body
    for table in OPERATIONS.values()
    for operation in table
    for body in operation.bodies
    if isinstance(body, type) and issubclass(body, BaseModel) and "reason" in body.model_fields
}


def test_there_are_shapes_with_a_reason() -> None:
    assert len(SHAPES) >= 6


@pytest.mark.parametrize("shape", sorted(SHAPES, key=lambda one: one.__name__))
@pytest.mark.parametrize("reason", ["paid\x02TW_VERB\x01UNREADABLE", "two\nlines", "\x1b[2J", "x" * 1_001])
def test_a_reason_is_one_line_of_text(shape: type[BaseModel], reason: str) -> None:
    field = shape.model_fields["reason"]
    adapter = TypeAdapter(field.rebuild_annotation())
    for text in ("paid, by card", "payé\xa0!", "\u3000支払い済み"):
        assert adapter.validate_python(text) == text
    with pytest.raises(ValidationError, match=r"one line without|characters"):
        adapter.validate_python(reason)
