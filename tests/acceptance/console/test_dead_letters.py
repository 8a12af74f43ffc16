"""Dead letters by group: shown with their errors, redriven one by one and as a task."""

from __future__ import annotations

import re

from tests.command import tidewheel
from tests.console_process import Browser
from tidewheel.testing.process import BrokerProcess


def give_up(broker: BrokerProcess, group: str, count: int) -> None:
    """Have a group give up messages."""
    broker.post(f"/api/groups/{group}/receive", {"topic": "orders"})
    for number in range(count):
        broker.post("/api/messages", {"topic": "orders", "body": f"{number} <b>"})
    found = broker.post(f"/api/groups/{group}/receive", {"topic": "orders", "count": count})
    handles = [one["receipt_handle"] for one in found["messages"]]
    refusal = {"receipt_handles": handles, "dead_letter": True, "reason": "no such order <i>"}
    broker.post(f"/api/groups/{group}/nack", refusal)


def test_no_dead_letters_are_good_news(browser: Browser) -> None:
    assert "No group has dead letters" in browser.open("/dead-letters").text


def test_they_are_shown_and_redriven(broker: BrokerProcess, browser: Browser) -> None:
    give_up(broker, "shop", 5)
    assert [(one["group"], one["count"]) for one in browser.model("/dead-letters")["groups"]] == [("shop", 5)]
    found = browser.model("/dead-letters/group?group=shop")["dead_letters"]
    assert len(found) == 5
    first = found[0]["offset"]
    page = browser.open(f"/dead-letters/one?group=shop&offset={first}").text
    assert "no such order &lt;i&gt;" in page
    assert "&lt;b&gt;" in page
    one = browser.post("/dead-letters/one/redrive", group="shop", offset=first)
    assert f"REDRIVEN: dead letter {first} of shop" in one.text
    asked = "group=shop&rate=1000&why=mended"
    assert browser.model(f"/dead-letters/redrive?{asked}")["matched"] == 4
    assert browser.model("/dead-letters")["groups"][0]["count"] == 4, "a preview changes nothing"
    started = browser.post("/dead-letters/redrive/start", group="shop", rate="1000", why="mended")
    assert "redrive dead letters of shop" in started.text
    while browser.model("/dead-letters")["tasks"][0]["state"] == "running":
        pass
    shown = browser.model("/dead-letters")
    assert (shown["groups"], shown["tasks"][0]["done"], shown["tasks"][0]["reason"]) == ([], 4, "mended")
    none = browser.post("/dead-letters/redrive/start", group="shop", rate="1000", why="again", limit="4")
    assert (none.status, "No dead letter would be redriven now: no task was started." in none.text) == (
        400,
        True,
    )
    assert [one["reason"] for one in browser.model("/dead-letters")["tasks"]] == ["mended"]


def test_a_redriven_message_that_was_not_received_again_has_its_reason(
    broker: BrokerProcess, browser: Browser
) -> None:
    give_up(broker, "bill", 1)
    (found,) = broker.get("/api/dead-letters/groups/bill")["dead_letters"]
    browser.post("/dead-letters/one/redrive", group="bill", offset=found["offset"])
    waiting = browser.model(f"/messages?name={found['message_id']}")["waiting"]
    [why] = [one["why"] for one in waiting if one["group"] == "bill"]
    assert why.startswith("no consumer of the protocol port is there")
    told = tidewheel("explain", found["message_id"], "--http", broker.http).stdout
    assert "not done by group bill: no consumer of the protocol port is there" in told


def test_no_more_are_redriven_than_the_preview_showed(broker: BrokerProcess, browser: Browser) -> None:
    give_up(broker, "stock", 2)
    page = browser.open("/dead-letters/redrive?group=stock&rate=1000&why=mended").text
    (form,) = re.findall(r'id="start".*?</form>', page, re.S)
    shown = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form))
    give_up(broker, "stock", 1)
    (newest,) = (one["offset"] for one in broker.get("/api/dead-letters/groups/stock")["dead_letters"][2:])
    browser.post("/dead-letters/redrive/start", **shown)
    while (task := browser.model("/dead-letters")["tasks"][0])["state"] == "running":
        pass
    assert task["by_verdict"] == {"REDRIVEN": 2}
    left = broker.get("/api/dead-letters/groups/stock")["dead_letters"]
    assert [one["offset"] for one in left] == [newest]


def test_what_is_no_rate_is_said(browser: Browser) -> None:
    refused = browser.open("/dead-letters/redrive?group=shop&rate=fast&why=x")
    assert refused.status == 400
    assert "write it as 50/s" in refused.text
