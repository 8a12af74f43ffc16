"""A wrong field keeps the form with what was entered, and a refused act leads back to its form."""

from __future__ import annotations

import re
from urllib.parse import urlencode

import pytest

from tests.console_process import Browser

FIELD = 'name="{}" value="{}"'


@pytest.mark.parametrize(
    ("path", "fields", "shown"),
    [
        ("/timers", {"topic": "bills", "property": "region"}, ("topic", "property")),
        ("/timers", {"key": "order:7", "from": "tomorrow"}, ("key", "from")),
        ("/timers", {"key": "<b>", "view": "year"}, ()),
        ("/search", {"topic": "carts", "text": "x", "from": "in 5m"}, ("topic", "text", "from")),
        ("/transactions", {"topic": "bills", "older-than": "10"}, ("topic", "older-than")),
        ("/transactions", {"topic": "bills", "state": "ENDED"}, ("topic",)),
        ("/dead-letters/group", {"group": "shop", "tag": "a", "from": "soon"}, ("group", "tag", "from")),
        ("/journal", {"about": "orders", "before": "x"}, ("about",)),
        (
            "/timers/all",
            {"verb": "move", "by": "1h", "topic": "bills", "from": "soon", "limit": "5", "reason": "<late>"},
            ("by", "topic", "from", "limit"),
        ),
        ("/timers/all", {"verb": "cancel", "topic": "bills"}, ("topic",)),
        ("/timers/all", {"topic-prefix": "bil", "reason": "late"}, ("topic-prefix", "reason")),
        ("/schedules/set", {"cron": "61 * * * *", "time_zone": "Europe/Rome"}, ("cron", "time_zone")),
    ],
)
def test_a_wrong_field_keeps_the_form(
    browser: Browser, path: str, fields: dict[str, str], shown: tuple[str, ...]
) -> None:
    browser.post("/topics/create", name="carts", type="NORMAL", queues="1")
    asked = f"{path}?{urlencode(fields)}"
    page = browser.open(asked)
    assert (page.status, page.text.count('role="alert"')) == (400, 1), page.text
    assert page.text.index('role="alert"') < page.text.index(f'<form action="{path}"')
    assert [name for name in shown if FIELD.format(name, fields[name]) not in page.text] == []
    assert "Nothing was changed" not in page.text
    assert 'data-every-ms="0"' in page.text, "the error is not read out again and again"
    told = browser.open(asked, Accept="application/json")
    assert (told.status, told.json["code"] in page.text) == (400, True)


def test_an_unknown_topic_keeps_the_form_of_many_timers(browser: Browser) -> None:
    fields = {"topic": "no-such", "key": "a", "limit": "5", "by": "1h", "reason": "late"}
    page = browser.open("/timers/all?" + urlencode(fields | {"verb": "move", "held": "true"}))
    assert (page.status, page.text.count('role="alert"')) == (404, 1), page.text
    assert [name for name in fields if FIELD.format(name, fields[name]) not in page.text] == []
    assert "<option selected>move</option>" in page.text
    assert 'name="held" value="true" checked' in page.text
    assert 'id="start"' not in page.text


def test_a_refused_act_leads_back_to_its_form(browser: Browser) -> None:
    form = f"{browser.site}/topics/send?topic=a%26b"
    sent = urlencode({"topic": "a", "body": "x", "in": "soon"}).encode()
    refused = browser.open("/topics/send/now", sent, Origin=browser.site, Referer=form)
    assert refused.status == 400
    assert "soon" in refused.text
    assert "Nothing was changed" in refused.text
    assert re.findall(r'<a href="(/topics/send[^"]*)">back to the form', refused.text) == [
        "/topics/send?topic=a%26b"
    ]
    here = f"{browser.site}/dead-letters/group?group=a"
    preview = browser.open("/dead-letters/redrive?group=a", Referer=here)
    assert (preview.status, "Nothing was changed" in preview.text) == (400, False)
    assert '<a href="/dead-letters/group?group=a">back to the form' in preview.text
    for strange in ("http://other/timers", "http://[", f"{browser.site}/none", "/timers"):
        page = browser.open("/topics/send/now", sent, Origin=browser.site, Referer=strange)
        assert (page.status, "back to the form" in page.text) == (400, False)
