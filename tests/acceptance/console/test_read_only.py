"""A console that shows only: every act of every page is refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.console.pages.audits import Audits
from services.console.pages.table import pages_of
from services.console.sparklines import Samples
from tests.console_process import Browser, ConsoleProcess
from tidewheel.testing.process import BrokerProcess

ACTS = [
    f"{page.path}/{verb}" for page in pages_of(Audits(Path()), Samples()) for verb in page.acts
]  # fmt: skip


@pytest.fixture(scope="module")
def shown(broker: BrokerProcess) -> Iterator[Browser]:
    process = ConsoleProcess(os.environ, broker.http, "--read-only")
    yield Browser(process.link)
    assert process.stop() == 0


@pytest.mark.parametrize("path", ACTS)
def test_no_act_reaches_the_broker(shown: Browser, path: str) -> None:
    refused = shown.post(path, name="made", topic="made", body="x")
    assert (refused.status, "--read-only" in refused.text) == (403, True)


def test_pages_are_shown_and_say_so(shown: Browser, broker: BrokerProcess) -> None:
    page = shown.open("/topics")
    assert (page.status, "<b>read-only</b>" in page.text, "/topics/create" in page.text) == (200, True, False)
    assert broker.get("/api/topics")["topics"] == []
    assert shown.post("/sign-out").status == 200
