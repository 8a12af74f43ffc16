"""Groups: how far behind they are; paused, resumed, and reset after a preview."""

from __future__ import annotations

import html
import re

from tests.command import tidewheel
from tests.console_process import Browser
from tidewheel.testing.process import BrokerProcess


def receive(broker: BrokerProcess, group: str, count: int = 1) -> list[str]:
    """Receive messages; return their handles."""
    asked = {"topic": "orders", "count": count}
    found = broker.post(f"/api/groups/{group}/receive", asked)["messages"]
    return [one["receipt_handle"] for one in found]


def test_no_group_says_how_one_begins(browser: Browser) -> None:
    assert "/api/groups/shop/receive" in browser.open("/groups").text


def test_a_group_is_shown_paused_resumed_and_reset(broker: BrokerProcess, browser: Browser) -> None:
    receive(broker, "shop")
    for number in range(6):
        broker.post("/api/messages", {"topic": "orders", "body": str(number)})
    for handle in receive(broker, "shop", 6):
        broker.post("/api/groups/shop/ack", {"receipt_handles": [handle]})
    (found,) = browser.model("/groups?name=SHO")["groups"]
    assert (found["name"], found["lag"]) == ("shop", 0)
    assert browser.model("/groups?name=none")["groups"] == []
    assert "shop is paused" in browser.post("/groups/one/pause", name="shop").text
    assert browser.model("/groups/one?name=shop")["group"]["policy"]["is_paused"]
    assert "paused" in browser.open("/groups").text
    assert "shop is resumed" in browser.post("/groups/one/resume", name="shop").text
    preview = browser.open("/groups/reset?name=shop&to=earliest")
    assert preview.text.count(" again</td>") >= 1
    assert browser.model("/groups/one?name=shop")["group"]["lag"] == 0, "a preview changes nothing"
    done = browser.post("/groups/reset/start", name="shop", to="earliest")
    assert "shop goes on from earliest" in done.text
    assert browser.model("/groups/one?name=shop")["group"]["lag"] == 6
    why = "no consumer of the protocol port is there"
    assert all(why in browser.open(path).text for path in ("/groups", "/groups/one?name=shop"))
    assert f"why: {why}" in tidewheel("group", "lag", "shop", "--http", broker.http).stdout


def test_a_group_that_another_operator_has_set_back_is_not_moved_on(
    broker: BrokerProcess, browser: Browser
) -> None:
    receive(broker, "rework")
    broker.post("/api/messages", {"topic": "orders", "body": "x"})
    while handles := receive(broker, "rework", 32):
        broker.post("/api/groups/rework/ack", {"receipt_handles": handles})
    page = browser.open("/groups/reset?name=rework&to=latest").text
    (form,) = re.findall(r'id="start".*?</form>', page, re.S)
    fields = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form)
    shown = {name: html.unescape(text) for name, text in fields}
    broker.post("/api/groups/rework/reset", {"to": "earliest"})
    refused = browser.post("/groups/reset/start", **shown)
    assert (refused.status, "TW-160" in refused.text) == (409, True)
    assert "was changed since you saw it: its position in queue " in refused.text
    assert browser.model("/groups/one?name=rework")["group"]["lag"] > 0


def test_a_reset_of_too_many_queues_says_that_it_is_not_compared(
    broker: BrokerProcess, browser: Browser
) -> None:
    unguarded = "it is not refused if another operator sets the group back meanwhile"
    for topic in ("wide-1", "wide-2"):
        assert unguarded not in browser.open("/groups/reset?name=wide&to=latest").text
        broker.post("/api/topics", {"name": topic, "queue_count": 1_024})
        broker.post("/api/groups", {"name": "wide", "topic": topic})
    page = browser.open("/groups/reset?name=wide&to=latest").text
    assert f"This reset has more than 2,000 queues: {unguarded}" in page
    assert 'name="seen"' not in page
    assert "wide goes on from latest" in browser.post("/groups/reset/start", name="wide", to="latest").text


def test_a_form_of_a_reset_that_is_broken_resets_nothing(browser: Browser) -> None:
    for seen in ("[" * 3_000, "{", '{"a":' * 900 + "1" + "}" * 900):
        refused = browser.post("/groups/reset/start", name="shop", to="latest", seen=seen)
        assert (refused.status, "Open the form again" in refused.text) == (400, True)


def test_a_group_that_is_not_there_and_a_place_that_is_none_are_said(browser: Browser) -> None:
    assert browser.open("/groups/one?name=nobody").status == 404
    assert browser.open("/groups/one").status == 400
    assert browser.open("/groups/reset?name=shop&to=somewhere").status == 400
