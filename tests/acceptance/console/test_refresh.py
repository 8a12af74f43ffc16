"""Open pages that refresh share what one of them has read; a page that is opened does not."""

from __future__ import annotations

from tests.console_process import Browser
from tidewheel.testing.process import BrokerProcess


def test_open_pages_share_what_one_of_them_has_read(browser: Browser, broker: BrokerProcess) -> None:
    refresh = {"X-Refresh": "page"}
    first = browser.open("/topics?name=refreshed", **refresh).text
    broker.post("/api/topics", {"name": "refreshed"})
    assert "refreshed</bdi>" not in first
    assert browser.open("/topics?name=refreshed", **refresh).text == first, "as of the same time"
    assert "refreshed</bdi>" in browser.open("/topics?name=refreshed").text
