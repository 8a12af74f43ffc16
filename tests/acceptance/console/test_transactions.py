"""Halves that need a person, resolved with a reason; the first end wins."""

from __future__ import annotations

from tests.command import tidewheel
from tests.console_process import Browser
from tidewheel.testing.process import BrokerProcess


def begin(broker: BrokerProcess, key: str) -> str:
    """Begin a transaction; return its id."""
    half = {"topic": "orders", "body": f"{key} <b>", "keys": [key]}
    return str(broker.post("/api/transactions", half)["transaction_id"])


def test_no_transaction_says_how_to_begin_one(browser: Browser) -> None:
    assert "/api/transactions" in browser.open("/transactions").text


def test_what_needs_a_person_says_why(broker: BrokerProcess, browser: Browser) -> None:
    name = begin(broker, "half:1")
    (found,) = browser.model("/transactions?topic=orders&key=half:1")["transactions"]
    assert found["transaction_id"] == name
    assert "nobody to ask" in found["needs"]
    page = browser.open("/transactions").text
    assert "needs you:" in page
    one = browser.open(f"/transactions/one?id={name}").text
    assert "Needs you:" in one
    assert "half:1 &lt;b&gt;" in one
    assert browser.open("/transactions?state=OTHER").status == 400
    assert browser.open("/transactions/one?id=none").status in (400, 404)


def test_a_half_is_resolved_with_a_reason_once(broker: BrokerProcess, browser: Browser) -> None:
    name = begin(broker, "half:2")
    without = browser.post("/transactions/one/resolve", id=name, resolution="ROLLBACK")
    assert without.status == 400
    ended = browser.post("/transactions/one/resolve", id=name, resolution="ROLLBACK", reason="order void")
    assert f"ROLLBACK of {name}" in ended.text
    assert "order void" in ended.text
    other = browser.post("/transactions/one/resolve", id=name, resolution="COMMIT", reason="no")
    assert other.status == 409
    assert "TW-161" in other.text
    assert "order void" in tidewheel("explain", "half:2", "--http", broker.http).stdout


def test_a_question_with_nobody_to_ask_says_so(broker: BrokerProcess, browser: Browser) -> None:
    asked = browser.post("/transactions/one/check", id=begin(broker, "half:3"))
    assert "No producer of its topic is connected" in asked.text
    assert "nobody was there" in asked.text
