"""Schedules: set after a preview, shown with what comes, paused, resumed, changed, removed by name."""

from __future__ import annotations

import html
import re

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
