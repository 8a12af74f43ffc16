"""A topic is altered, purged and deleted in the browser, and the journal tells of it."""

from __future__ import annotations

from tests.console_process import Browser
from tidewheel.testing.process import BrokerProcess

ODD = "<i>שלום</i> 🙂"


def test_a_topic_is_altered_purged_and_deleted(broker: BrokerProcess, browser: Browser) -> None:
    assert browser.open("/topics/change?name=none").status == 404
    broker.post("/api/topics", {"name": "campaign", "queue_count": 1})
    broker.post("/api/messages", {"topic": "campaign", "body": "x"})
    broker.post("/api/timers", {"topic": "campaign", "body": "x", "in": "1h", "timer_key": "k"})
    page = browser.open("/topics/change?name=campaign").text
    assert "no group receives them" in page
    assert browser.model("/topics/change?name=campaign")["use"]["timers"] == 1

    for fields, status, said in (
        ({"typed": "campaigns"}, 400, "nothing was done"),
        ({"typed": "campaign"}, 409, "1 messages of &#39;campaign&#39; are unfinished"),
    ):
        refused = browser.post("/topics/change/purge", name="campaign", **fields)
        assert (refused.status, said in refused.text) == (status, True), refused.text
    given = {"name": "campaign", "typed": "campaign", "discard": "true", "reason": ODD}
    assert "campaign is empty: 1 messages" in browser.post("/topics/change/purge", **given).text
    refused = browser.post("/topics/change/delete", **given)
    assert (refused.status, "1 timers" in refused.text) == (409, True)
    broker.post("/api/timers/cancel", {"topic": "campaign", "key": "k"})
    assert "has 3 queues" in browser.post("/topics/change/alter", name="campaign", queues="3").text
    assert browser.post("/topics/change/alter", name="campaign", queues="two").status == 400
    assert browser.post("/topics/change/alter", name="campaign").status == 400
    assert "campaign is deleted" in browser.post("/topics/change/delete", **given).text

    entries = browser.model("/journal?about=campaign")["entries"]
    assert [one["verdict"] for one in entries if one["verb"] == "topics delete"] == ["done", "TW-168"]
    assert {one["program"] for one in entries if one["verb"] == "topics purge"} == {"tidewheel-console"}
    text = browser.open("/journal?about=campaign").text
    assert "&lt;i&gt;שלום&lt;/i&gt; 🙂" in text
    assert "<i>שלום" not in text


def test_the_journal_says_so_if_nothing_is_there(browser: Browser) -> None:
    assert "No act has this text" in browser.open("/journal?about=nothing-like-it").text
    assert browser.open("/journal?before=x").status == 400
    assert browser.model("/journal?before=0")["entries"] == []
