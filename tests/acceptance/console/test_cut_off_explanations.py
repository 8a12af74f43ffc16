"""Histories from a log that was not searched to its begin: HTTP, the command and the page say so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command import tidewheel
from tests.console_process import Browser
from tests.hurried_broker import CHUNK_BYTES, HurriedBroker
from tidewheel.testing.process import BrokerProcess

TIMER_OFFSET = "timer_offset"
"""The file with the log offset of a timer that was set and cancelled in the part that is not searched."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hurried")


@pytest.fixture(scope="module")
def broker(folder: Path) -> Iterator[BrokerProcess]:
    process = HurriedBroker(folder)
    process.start()
    timer = {"topic": "deadlines", "body": "x", "in": "1h", "timer_key": "k"}
    (folder / TIMER_OFFSET).write_text(process.post("/api/messages", timer)["physical_offset"])
    assert process.post("/api/timers/cancel", {"topic": "deadlines", "key": "k"})["verdict"] == "CANCELLED"
    for body, key in (("x", "old"), ("y" * 2 * CHUNK_BYTES, "large"), ("z", "new")):
        process.post("/api/messages", {"topic": "t", "body": body, "keys": [key]})
    yield process
    process.stop()


def test_what_is_in_the_newest_part_is_told_with_its_begin(broker: BrokerProcess, browser: Browser) -> None:
    found = broker.get("/api/explain", name="new")
    assert [one["what"] for one in found["events"]] == ["stored"]
    assert int(found["searched_from_ms"]) == int(found["events"][0]["store_ms"])
    assert found["followed_until_ms"] is None
    shown = tidewheel("explain", "new", "--http", broker.http)
    assert shown.returncode == 0
    assert "acknowledged by nobody yet" in shown.stdout
    assert "on was searched: a search ends after 10 seconds. Older events are missing." in shown.stdout
    page = browser.open("/messages?name=new").text
    assert "acknowledged by nobody yet" in page
    assert "Only the log from " in page
    assert "Older events are missing." in page
    assert "<code>tidewheel explain NAME --store FOLDER</code>" in page


def test_what_may_be_in_the_older_part_is_not_called_unknown(
    broker: BrokerProcess, browser: Browser, folder: Path
) -> None:
    for name in ("old", "nobody"):
        found = broker.get("/api/explain", name=name)
        assert (found["events"], found["messages"]) == ([], [])
        assert int(found["searched_from_ms"]) > 0
        shown = tidewheel("explain", name, "--http", broker.http, environment={"COLUMNS": "400"})
        assert shown.returncode == 4
        assert f"{name}: 0 events of 0 messages, in log offsets " in shown.stdout
        assert "Older events are not known. On the machine of the broker, --store FOLDER" in shown.stdout
        as_json = tidewheel("explain", name, "--http", broker.http, "--json")
        assert (as_json.returncode, json.loads(as_json.stdout)) == (4, found)
        page = browser.open(f"/messages?name={name}")
        assert page.status == 200
        assert "Nothing was found, but only the log from " in page.text
        assert "Older events are not known." in page.text
        assert "No record" not in page.text
    whole = tidewheel("explain", "old", "--store", folder / "store")
    assert (whole.returncode, "1 event of 1 message" in whole.stdout) == (0, True)
    nobody = tidewheel("explain", "nobody", "--store", folder / "store")
    assert "No record in " in nobody.stderr


def test_the_end_of_a_timer_in_the_older_part_is_told(broker: BrokerProcess, folder: Path) -> None:
    found = broker.get("/api/explain", name=f"@{(folder / TIMER_OFFSET).read_text()}")
    assert [one["what"] for one in found["events"]] == ["armed", "cancelled"]
    assert [one["state"].partition(":")[0] for one in found["messages"]] == ["cancelled"]
    assert int(found["followed_until_ms"]) <= int(found["searched_from_ms"])
