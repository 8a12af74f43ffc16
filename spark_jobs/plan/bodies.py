"""Bodies of the messages in a plan, in the form that the service's consumers accept.

    source                                      body
    the order's own message in the topic        its body; only mapped fields that differ from the row change
    else the newest messages of other orders    the fields of the newest one, in its order and JSON types
    else the mapping                            the mapped fields with a value, in the types of the tables

Rules:
- A mapped field gets the order's own value, in the form of that field in other messages (`forms`).
- Any other field is inferred from a column if it has that column's value in all examples that have both, or
  is constant if at least `SAME_MIN` examples all have the same value.
- An unknown field is null, and `lacking` has its name for a person to fill in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from spark_jobs.plan.forms import COLUMNS, Form, as_number, form_by_type, form_of, is_same

SAME_MIN: Final = 10
"""Minimum number of examples for a field with the same value in all of them to be a constant."""

ALIKE_MIN: Final = 2
"""Minimum number of examples for a field to be inferred from a column."""

LINES: Final = "lines"

Body = dict[str, Any]
Row = Mapping[str, Any]
Listed = Sequence[Mapping[str, Any]]
"""Lines of an order: sku, quantity."""


@dataclass(frozen=True, slots=True)
class Example:
    """The body of a message of a balanced order, and that order's row by our column names."""

    body: Body
    row: Row


@dataclass(frozen=True, slots=True)
class Fields:
    """The mapped fields of a topic's bodies.

    `columns` maps fields to our columns. `sku` and `quantity` are the fields of a line. `numbers` are our
    columns of integer type in the user's tables.
    """

    columns: Mapping[str, str]
    sku: str = ""
    quantity: str = ""
    numbers: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Made:
    """A body, and the names of its unknown fields."""

    body: Body
    lacking: tuple[str, ...] = ()


def made(
    fields: Fields, row: Row, lines: Listed | None, original: Body | None, examples: Sequence[Example]
) -> Made:
    """Return the body of an order's message. `lines` is None if unknown."""
    maker = _Maker(fields, row, lines, examples)
    if original is not None:
        body = maker.corrected(original)
    else:
        body = maker.like_examples() if examples else maker.mapped()
    return Made(body, tuple(maker.lacking))


class _Maker:
    """Builds one body, and collects the names of unknown fields in `lacking`."""

    def __init__(self, fields: Fields, row: Row, lines: Listed | None, examples: Sequence[Example]) -> None:
        self._fields, self._row, self._lines, self._examples = fields, row, lines, examples
        self.lacking: list[str] = []

    def corrected(self, original: Body) -> Body:
        """Return the order's own body, with its mapped fields corrected by the row."""
        body = dict(original)
        for field, column in self._fields.columns.items():
            if field not in body:
                continue
            if column == LINES:
                body[field] = self._corrected_lines(field, body[field])
            elif self._row.get(column) is not None and not is_same(column, body[field], self._row[column]):
                body[field] = self._value(field, column, body[field])
        return body

    def like_examples(self) -> Body:
        """Return a body with the fields of the newest example."""
        body: Body = {}
        for field, told in self._examples[0].body.items():
            column = self._fields.columns.get(field)
            if column == LINES:
                body[field] = self._listed(field, _objects(told))
            else:
                body[field] = self._value(field, column, told) if column else self._inferred(field)
        return body

    def mapped(self) -> Body:
        """Return a body of the mapped fields for which the order has a value."""
        body: Body = {}
        for field, column in self._fields.columns.items():
            if column == LINES:
                body[field] = self._listed(field, [])
            elif self._row.get(column) is not None:
                body[field] = self._typed(column, self._row[column])
        return body

    def _typed(self, column: str, value: Any) -> Any:
        return as_number(value) if column in self._fields.numbers else value

    def _value(self, field: str, column: str, like: Any) -> Any:
        """Return the row's value in the form of a mapped field, or None if value or form is unknown."""
        value = self._row.get(column)
        form = None if value is None else self._form(field, column) or form_by_type(column, like)
        if form is None:
            self.lacking.append(field)
            return None
        return form(value)

    def _form(self, field: str, column: str) -> Form | None:
        """Return the form of a column in a field of the examples.

        Return None if no example has both, or if the value of one has no form.
        """
        known = [one for one in self._examples if one.row.get(column) and field in one.body]
        forms = [form_of(column, one.body[field], one.row[column]) for one in known]
        return forms[0] if forms and all(forms) else None

    def _inferred(self, field: str) -> Any:
        """Return the value of an unmapped field, or None if unknown or ambiguous."""
        found = [
            form(self._row[column])
            for column in COLUMNS
            if self._row.get(column) is not None and (form := self._form(field, column))
        ]
        told = [one.body.get(field) for one in self._examples]
        if len(told) < ALIKE_MIN:
            found = []
        if not found and len(told) >= SAME_MIN and all(one == told[0] for one in told):
            found = told
        if len({json.dumps(value) for value in found}) == 1:
            return found[0]
        self.lacking.append(field)
        return None

    def _corrected_lines(self, field: str, told: Any) -> Any:
        """Return the lines of a body, rebuilt if the quantities of the order's rows differ."""
        theirs = _quantities(_objects(told), self._fields.sku, self._fields.quantity)
        if self._lines is None or theirs == _quantities(self._lines, "sku", "quantity"):
            return told
        return self._listed(field, _objects(told))

    def _listed(self, field: str, like: list[Body]) -> list[Body] | None:
        """Return the order's lines as JSON objects, or None if there are none.

        Each has the fields of the line of `like` with the same article, else of the first one.
        """
        if not self._lines:
            self.lacking.append(field)
            return None
        return [self._line(field, line, like) for line in self._lines]

    def _line(self, field: str, line: Mapping[str, Any], like: list[Body]) -> Body:
        sku, quantity = self._fields.sku, self._fields.quantity
        own = next((one for one in like if is_same("sku", one.get(sku), line["sku"])), None)
        body: Body = dict(own or dict.fromkeys(like[0] if like else filter(None, (sku, quantity))))
        if sku in body:
            is_number = isinstance(like[0].get(sku), int) if like else "sku" in self._fields.numbers
            body[sku] = as_number(line["sku"]) if is_number else line["sku"]
        if quantity in body:
            is_text = bool(like) and isinstance(like[0].get(quantity), str)
            body[quantity] = str(line["quantity"]) if is_text else line["quantity"]
        if own is None:
            self.lacking += [f"{field}.{name}" for name in body if name not in (sku, quantity)]
        return body


def _objects(told: Any) -> list[Body]:
    return [one for one in told if isinstance(one, dict)] if isinstance(told, list) else []


def _quantities(lines: Listed, sku: str, quantity: str) -> dict[str, list[str]]:
    """Return the sorted quantities of each article, as text."""
    found: dict[str, list[str]] = {}
    for line in lines:
        found.setdefault(str(line.get(sku)), []).append(str(line.get(quantity)))
    return {article: sorted(quantities) for article, quantities in found.items()}
