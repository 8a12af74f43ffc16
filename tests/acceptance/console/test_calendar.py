"""What fires when: found, shown, moved, fired and cancelled with a reason; many after a preview."""

from __future__ import annotations

import re
from typing import Any
from unittest.mock import patch
from urllib.parse import urlencode

import pytest

from services.console.broker import connect
from services.console.page import Asked
from services.console.pages import calendar
from services.http.api import Api
from tests.command import tidewheel
from tests.console_process import Browser
from tidewheel.testing.process import BrokerProcess


def set_timer(broker: BrokerProcess, key: str, topic: str = "deadlines", delay: str = "30m") -> str:
    """Set a timer; return the path of its page."""
    wanted = {"topic": topic, "body": f"{key} was not paid", "in": delay, "timer_key": key, "tag": "unpaid"}
    set_one = broker.post("/api/timers", wanted)
    return "/timers/one?" + urlencode({"topic": topic, "id": set_one["message_id"]})


def named(path: str) -> dict[str, str]:
    """Return the fields that name the timer of a page."""
    return dict(part.split("=", 1) for part in path.partition("?")[2].split("&"))


def test_an_empty_calendar_says_how_to_fill_it(browser: Browser) -> None:
    assert "tidewheel send deadlines" in browser.open("/timers").text


def test_timers_are_found_by_key_and_drawn(broker: BrokerProcess, browser: Browser) -> None:
    path = set_timer(broker, "order:1")
    set_timer(broker, "order:2", delay="20h")
    found = browser.model("/timers?key=order:1")
    assert [one["timer_key"] for one in found["timers"]] == ["order:1"]
    assert (found["drawn"], len(found["bars"])) == (1, 1)
    assert browser.model("/timers?view=day")["drawn"] >= 2
    assert "0 due in the next hour; the list shows 1</h2>" in browser.open("/timers?key=order:2").text
    assert "1 due in the next hour</h2>" in browser.open("/timers?key=order:1").text
    page = browser.open("/timers").text
    assert "<rect" in page
    assert "style=" not in page
    assert re.search(r"within 1m [\d,]+, 1m to 5m [\d,]+, 5m to 1h [\d,]+, 1h to 1d [\d,]+, later", page)
    one = browser.model(path)
    assert (one["timer"]["timer_key"], one["timer"]["message"]["text"]) == ("order:1", "order:1 was not paid")
    assert "No pending timer matches" in browser.open("/timers?key=nobody").text
    wrong = browser.open("/timers?from=yesterday")
    assert wrong.status == 400
    assert browser.open("/timers?view=year").status == 400


def test_a_mistyped_topic_is_told_and_the_form_is_kept(broker: BrokerProcess, browser: Browser) -> None:
    set_timer(broker, "order:9")
    mistyped = browser.open("/timers?topic=deadlins&tag=unpaid")
    assert mistyped.status == 404
    assert "There is no &#39;deadlins&#39;. Create it: tidewheel topic create deadlins" in mistyped.text
    assert 'name="topic" value="deadlins"' in mistyped.text
    assert 'name="tag" value="unpaid"' in mistyped.text


def test_a_timer_is_moved_and_cancelled_with_a_reason_and_its_life_says_so(
    broker: BrokerProcess, browser: Browser
) -> None:
    path = set_timer(broker, "order:3")
    without = browser.post("/timers/one/cancel", **named(path))
    assert without.status == 400
    assert "The reason is missing" in without.text
    moved = browser.post("/timers/one/move", **named(path), to="in 2h", reason="later")
    assert "MOVED" in moved.text
    cancelled = browser.post("/timers/one/cancel", **named(path), key="order:3", reason="paid <b>")
    assert "CANCELLED  order:3" in cancelled.text
    assert "paid &lt;b&gt;" in cancelled.text
    again = browser.post("/timers/one/cancel", **named(path), reason="twice")
    assert "ALREADY" in again.text
    assert "ALREADY" not in browser.open(path).text, "a note is shown once"
    life = tidewheel("explain", "order:3", "--http", broker.http).stdout
    assert "paid <b>" in life


def test_a_timer_is_fired(broker: BrokerProcess, browser: Browser) -> None:
    fired = browser.post("/timers/one/fire", **named(set_timer(broker, "order:4")), reason="test")
    assert "FIRED" in fired.text


def test_many_are_cancelled_after_a_preview_of_how_many(broker: BrokerProcess, browser: Browser) -> None:
    for number in range(5):
        set_timer(broker, f"push:{number}", "pushes")
    asked = {"verb": "cancel", "topic": "pushes", "reason": "campaign over"}
    preview = browser.model("/timers/all?" + urlencode(asked))
    assert preview["matched"] == 5
    assert browser.model("/timers?topic=pushes")["drawn"] == 5, "a preview changes nothing"
    wrong = browser.post("/timers/all/start", **asked, count="4")
    assert wrong.status == 400
    assert "5 timers would change now" in wrong.text
    uncounted = browser.post("/timers/all/start", **asked, count="all", at_least="1")
    assert (uncounted.status, "all was typed, and 5 timers would change now" in uncounted.text) == (400, True)
    none = browser.post("/timers/all/start", **asked | {"tag": "none"}, count="0")
    assert (none.status, "No timer would change now" in none.text) == (400, True)
    assert browser.model("/timers?topic=pushes")["drawn"] == 5
    started = browser.post("/timers/all/start", **asked, count="5")
    assert "has started: cancel 5 timers" in started.text
    while browser.model("/timers")["tasks"][0]["state"] == "running":
        pass
    assert browser.model("/timers")["tasks"][0]["by_verdict"] == {"CANCELLED": 5}
    assert browser.model("/timers?topic=pushes")["drawn"] == 0


