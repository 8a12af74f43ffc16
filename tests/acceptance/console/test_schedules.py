"""Schedules: set after a preview, shown with what comes, paused, resumed, changed, removed by name."""

from __future__ import annotations

import html
import re
from urllib.parse import urlencode

import pytest

from services.console.broker import connect
from tests.console_process import Browser
from tidewheel.testing.process import BrokerProcess

FIELDS = {"name": "report", "cron": "0 9 * * 1-5", "time_zone": "Europe/London", "topic": "reports"}
BODY = "<b>go</b> שלום"


def test_no_schedule_says_how_one_is_set(browser: Browser) -> None:
    assert "tidewheel schedule set report" in browser.open("/schedules").text
    assert "Give a cron line first" in browser.open("/schedules/set").text


def test_a_schedule_lives_from_its_preview_to_its_removal(broker: BrokerProcess, browser: Browser) -> None:
    preview = browser.model("/schedules/set?cron=0+9+*+*+1-5&time_zone=Europe/London&start=2027-06")
    assert (len(preview["coming"]), preview["is_known"]) == (10, False)
    assert preview["coming"][0]["local"] == "2027-06-01T09:00:00+01:00"
    kept = browser.post("/schedules/set/keep", **FIELDS, body=BODY, keys="a\r\nb", start="2027-06")
    assert "report is set, next 2027-06-01 09:00:00+01:00" in kept.text
    assert "&lt;b&gt;go&lt;/b&gt; שלום" in kept.text
    (listed,) = browser.model("/schedules")["schedules"]
    assert (listed["name"], listed["state"]) == ("report", "ACTIVE")
    assert "report is paused" in browser.post("/schedules/one/pause", name="report").text
    assert browser.model("/schedules/one?name=report")["schedule"]["state"] == "PAUSED"
    assert "report goes on, next" in browser.post("/schedules/one/resume", name="report").text
    form = browser.model("/schedules/set?name=report")["fields"]
    assert (form["start"], form["keys"], form["body"]) == ("2027-06-01T00:00:00+01:00", "a\nb", BODY)
    again = browser.model("/schedules/set?name=report&cron=0+8+*+*+*&time_zone=UTC")["fields"]
    assert (again["start"], again["body"], again["cron"]) == ("", BODY, "0 8 * * *")
    changed = {name: str(text) for name, text in form.items()} | {"tag": "weekly"}
    assert "report is set" in browser.post("/schedules/set/keep", **changed).text
    found = broker.get("/api/schedules/report")
    assert (found["tag"], found["keys"], found["body"]) == ("weekly", ["a", "b"], BODY)
    other = browser.post("/schedules/one/remove", name="report", typed="reports")
    assert (other.status, "it is not removed" in other.text) == (400, True)
    assert "report is removed" in browser.post("/schedules/one/remove", name="report", typed="report").text
    assert browser.model("/schedules")["schedules"] == []
    assert browser.open("/schedules/one?name=report").status == 404


def kept_form(browser: Browser, name: str) -> dict[str, str]:
    """Return the fields of the form that changes a schedule, as a browser sends them unchanged."""
    page = browser.open(f"/schedules/set?name={name}").text
    (form,) = re.findall(r'id="keep".*?</form>', page, re.S)
    fields = {}
    for one in re.findall(r"<input([^>]*)>", form):
        said = dict(re.findall(r'(\w+)="([^"]*)"', one))
        fields[said["name"]] = html.unescape(said.get("value", ""))
    for field, text in re.findall(r'<textarea name="(\w+)"[^>]*>\n(.*?)</textarea>', form, re.S):
        fields[field] = html.unescape(text).replace("\n", "\r\n")
    return fields | {"encoding": "text", "missed": "once"}


def test_a_schedule_that_is_saved_unchanged_is_unchanged(broker: BrokerProcess, browser: Browser) -> None:
    api = connect(broker.http, "")
    odd = {
        "keys": [" a ", "p  q", "r\u2028s"], "tag": " t ", "message_group": " g ",
        "properties": {"a": " v ", "b c": "d=e"}, "start_ms": "1795964999123", "end_ms": "1895964999000",
    }  # fmt: skip
    told = {"cron": "0 9 * * *", "topic": "reports", "body": " x\n", "time_zone": "Europe/London"}
    before = api.put("schedules", "odd", body=told | odd)
    assert "odd is set" in browser.post("/schedules/set/keep", **kept_form(browser, "odd")).text
    after = api.get("schedules", "odd")
    compared = (*odd, *told, "missed", "missed_max")
    assert {name: after[name] for name in compared} == {name: before[name] for name in compared}


def test_a_schedule_that_the_form_would_change_is_not_offered(
    broker: BrokerProcess, browser: Browser
) -> None:
    told = {"cron": "0 9 * * *", "topic": "reports", "body": "x", "properties": {"n=1": "<b>"}}
    connect(broker.http, "").put("schedules", "unfit", body=told)
    page = browser.open("/schedules/set?name=unfit").text
    assert "its property &#39;n=1&#39; has an equals sign in its name" in page
    assert "PUT /api/schedules/unfit" in page
    assert 'id="keep"' not in page


