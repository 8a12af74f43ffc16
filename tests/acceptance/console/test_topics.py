"""Topics: listed with their depth, watched; messages sent, and sent again as they were or edited."""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.console_process import Browser
from tidewheel.testing.process import BrokerProcess

ODD = '<b>שלום</b> 🙂\n\n  {"a": 1}\n'


def newest(browser: Browser, topic: str) -> Any:
    """Return the newest message of a topic."""
    return browser.model(f"/topics/one?name={topic}")["messages"][0]


def place(message: Any) -> dict[str, str]:
    """Return the fields that name a message."""
    return {
        "topic": message["topic"], "queue": str(message["queue_id"]), "offset": message["queue_offset"]
    }  # fmt: skip


def test_no_topic_says_how_one_begins(browser: Browser) -> None:
    assert "tidewheel topic create orders" in browser.open("/topics").text
    created = browser.post("/topics/create", name="made", type="NORMAL", queues="2")
    assert "made is there, with 2 queues" in created.text
    assert "tidewheel send made" in created.text
    for queues in ("two", "9" * 5_000):
        wrong = browser.post("/topics/create", name="made", queues=queues)
        assert (wrong.status, "no number of queues" in wrong.text) == (400, True)
    assert browser.post("/topics/create", name="no <b>").status == 400


def test_a_message_to_a_misspelt_topic_says_that_it_created_the_topic(browser: Browser) -> None:
    fields = {"body": "hello", "encoding": "text"}
    first = browser.post("/topics/send/now", topic="articles", **fields).text
    assert "It created the topic articles, with 4 queues." in first
    assert "It created" not in browser.post("/topics/send/now", topic="articles", **fields).text
    misspelt = browser.post("/topics/send/now", topic="artciles", **fields).text
    assert "It created the topic artciles, with 4 queues. Did you mean articles?" in misspelt


def test_a_timer_that_takes_the_place_of_another_one_says_so(broker: BrokerProcess, browser: Browser) -> None:
    fields = {"topic": "duplicates", "body": "x", "in": "1h", "timer_key": "dup"}
    before = broker.post("/api/messages", fields)["physical_offset"]
    second = browser.post("/topics/send/now", **fields).text
    assert f", in place of the timer at log offset {before}. It waits for its time." in second
    other = browser.post("/topics/send/now", **fields | {"timer_key": "other"}).text
    assert ("It waits for its time." in other, "in place of" in other) == (True, False)


@pytest.mark.parametrize("body", ["x" * 300_000, "x" * (4 << 20), "é" * (2 << 20)])
def test_a_body_that_is_too_long_for_the_form_names_the_command(browser: Browser, body: str) -> None:
    refused = browser.post("/topics/send/now", topic="large", body=body)
    assert refused.status == 400
    assert "The form is longer than 262144 bytes" in refused.text
    assert "tidewheel send TOPIC @FILE" in refused.text


def test_a_topic_is_listed_with_its_depth_and_watched(broker: BrokerProcess, browser: Browser) -> None:
    for number in range(25):
        broker.post("/api/messages", {"topic": "watched", "body": f"body {number}"})
    (found,) = browser.model("/topics?name=WATCH")["topics"]
    assert (found["name"], found["message_count"]) == ("watched", 25)
    shown = browser.model("/topics/one?name=watched")
    assert [one["text"] for one in shown["messages"]] == [f"body {number}" for number in range(24, 4, -1)]
    assert shown["message_count"] == 25
    queue = int(shown["messages"][0]["queue_id"])
    one_queue = browser.model(f"/topics/one?name=watched&queue={queue}&offset=0")["messages"]
    assert {one["queue_id"] for one in one_queue} == {queue}
    page = browser.open("/topics/one?name=watched").text
    assert 'data-every-ms="1000"' in page
    assert "body 24" in page
    assert browser.open("/topics/one?name=none").status == 404
    assert browser.open("/topics/one?name=watched&queue=99").status == 404
    assert browser.open("/topics/one?name=watched&queue=x").status == 400