def test_the_first_of_many_are_fired_by_property_and_limit(broker: BrokerProcess, browser: Browser) -> None:
    for number in range(4):
        wanted = {"topic": "mail", "body": str(number), "in": f"{number + 1}h", "keys": ["k"]}
        broker.post("/api/timers", wanted | {"properties": {"to": "ann" if number else "bob"}})
    given = {"topic": "mail", "property": "to=ann", "message-key": "k"}
    assert browser.model("/timers?" + urlencode(given | {"view": "day"}))["drawn"] == 3
    asked = given | {"verb": "fire", "limit": "2", "reason": "a trial"}
    preview = browser.model("/timers/all?" + urlencode(asked))
    assert (preview["matched"], preview["changed"]) == (3, 2)
    started = browser.post("/timers/all/start", **asked, count="2")
    assert "has started: fire 2 timers" in started.text
    while (task := browser.model("/timers")["tasks"][0])["state"] == "running":
        pass
    assert (task["by_verdict"], task["matched"], task["limit"]) == ({"FIRED": 2}, 3, 2)
    assert browser.model("/timers?topic=mail&view=day")["drawn"] == 2
    page = f"/tasks/one?kind=timers&id={task['id']}"
    assert [one["verdict"] for one in browser.model(page)["items"]] == ["FIRED", "FIRED"]
    assert "FIRED</td>" in browser.open(page).text


def test_no_more_timers_are_changed_than_were_confirmed(broker: BrokerProcess) -> None:
    for number in range(2):
        set_timer(broker, f"wave:{number}", "waves")
    api = connect(broker.http, "")

    def post(*path: str, body: Any) -> Any:
        """Set another timer between the count of the act and its task."""
        if path == ("timers", "tasks") and "dry_run" not in body:
            set_timer(broker, "wave:2", "waves", "2h")
        return Api.post(api, *path, body=body)

    asked = {"verb": "cancel", "topic": "waves", "reason": "campaign over", "count": "2"}
    with patch.object(api, "post", post):
        assert "cancel 2 timers" in calendar.start(api, Asked(asked)).said
    while (task := api.get("timers", "tasks")["tasks"][0])["state"] == "running":
        pass
    assert task["by_verdict"] == {"CANCELLED": 2}
    assert [one["timer_key"] for one in api.get("timers", topic="waves")["timers"]] == ["wave:2"]


@pytest.mark.parametrize(("verb", "more"), [("cancel", ""), ("fire", ""), ("move", "&by=1h")])
def test_only_the_preview_of_a_cancellation_says_what_does_not_come_back(
    broker: BrokerProcess, browser: Browser, verb: str, more: str
) -> None:
    set_timer(broker, f"preview:{verb}", "previews")
    page = browser.open(f"/timers/all?verb={verb}&topic=previews&reason=late{more}").text
    assert "They are changed one after the other" in page
    assert ("What was cancelled does not come back." in page) == (verb == "cancel")


def test_all_timers_of_the_broker_are_not_named_by_an_empty_filter(browser: Browser) -> None:
    refused = browser.open("/timers/all?verb=cancel&reason=all")
    assert refused.status == 400
    assert "names no timers: give a condition, such as topic or key" in refused.text
    assert "Over HTTP, {&#34;everything&#34;: true} is the filter for all timers." in refused.text


@pytest.mark.parametrize(("verb", "more"), [("cancel", {}), ("fire", {}), ("move", {"to": "in 3h"})])
def test_a_timer_that_another_operator_has_moved_is_left_as_it_is(
    broker: BrokerProcess, browser: Browser, verb: str, more: dict[str, str]
) -> None:
    path = set_timer(broker, f"moved:{verb}")
    page = browser.open(path).text
    (form,) = re.findall(rf'id="{verb}">.*?</form>', page, re.S)
    shown = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form))
    to = int(shown["due_ms"]) + 60_000
    broker.post("/api/timers/move", named(path) | {"to": to, "reason": "theirs"})
    refused = browser.post(f"/timers/one/{verb}", **shown, **more, reason="mine")
    assert (refused.status, "TW-160" in refused.text) == (409, True)
    assert "The timer was changed since you saw it: its due time from " in refused.text
    assert browser.model(path)["timer"]["due_ms"] == str(to)
    done = browser.post(f"/timers/one/{verb}", **shown | {"due_ms": str(to)}, **more, reason="mine")
    assert done.status == 200
