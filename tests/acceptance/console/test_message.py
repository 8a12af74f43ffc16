"""The search box: what `tidewheel explain` tells, and what the message says, shown safely."""

from __future__ import annotations

import base64
import json
from typing import Any

from tests.command import tidewheel
from tests.console_process import Browser
from tidewheel.testing.process import BrokerProcess

MARKUP = "<script>alert(1)</script>"


def test_the_life_of_a_message_is_that_of_explain(broker: BrokerProcess, browser: Browser) -> None:
    message = {"topic": "orders", "body": '{"total": 12.50}', "keys": ["order:7"], "tag": "new"}
    broker.post("/api/messages", message)
    broker.post("/api/messages", {"topic": "late", "body": "7", "in": "30m", "timer_key": "order:7"})
    said = json.loads(tidewheel("explain", "order:7", "--json", "--http", broker.http).stdout)
    shown = browser.model("/messages?name=order:7")
    assert shown["events"] == said["events"]
    assert shown["messages"] == said["messages"]
    assert [one["text"] for one in shown["contents"]] == ['{"total": 12.50}', "7"]
    page = browser.open("/messages?name=order:7").text
    assert "pending: waits for its time" in page
    assert "&#34;total&#34;: 12.50" in page
    offset = f"@{int(said['events'][0]['physical_offset']):,}"
    found = browser.model(f"/messages?name={offset}")
    assert found["messages"][0]["message_id"] == said["events"][0]["message_id"]
    other = browser.model("/messages?name=order:7&topic=late")
    assert {one["topic"] for one in other["messages"]} == {"late"}


def test_nothing_asked_and_nothing_found_are_explained(browser: Browser) -> None:
    assert "tidewheel explain order:7" in browser.open("/messages").text
    missing = browser.open("/messages?name=nobody-has-this")
    assert missing.status == 200, missing.text
    assert "nobody-has-this" in missing.text
    assert browser.model("/messages?name=nobody-has-this")["missing"]


def test_what_strangers_wrote_is_shown_and_never_run(broker: BrokerProcess, browser: Browser) -> None:
    sent: list[dict[str, Any]] = [
        {"body": MARKUP + "\u202egnirts שלום", "keys": [MARKUP], "properties": {MARKUP: '"><img src=x>'}},
        {"body_base64": base64.b64encode(bytes(range(256)) * 9).decode(), "keys": ["binary"]},
        {"body": "x" * (4 * 1024 * 1024 - 4096), "keys": ["large"]},
    ]
    for one in sent:
        broker.post("/api/messages", {"topic": "odd", **one})
    marked = browser.open("/messages?name=%3Cscript%3Ealert(1)%3C/script%3E").text
    assert "<script>alert" not in marked
    assert "<img" not in marked
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\u202egnirts שלום" in marked
    binary = browser.open("/messages?name=binary").text
    assert "00000000  00 01 02 03" in binary
    assert "1,792 more bytes" in binary
    large = browser.open("/messages?name=large").text
    assert len(large) < 40_000
    assert "more characters" in large


def test_a_message_that_is_not_done_has_its_reason(broker: BrokerProcess, browser: Browser) -> None:
    broker.post("/api/groups/closer/receive", {"topic": "slow"})
    broker.post("/api/groups/closer/pause", {})
    broker.post("/api/messages", {"topic": "slow", "body": "x", "keys": ["slow:1"]})
    [found] = browser.model("/messages?name=slow:1")["waiting"]
    assert (found["group"], found["why"]) == ("closer", "it is paused")
    assert "/groups/one?name=closer" in browser.open("/messages?name=slow:1").text
    assert (
        "not done by group closer: it is paused"
        in tidewheel("explain", "slow:1", "--http", broker.http).stdout
    )


def test_who_cancelled_a_timer_is_shown(broker: BrokerProcess, browser: Browser) -> None:
    for key in ("acts:1", "acts:11"):
        broker.post("/api/timers", {"topic": "late", "body": "7", "in": "30m", "timer_key": key})
        browser.model(f"/messages?name={key}")
        broker.post("/api/timers/cancel", {"topic": "late", "key": key, "reason": f"for {key}"})
    [act] = browser.model("/messages?name=acts:1")["acts"]
    assert (act["verb"], act["verdict"], act["reason"]) == ("timers cancel", "CANCELLED", "for acts:1")
    assert "Acts of operators" in browser.open("/messages?name=acts:1").text


def test_a_pending_timer_leads_to_its_verbs(broker: BrokerProcess, browser: Browser) -> None:
    broker.post("/api/timers", {"topic": "late", "body": "7", "in": "30m", "timer_key": "verbs:1"})
    assert 'href="/timers/one?topic=late&amp;id=' in browser.open("/messages?name=verbs:1").text
