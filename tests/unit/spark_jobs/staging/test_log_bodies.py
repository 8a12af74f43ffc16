"""What a message tells of its order: ids are texts or numbers, as a user's JSON has them."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from spark_jobs.inputs.mapping import Bodies
from spark_jobs.staging.log_bodies import CONTENTS, content


@pytest.mark.parametrize("is_number", [False, True])
def test_customers_and_articles_may_be_numbers(is_number: bool) -> None:
    customer, sku = (1037, 22423) if is_number else ("1037", "22423")
    body = {"order_id": "o", "customer_id": customer, "placed_ms": 5, "lines": [{"sku": sku, "quantity": 2}]}
    told = content(json.dumps(body).encode(), Bodies())
    assert told == {"customer_id": "1037", "placed_ms": 5, "lines": [{"sku": "22423", "quantity": 2}]}


@pytest.mark.parametrize("value", [None, True, 1.5, [], {}])
def test_other_values_are_no_ids(value: object) -> None:
    body = {"order_id": "o", "customer_id": value, "lines": [{"sku": value, "quantity": 2}]}
    told = content(json.dumps(body).encode(), Bodies())
    assert told == {"customer_id": None, "placed_ms": None, "lines": []}


@pytest.mark.parametrize(
    ("value", "quantity"),
    [
        *((written, 2) for written in (2.0, "2", "2.00")),
        *((other, None) for other in (2.5, 1e300, float("inf"), "1e999999999", "NaN", "two", "", True, {})),
    ],
)
def test_a_quantity_is_a_whole_number_however_it_is_written(value: object, quantity: int | None) -> None:
    body = {"order_id": "o", "lines": [{"sku": "a", "quantity": value}], "placed_ms": value}
    told = content(json.dumps(body).encode(), Bodies())
    assert (told["lines"], told["placed_ms"]) == ([{"sku": "a", "quantity": quantity}], quantity)


def test_half_of_a_character_is_no_id() -> None:
    """JSON may hold "\\ud83d", the half of an emoji that was cut in two, which is no text; one such body
    ended the audit.
    """
    body = {"order_id": "o", "customer_id": "Ada \ud83d", "lines": [{"sku": "\udc00", "quantity": 2}]}
    told = content(json.dumps(body).encode(), Bodies())
    assert told == {"customer_id": None, "placed_ms": None, "lines": []}
    assert pa.RecordBatch.from_pylist([{"order_id": "o", **told}], CONTENTS).num_rows == 1
