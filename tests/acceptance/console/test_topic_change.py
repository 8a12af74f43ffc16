"""A topic altered, purged and deleted after a look at what uses it; and the journal that notes it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest

from services.console.broker import refused_with
from services.console.page import Asked
from services.console.pages import topic_change
from services.http.api import Api
from tests.command import tidewheel
from tests.console_process import Browser
from tidewheel.errors import RefusedByState
from tidewheel.testing.process import BrokerProcess


def test_nothing_done_yet_says_what_is_noted(browser: Browser) -> None:
    assert "tidewheel topic create orders" in browser.open("/journal").text


def test_a_topic_is_altered_purged_and_deleted_and_the_journal_has_each_act(
    broker: BrokerProcess, browser: Browser
) -> None:
    broker.post("/api/groups/shop/receive", {"topic": "orders"})
    for number in range(3):
        broker.post("/api/messages", {"topic": "orders", "body": str(number)})
    use = browser.model("/topics/change?name=orders")["use"]
    assert (use["messages"], use["unfinished"]) == (3, 3)
    named = {"name": "orders", "typed": "orders", "reason": "test <b>"}
    refused = browser.post("/topics/change/purge", **named)
    assert (refused.status, "TW-168" in refused.text) == (409, True)
    other = browser.post("/topics/change/purge", **(named | {"typed": "carts"}), discard="true")
    assert (other.status, "nothing was changed" in other.text) == (400, True)
    purged = browser.post("/topics/change/purge", **named, discard="true", unfinished="3")
    assert "orders is empty; 3 messages were discarded, 3 of them unfinished" in purged.text
    altered = browser.post("/topics/change/alter", name="orders", type="MIXED", queues="6")
    assert "orders takes mixed, and has 6 queues" in altered.text
    kept = browser.post("/topics/change/alter", name="orders", type="MIXED", retention="7d", reason="law")
    assert "It keeps 7d." in kept.text
    assert '<td class="when">7d</td>' in browser.open("/topics").text
    assert "7d for this topic" in browser.open("/topics/one?name=orders").text
    for said in ("7d", "36h", "1d12h30m"):
        browser.post("/topics/change/alter", name="orders", type="MIXED", retention=said)
        shown = said.replace("36h", "1d12h")
        assert f'name="retention" value="{shown}"' in browser.open("/topics/change?name=orders").text
    wrong = browser.post("/topics/change/alter", name="orders", type="MIXED", queues="many")
    assert wrong.status == 400
    assert "orders is deleted" in browser.post("/topics/change/delete", **named).text
    assert browser.open("/topics/change?name=orders").status == 404
    check_journal(browser)


def check_journal(browser: Browser) -> None:
    """Check that the journal has each act with its reason, and the refusal."""
    entries = browser.model("/journal?about=orders")["entries"]
    assert [(one["verb"], one["verdict"]) for one in entries] == [
        ("topics delete", "done"),
        *[("topics alter", "done")] * 5,
        ("topics purge", "done"),
        ("topics purge", "TW-168"),
    ]
    assert entries[0]["program"] == "tidewheel-console"
    page = browser.open("/journal").text
    assert "<bdi>no sign-in</bdi>" in page
    assert "test &lt;b&gt;" in page
    assert "No act here has this text" in browser.open("/journal?about=nothing-like-it").text


def alter(broker: BrokerProcess, *named: str) -> None:
    """Alter a topic as another operator does."""
    done = tidewheel("topic", "alter", *named, "--http", broker.http)
    assert done.returncode == 0, done.stderr


def settings(browser: Browser, name: str) -> dict[str, str]:
    """Return the fields of the form that alters a topic, as it is shown."""
    page = browser.open(f"/topics/change?name={name}").text
    (form,) = re.findall(r'id="alter">.*?</form>', page, re.S)
    (kind,) = re.findall(r'<option value="(\w+)" selected', form)
    fields = dict(re.findall(r'<input[^>]*name="(\w+)" value="([^"]*)"', form))
    return {name: text for name, text in fields.items() if name != "discard"} | {"type": kind}


def test_a_stale_form_changes_only_what_its_user_changed(broker: BrokerProcess, browser: Browser) -> None:
    broker.post("/api/topics", {"name": "bookings", "message_type": "NORMAL", "queue_count": 4})
    alter(broker, "bookings", "--retention", "1h")
    form = settings(browser, "bookings")
    assert (form["retention"], form["was_retention"]) == ("1h", "1h")
    alter(broker, "bookings", "--retention", "none", "--type", "mixed")
    said = browser.post("/topics/change/alter", **form | {"queues": "6"}).text
    assert "bookings takes mixed, and has 6 queues." in said
    assert "It keeps" not in said
    found = broker.get("/api/topics/bookings")
    assert (found["message_type"], found["queue_count"], "retention_ms" in found) == ("MIXED", 6, False)


def test_a_setting_that_two_operators_change_is_left_as_it_is(
    broker: BrokerProcess, browser: Browser
) -> None:
    broker.post("/api/topics", {"name": "visits", "queue_count": 4})
    form = settings(browser, "visits")
    assert form["retention"] == "none"
    alter(broker, "visits", "--retention", "7d")
    refused = browser.post("/topics/change/alter", **form | {"queues": "8", "retention": "60m"})
    assert (refused.status, "retention from none to 7d" in refused.text) == (409, True)
    assert "Nothing was changed" in refused.text
    found = broker.get("/api/topics/visits")
    assert (found["queue_count"], found["retention_ms"]) == (4, str(7 * 86_400_000))


def send_aged(broker: BrokerProcess, name: str, count: int, expired: int) -> None:
    """Send messages, and wait until as many of the topic are older than a second."""
    for number in range(count):
        broker.post("/api/messages", {"topic": name, "body": str(number)})
    while broker.get(f"/api/topics/{name}/use", retention="1s")["expired"]["messages"] < expired:
        time.sleep(0.05)


def again(page: str) -> dict[str, str]:
    """Return the fields of the form that alters a topic, which is shown again with a box to tick."""
    (form,) = re.findall(r'id="alter">.*?</form>', page, re.S)
    (kind,) = re.findall(r'<option value="(\w+)" selected', form)
    return dict(re.findall(r'<input[^>]*name="(\w+)" value="([^"]*)"', form)) | {"type": kind}


def test_a_retention_that_discards_messages_at_once_says_how_many_first(
    broker: BrokerProcess, browser: Browser
) -> None:
    broker.post("/api/topics", {"name": "clicks", "queue_count": 1})
    send_aged(broker, "clicks", 3, expired=3)
    assert 'name="discard"' not in browser.open("/topics/change?name=clicks").text.partition('"purge"')[0]
    form = settings(browser, "clicks") | {"retention": "1s", "queues": "2", "reason": "too <old>"}
    discards = "discards 3 messages at once, 3 of them unfinished"
    for ticked in ({}, {"discard": "true"}, {"discard": "true", "unfinished": "many"}):
        refused = browser.post("/topics/change/alter", **form, **ticked)
        assert (refused.status, discards in refused.text) == (400, True), refused.text
        assert "The request cannot be accepted. The retention 1s discards" in refused.text
        assert again(refused.text) == {
            "name": "clicks",
            "was_type": "MIXED",
            "was_queues": "1",
            "was_retention": "none",
            "type": "MIXED",
            "queues": "2",
            "retention": "1s",
            "reason": "too &lt;old&gt;",
            "unfinished": "3",
            "messages": "3",
            "discard": "true",
        }
        assert " checked" not in refused.text, "the user ticks the box"
        assert '<a href="/topics/change?name=clicks&amp;as=json">' in refused.text
    sent = urlencode(form).encode()
    told = browser.open("/topics/change/alter", sent, Origin=browser.site, Accept="application/json")
    assert (told.status, told.json["code"]) == (400, "TW-130")
    send_aged(broker, "clicks", 4, expired=7)
    more = browser.post("/topics/change/alter", **again(refused.text))
    assert (more.status, "discards 7 messages at once" in more.text) == (400, True)
    assert "the form showed 3 unfinished" in more.text
    assert broker.get("/api/topics/clicks/use")["messages"] == 7
    fewer = browser.post("/topics/change/alter", **again(more.text) | {"messages": "6"})
    assert (fewer.status, "discards 7 messages at once" in fewer.text) == (400, True), (
        "finished ones count, too"
    )
    done = browser.post("/topics/change/alter", **again(more.text) | {"queues": "1"}).text
    assert "7 messages were discarded, 7 of them unfinished" in done


def test_messages_that_expire_just_before_a_new_retention_are_not_discarded(broker: BrokerProcess) -> None:
    send_aged(broker, "views", 2, expired=2)
    form = {"name": "views", "was_retention": "none", "retention": "1s", "discard": "true"}
    form |= {"unfinished": "2", "messages": "2"}
    between = Between(broker, lambda: send_aged(broker, "views", 1, expired=3))
    with pytest.raises(RefusedByState, match="older than the retention from 2 to 3"):
        topic_change.alter(between, Asked(form))
    assert broker.get("/api/topics/views/use")["messages"] == 3


def test_a_form_whose_hidden_fields_are_broken_changes_nothing(
    broker: BrokerProcess, browser: Browser
) -> None:
    broker.post("/api/topics", {"name": "tours", "queue_count": 4})
    broker.post("/api/topics/tours/hold", {"reason": "closed"})
    broken = [("alter", {"queues": "8", "was_queues": text}) for text in ("abc", "9" * 5_000, "-4")]
    broken += [("release", {"reason": "open", "since_ms": text}) for text in ("abc", "9" * 5_000, "-1")]
    for verb, fields in broken:
        refused = browser.post(f"/topics/change/{verb}", name="tours", **fields)
        assert (refused.status, "Open the form again" in refused.text) == (400, True), (verb, refused.text)
    found = broker.get("/api/topics/tours")
    assert (found["queue_count"], found["hold"]["per_second"]) == (4, None)


def test_settings_as_they_were_shown_are_not_sent(broker: BrokerProcess, browser: Browser) -> None:
    broker.post("/api/topics", {"name": "prices", "queue_count": 4})
    alter(broker, "prices", "--retention", "36h")
    form = settings(browser, "prices") | {"retention": "36h", "queues": "04"}
    assert "Nothing was changed: prices has the settings" in browser.post("/topics/change/alter", **form).text
    assert browser.model("/journal?about=prices")["entries"][0]["program"] != "tidewheel-console"


def test_a_refused_retention_is_named_as_it_was_typed(broker: BrokerProcess, browser: Browser) -> None:
    broker.post("/api/topics", {"name": "rates"})
    for typed in ("0s", "soon"):
        refused = browser.post("/topics/change/alter", **settings(browser, "rates") | {"retention": typed})
        assert (refused.status, f"retention is &#39;{typed}&#39;" in refused.text) == (400, True)


def test_a_purge_discards_no_more_than_its_page_showed(broker: BrokerProcess, browser: Browser) -> None:
    broker.post("/api/groups/shop/receive", {"topic": "parcels"})
    broker.post("/api/messages", {"topic": "parcels", "body": "1"})
    page = browser.open("/topics/change?name=parcels").text
    assert page.count('name="unfinished" value="1"') == 2, "of the purge, and of the deletion"
    named = {"name": "parcels", "typed": "parcels", "reason": "over", "discard": "true"}
    for number in ("2", "3"):
        broker.post("/api/messages", {"topic": "parcels", "body": number})
    for verb in ("purge", "delete"):
        for shown, was in (({"unfinished": "1"}, 1), ({"unfinished": "all"}, 0), ({}, 0)):
            refused = browser.post(f"/topics/change/{verb}", **named, **shown)
            assert (refused.status, "TW-160" in refused.text) == (409, True)
            assert f"its unfinished messages from {was} to 3" in refused.text
            assert "Nothing was changed" in refused.text
    assert browser.open("/topics/change?name=parcels").text.count('name="unfinished" value="3"') == 2
    assert browser.model("/topics/change?name=parcels")["use"]["unfinished"] == 3
    said = browser.post("/topics/change/purge", **named, unfinished="3").text
    assert "parcels is empty; 3 messages were discarded, 3 of them unfinished" in said
    assert "parcels is deleted" in browser.post("/topics/change/delete", **named, unfinished="3").text


@pytest.mark.parametrize("verb", ["purge", "delete"])
def test_a_topic_that_was_created_again_since_is_left_as_it_is(
    broker: BrokerProcess, browser: Browser, verb: str
) -> None:
    name = f"doomed-{verb}"
    broker.post("/api/topics", {"name": name, "message_type": "NORMAL", "queue_count": 4})
    form = form_of(browser, name, verb) | {"typed": name, "reason": "over"}
    assert tidewheel("topic", "delete", name, "--yes", "--http", broker.http).returncode == 0
    broker.post("/api/topics", {"name": name, "message_type": "FIFO", "queue_count": 2})
    refused = browser.post(f"/topics/change/{verb}", **form)
    assert (refused.status, "TW-160" in refused.text) == (409, True)
    assert "its type from NORMAL to FIFO; its number of queues from 4 to 2. Look at it again" in refused.text
    assert broker.get(f"/api/topics/{name}")["queue_count"] == 2
    again = form_of(browser, name, verb) | {"typed": name, "reason": "over"}
    assert browser.post(f"/topics/change/{verb}", **again).status == 200


class Between(Api):
    """The HTTP interface for one act, before whose change another operator changes something."""

    def __init__(self, broker: BrokerProcess, other: Callable[[], object]) -> None:
        super().__init__(
            broker.http, refused_with, answer_seconds=30, search_seconds=30, verb_seconds=30, program="test"
        )
        self._other = other

    def _call(self, method: str, *arguments: Any) -> Any:
        if method != "GET":
            self._other()
        return super()._call(method, *arguments)


def form_of(browser: Browser, name: str, verb: str) -> dict[str, str]:
    """Return the fields of a form of a topic with their values, as it is shown."""
    page = browser.open(f"/topics/change?name={name}").text
    (form,) = re.findall(rf'id="{verb}">.*?</form>', page, re.S)
    return dict(re.findall(r'<input[^>]*name="(\w+)" value="([^"]*)"', form))


def test_a_change_just_before_that_of_a_form_is_not_undone(broker: BrokerProcess, browser: Browser) -> None:
    broker.post("/api/topics", {"name": "seats", "queue_count": 4})
    form = settings(browser, "seats") | {"retention": "60m"}
    between = Between(broker, lambda: alter(broker, "seats", "--retention", "7d"))
    with pytest.raises(RefusedByState, match="its retention from none to 7d") as refused:
        topic_change.alter(between, Asked(form))
    assert refused.value.code == "TW-160"
    assert broker.get("/api/topics/seats")["retention_ms"] == str(7 * 86_400_000)


@pytest.mark.parametrize("act", [topic_change.purge, topic_change.delete])
def test_messages_that_come_just_before_a_purge_are_not_discarded(
    broker: BrokerProcess, browser: Browser, act: Any
) -> None:
    name = f"claims-{act.__name__}"
    for body in ("1", "2"):
        broker.post("/api/messages", {"topic": name, "body": body})
    form = form_of(browser, name, act.__name__) | {"typed": name, "reason": "over", "discard": "true"}
    between = Between(broker, lambda: broker.post("/api/messages", {"topic": name, "body": "3"}))
    with pytest.raises(RefusedByState, match="its unfinished messages from 2 to 3"):
        act(between, Asked(form))
    assert broker.get(f"/api/topics/{name}/use")["unfinished"] == 3


def test_a_hold_that_another_operator_has_begun_since_is_not_released(
    broker: BrokerProcess, browser: Browser
) -> None:
    name, hold = "loans", "/api/topics/loans/hold"
    broker.post("/api/topics", {"name": name})
    broker.post(hold, {"reason": "closed"})
    form = form_of(browser, name, "release") | {"reason": "open"}
    broker.post("/api/timers", {"topic": name, "body": "x", "in": "1h"})

    def held_anew() -> None:
        broker.post("/api/topics/loans/release", {"reason": "open"})
        broker.post(hold, {"reason": "wrong prices"})

    with pytest.raises(RefusedByState, match=r"its hold from that of .* to that of "):
        topic_change.release(Between(broker, held_anew), Asked(form))
    assert broker.get("/api/topics/loans")["hold"]["reason"] == "wrong prices"
    again = browser.post("/topics/change/release", **form_of(browser, name, "release"), reason="open")
    assert "loans is released" in again.text


def test_the_timers_of_a_topic_are_held_and_released(
    broker: BrokerProcess, browser: Browser, eventually: Any
) -> None:
    broker.post("/api/topics", {"name": "bills"})
    named = {"name": "bills", "reason": "closed <b>"}
    held = browser.post("/topics/change/hold", **named)
    assert "The timers of bills are held when they are due" in held.text
    assert browser.post("/topics/change/hold", **named).status == 409
    broker.post("/api/timers", {"topic": "bills", "body": "7", "in": "1ms"})
    eventually(lambda: browser.model("/topics/one?name=bills")["topic"]["hold"]["held"] == 1)
    assert '<b class="warn">held</b>' in browser.open("/topics").text
    assert "closed &lt;b&gt;" in browser.open("/topics/change?name=bills").text
    calendar = browser.open("/timers?topic=bills").text
    assert ", held</td>" in calendar
    broker.post("/api/timers", {"topic": "bills", "body": "8", "in": "1h"})
    assert [one["state"] for one in browser.model("/timers?topic=bills&held=true")["timers"]] == ["held"]
    assert 'name="held" value="true" checked' in browser.open("/timers?held=true").text
    held_page = browser.open("/timers?topic=bills&held=true").text
    assert ("due in the next" in held_page, "<svg" in held_page) == (False, False)
    fire = "topic=bills&held=true&verb=fire&reason=x"
    assert browser.model(f"/timers/all?{fire}")["matched"] == 1
    assert browser.model("/timers")["summary"]["held"][0]["topic"] == "bills"
    for rate in ("many", "30/m"):
        refused = browser.post("/topics/change/release", rate=rate, **named)
        assert (refused.status, "a whole number of at least 1 per second" in refused.text) == (400, True)
    released = browser.post("/topics/change/release", rate="5/s", **named)
    assert "bills is released: at most 5 a second, 1 held timer left" in released.text
    eventually(lambda: browser.model("/topics/one?name=bills")["message_count"] == 1)
    assert browser.model("/topics/change?name=bills")["use"]["hold"] is None


def test_what_is_due_in_a_held_topic_is_said_to_be_held(broker: BrokerProcess, browser: Browser) -> None:
    broker.post("/api/topics", {"name": "fees"})
    sent = {"topic": "fees", "body": "x", "in": "0s"}
    assert "It is delivered at once." in browser.post("/topics/send/now", **sent).text
    assert "It waits for its time.</p>" in browser.post("/topics/send/now", **sent | {"in": "10m"}).text
    browser.post("/topics/change/hold", name="fees", reason="wrong amounts")
    for nothing in ("0", "0s"):
        held = browser.post("/topics/send/now", **sent | {"in": nothing}).text
        assert "It is held until the release of fees." in held
    later = browser.post("/topics/send/now", **sent | {"in": "10m"}).text
    assert "It waits for its time, and is then held until the release of fees." in later
    timer = broker.post("/api/timers", {"topic": "fees", "body": "x", "in": "1h"})["message_id"]
    named = {"topic": "fees", "id": timer, "reason": "earlier"}
    assert "now due" in browser.post("/timers/one/move", **named, to="in 2h").text
    moved = browser.post("/timers/one/move", **named, to="5m ago").text
    assert "now held until the release of fees: " in moved
    assert "now delivered" not in moved
    browser.post("/topics/change/release", name="fees", reason="mended")
    timer = broker.post("/api/timers", {"topic": "fees", "body": "x", "in": "1h"})["message_id"]
    assert "now delivered: " in browser.post("/timers/one/move", **named | {"id": timer}, to="5m ago").text