@pytest.mark.parametrize(
    "content",
    [
        {"body": ODD, "keys": ["<i>", "k 2"], "tag": "new", "properties": {"<p>": '"><img>'}},
        {"body_base64": base64.b64encode(bytes(range(256))).decode()},
        {"body": "a\r\nb\x1b[2J", "message_group": "g"},
        {"body": "\nbegins with a line", "in": "1ms", "timer_key": "order:9"},
        {"body": "x", "keys": [" a ", "b\u2028c"], "tag": " t ", "properties": {"p q": " v=w "}},
    ],
)
def test_a_message_is_sent_again_as_it_was_or_edited(
    broker: BrokerProcess, browser: Browser, content: dict[str, Any]
) -> None:
    broker.post("/api/messages", {"topic": "odd", **content})
    broker.post("/api/clock/advance", {"by": "1s"})
    first = newest(browser, "odd")
    page = browser.open("/topics/message?" + urlencode(place(first)))
    assert "<b>שלום" not in page.text
    assert "<img>" not in page.text
    again = browser.post("/topics/message/again", **place(first))
    assert "Sent to odd as" in again.text
    form = browser.model("/topics/send?" + urlencode(place(first)))
    assert form["origin"] == first["message_id"]
    fields = {name: str(text).replace("\n", "\r\n") for name, text in form["fields"].items()}
    assert "Sent to odd as" in browser.post("/topics/send/now", **fields).text
    seen = []
    for one in browser.model("/topics/one?name=odd")["messages"][:3]:
        asked = {"queue": one["queue_id"], "offset": one["queue_offset"], "limit": "1"}
        found = broker.get("/api/topics/odd/messages", **asked)["messages"][0]
        said = {name: found.get(name) for name in ("body", "body_base64", "keys", "tag", "message_group")}
        ours = {name: text for name, text in found["properties"].items() if not name.startswith("TW_")}
        seen.append(said | {"properties": ours})
    assert seen[0] == seen[1] == seen[2]
    assert len({one["message_id"] for one in browser.model("/topics/one?name=odd")["messages"][:3]}) == 3


def test_what_cannot_be_sent_is_said(browser: Browser) -> None:
    assert "How many" not in browser.open("/topics/send").text
    for fields, said in (
        ({"topic": "", "body": "x"}, "The topic is missing"),
        ({"topic": "t", "body": "%", "encoding": "base64"}, "no base64"),
        ({"topic": "t", "body": "x", "properties": "name"}, "has no value"),
        ({"topic": "t", "body": "x", "priority": "high"}, "is no priority"),
        ({"topic": "t", "body": "x", "priority": "9" * 5_000}, "is no priority"),
        ({"topic": "t", "body": "x", "in": "soon"}, "soon"),
    ):
        refused = browser.post("/topics/send/now", **fields)
        assert (refused.status, said in refused.text) == (400, True), refused.text
    browser.post("/topics/create", name="empty", type="NORMAL", queues="1")
    gone = browser.open("/topics/message?topic=empty&queue=0&offset=7")
    assert (gone.status, "has no message in queue 0 at offset 7" in gone.text) == (404, True), gone.text


def test_a_long_body_is_sent_again_but_not_edited_here(broker: BrokerProcess, browser: Browser) -> None:
    broker.post("/api/messages", {"topic": "long", "body": "x" * 1_000_000})
    one = newest(browser, "long")
    page = browser.open("/topics/send?" + urlencode(place(one))).text
    assert "too long to be edited here" in page
    assert len(page) < 20_000
    assert "Sent to long as" in browser.post("/topics/message/again", **place(one)).text


def test_a_message_that_the_form_would_change_is_not_edited_here(
    broker: BrokerProcess, browser: Browser
) -> None:
    broker.post("/api/messages", {"topic": "unfit", "body": "x", "properties": {"n=1": "w"}})
    one = newest(browser, "unfit")
    page = browser.open("/topics/send?" + urlencode(place(one))).text
    assert "its property &#39;n=1&#39; has an equals sign in its name" in page
    assert 'id="send"' not in page
    assert "Sent to unfit as" in browser.post("/topics/message/again", **place(one)).text
    assert newest(browser, "unfit")["properties"] == {"n=1": "w"}
