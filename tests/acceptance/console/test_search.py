"""Messages found by their content, part by part."""

from __future__ import annotations

from tests.console_process import Browser
from tidewheel.testing.process import BrokerProcess


def test_nothing_asked_says_how_to_ask(browser: Browser) -> None:
    page = browser.open("/search").text
    assert "tidewheel msg search orders" in page
    assert browser.model("/search")["filter"] == {"from": "1h ago"}


def test_messages_are_found_and_the_search_goes_on(broker: BrokerProcess, browser: Browser) -> None:
    for first in range(0, 6_000, 1_000):
        batch = [{"topic": "searched", "body": f'{{"id": {at}}}'} for at in range(first, first + 1_000)]
        broker.post("/api/messages", {"messages": batch})
    asked = "topic=searched&json=id%3D5999"
    part = browser.model(f"/search?{asked}")
    assert (part["messages"], part["scanned"]) == ([], 5_000)
    assert part["next"].startswith(f"{asked}&after=")
    page = browser.open(f"/search?{asked}").text
    assert "0 of 5,000 messages match" in page
    assert 'Pending timers are not searched: see the <a href="/timers?topic=searched">' in page
    assert "Search on" in page
    rest = browser.model(f"/search?{part['next']}")
    assert [one["text"] for one in rest["messages"]] == ['{"id": 5999}']
    assert (rest["scanned"], rest["next"]) == (1_000, "")
    assert "that is all" in browser.open(f"/search?{part['next']}").text
    broker.post(
        "/api/messages", {"topic": "marked", "body": "<script>7</script>", "properties": {"<p>": "1"}}
    )
    found = browser.open("/search?topic=marked&property=%3Cp%3E%3D1&from=1h+ago").text
    assert "<script>7" not in found
    assert "&lt;script&gt;7&lt;/script&gt;" in found


def test_what_cannot_be_searched_is_said(browser: Browser) -> None:
    for query, status, said in (
        ("topic=none&text=x", 404, "none"),
        ("topic=&text=a", 400, "The topic is missing: fill it in."),
        ("error=a", 400, "The topic is missing: fill it in."),
        ("topic=searched", 400, "Give text, json, property or error"),
        ("topic=searched&json=a%5Bb", 400, "write a path"),
        ("topic=searched&text=x&from=in+5m", 400, "past"),
        ("topic=searched&text=x&from=1m+ago&until=2m+ago", 400, "The window is reversed or empty"),
    ):
        refused = browser.open(f"/search?{query}")
        assert (refused.status, said in refused.text) == (status, True), refused.text