def test_a_change_of_a_schedule_just_before_that_of_a_form_is_not_undone(
    broker: BrokerProcess, browser: Browser
) -> None:
    api = connect(broker.http, "")
    told = {"cron": "0 9 * * *", "topic": "reports", "body": "x"}
    api.put("schedules", "weekly", body=told)
    form = kept_form(browser, "weekly") | {"tag": "mine"}
    api.put("schedules", "weekly", body=told | {"body": "theirs"})
    refused = browser.post("/schedules/set/keep", **form)
    assert (refused.status, "TW-160" in refused.text) == (409, True)
    assert "was changed since you saw it: its body. Look at it again" in refused.text
    assert "Nothing was changed" in refused.text
    assert api.get("schedules", "weekly")["body"] == "theirs"
    again = browser.post("/schedules/set/keep", **kept_form(browser, "weekly") | {"tag": "mine"})
    assert "weekly is set" in again.text
    found = api.get("schedules", "weekly")
    assert (found["body"], found["tag"]) == ("theirs", "mine")
    form = kept_form(browser, "weekly") | {"tag": "yours"}
    api.delete("schedules", "weekly")
    assert "was removed since you saw it" in browser.post("/schedules/set/keep", **form).text


def test_a_preview_says_which_times_a_schedule_has_got_since_its_form_was_opened(
    broker: BrokerProcess, browser: Browser
) -> None:
    api = connect(broker.http, "")
    told = {"cron": "0 9 * * *", "topic": "reports", "body": "x"}
    api.put("schedules", "nightly", body=told)
    page = browser.open("/schedules/set?name=nightly").text
    (form,) = re.findall(r'id="preview".*?</form>', page, re.S)
    shown = {name: html.unescape(text) for name, text in re.findall(r'name="(\w+)" value="([^"]*)"', form)}
    preview = f"nightly&{urlencode(shown | {'cron': '0 8 * * *'})}"
    assert "Somebody has changed its times" not in browser.open(f"/schedules/set?name={preview}").text
    api.put("schedules", "nightly", body=told | {"cron": "30 2 * * *", "start_ms": 1_895_964_999_000})
    page = browser.open(f"/schedules/set?name={preview}").text
    assert "it occurs at <code>30 2 * * * in UTC, not before 2030-01-30T00:56:39+00:00</code> now" in page
    form = kept_form(browser, preview)
    api.put("schedules", "nightly", body=told | {"cron": "30 3 * * *"})
    refused = browser.post("/schedules/set/keep", **form)
    assert "its cron line from 30 2 * * * to 30 3 * * *" in refused.text
    assert api.get("schedules", "nightly")["cron"] == "30 3 * * *"
    assert "nightly is set" in browser.post("/schedules/set/keep", **kept_form(browser, preview)).text


def test_a_new_schedule_does_not_replace_another(broker: BrokerProcess, browser: Browser) -> None:
    api = connect(broker.http, "")
    told = {"cron": "0 9 * * *", "topic": "reports", "body": "x"}
    api.put("schedules", "monthly", body=told)
    api.put("schedules", "yearly", body=told | {"body": "theirs"})
    new = kept_form(browser, "&cron=@daily") | {"topic": "reports", "body": "mine"}
    renamed = kept_form(browser, "monthly")
    for form in (new, renamed):
        refused = browser.post("/schedules/set/keep", **form | {"name": "yearly"})
        assert (refused.status, "There is a schedule &#39;yearly&#39; already." in refused.text) == (
            409,
            True,
        )
    assert api.get("schedules", "yearly")["body"] == "theirs"
    assert "copied is set" in browser.post("/schedules/set/keep", **renamed | {"name": "copied"}).text
    for seen in ("{", "[" * 3_000):
        broken = browser.post("/schedules/set/keep", **renamed | {"seen": seen})
        assert (broken.status, "Open the form again" in broken.text) == (400, True)
    endless = browser.post("/schedules/set/keep", **renamed | {"missed_max": "9" * 5_000})
    assert (endless.status, "no number of missed runs" in endless.text) == (400, True)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"cron": "every day"}, "every day"),
        ({"time_zone": "Mars/Olympus"}, "write it as Europe/London"),
        ({"end": "soon"}, "2026-12-01 and 2026-12 will do, too"),
        ({"missed_max": "many"}, "no number of missed runs"),
        ({"topic": ""}, "The topic is missing"),
        ({"name": "a/b"}, "a/b"),
    ],
)
def test_what_cannot_be_set_is_said(browser: Browser, wrong: dict[str, str], said: str) -> None:
    refused = browser.post("/schedules/set/keep", **(FIELDS | {"body": "x"} | wrong))
    assert refused.status in (400, 404)
    assert said in refused.text
