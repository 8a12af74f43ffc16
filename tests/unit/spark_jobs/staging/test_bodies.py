"""Bodies at a glance and parsed: the answer is the same, except that a glance accepts some invalid JSON."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

from spark_jobs.inputs.mapping import SHOP, Bodies
from spark_jobs.staging.bodies import readable
from spark_jobs.staging.events import CREATED, PAID, PUSHES

CREATED_BODY = {"order_id": "o-1", "customer_id": "c", "placed_ms": 1, "lines": []}

BODIES = {
    "as the shop writes it": (json.dumps(CREATED_BODY), CREATED, True),
    "without blanks": (json.dumps(CREATED_BODY, separators=(",", ":")), CREATED, True),
    "in another order": (json.dumps(dict(reversed(CREATED_BODY.items()))), CREATED, True),
    "of another order": (json.dumps(CREATED_BODY | {"order_id": "o-2"}), CREATED, False),
    "of an order whose id begins alike": (json.dumps(CREATED_BODY | {"order_id": "o-11"}), CREATED, False),
    "without lines": (json.dumps({"order_id": "o-1", "customer_id": "c"}), CREATED, False),
    "null for a field": (json.dumps({"paid_ms": None, "order_id": "o-1"}), PAID, False),
    "null for a field after the id": (json.dumps({"order_id": "o-1", "paid_ms": None}), PAID, False),
    "null without blanks": ('{"order_id":"o-1","paid_ms":null}', PAID, False),
    "null after more blanks": ('{"order_id": "o-1", "paid_ms": \n\tnull}', PAID, False),
    "null for a field among others": (json.dumps(CREATED_BODY | {"customer_id": None}), CREATED, False),
    "null for a field that is not required": (json.dumps(CREATED_BODY | {"placed_ms": None}), CREATED, True),
    "a value after more blanks": ('{"order_id": "o-1", "paid_ms":  5}', PAID, True),
    "a payment": (json.dumps({"order_id": "o-1", "paid_ms": 5}), PAID, True),
    "a push": (json.dumps({"push_id": "o-1"}), PUSHES, True),
    "a number as id": ('{"order_id": 7, "paid_ms": 5}', PAID, False),
    "no object": ("[]", PAID, False),
    "cut off": ('{"order_id": "o-1", "paid_ms": 5', PAID, False),
    "empty": ("", PUSHES, False),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_is_readable_if_it_is_what_its_topic_promises(name: str) -> None:
    body, topic, expected = BODIES[name]
    assert asked([body.encode()], ["o-1"], topic) == [expected]


def test_bodies_of_many_lengths_and_no_text_at_all() -> None:
    bodies = [b'{"push_id": "a"}', b'{"push_id": "longer"}', b"\xff\xfe", b'{"push_id": "a"}', None]
    assert asked(bodies, ["a", "longer", "b", None, "c"], PUSHES) == [True, True, False, False, False]


def test_fields_are_found_wherever_they_lie() -> None:
    """Each body has its own places: more of them than examples are taken."""
    fields = {"customer_id": "c", "lines": []}
    whole = [
        json.dumps({"order_id": "o", "a": "x" * at, **fields, "b": "y" * (3 * at)}).encode()
        for at in range(40)
    ]
    lacking = [body.replace(b'"lines"', b'"limes"') for body in whole]
    mixed = [body for pair in zip(lacking, whole, strict=True) for body in pair]
    assert asked(mixed, ["o"] * 80, CREATED) == [False, True] * 40


def test_a_null_is_seen_wherever_it_lies() -> None:
    """Bodies of one length and of many, with null at the place where another body has a value."""
    whole = [
        json.dumps({"order_id": "o", "a": "x" * at, "customer_id": "c", "lines": [], "b": "y" * (3 * at)})
        for at in range(40)
    ]
    null = [body.replace('"lines": []', '"lines": null') for body in whole]
    mixed = [body.encode() for pair in zip(whole, null, strict=True) for body in pair]
    assert asked(mixed, ["o"] * 80, CREATED) == [True, False] * 40
    assert asked(mixed[::-1], ["o"] * 80, CREATED) == [False, True] * 40
    alike = [b'{"order_id": "o", "paid_ms": 1234}', b'{"order_id": "o", "paid_ms": null}'] * 20
    assert asked(alike, ["o"] * 40, PAID) == [True, False] * 20


def test_an_id_may_be_a_number() -> None:
    bodies = [
        b'{"order_id": 7, "paid_ms": 5}',
        b'{"order_id": 70, "paid_ms": 5}',
        b'{"order_id": true, "paid_ms": 5}',
    ]
    assert asked(bodies, ["7", "7", "true"], PAID) == [True, False, False]


def test_fields_that_a_user_does_not_have_are_not_missed() -> None:
    lacking = Bodies(customer_id="", lines="", paid_ms="")
    body = b'{"order_id": "o-1"}'
    assert asked([body, body], ["o-1", "o-2"], CREATED, lacking) == [True, False]
    assert asked([body], ["o-1"], PAID, lacking) == [True]
    assert asked([body], ["o-1"], PAID) == [False]


def asked(
    bodies: list[bytes | None], ids: list[str | None], topic: int, names: Bodies = SHOP.bodies
) -> list[bool]:
    topics = np.full(len(bodies), topic, np.int8)
    found = readable(pa.array(bodies, pa.binary()), pa.array(ids, pa.string()), topics, names)
    return [bool(one) for one in found]
