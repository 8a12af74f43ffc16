"""Clients and those refused: an official client is seen, asked, and told to connect again."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote
from urllib.request import Request

import pytest

from tests.command import tidewheel
from tests.console_process import Browser
from tests.official_consumer import push_consumer
from tidewheel.testing.process import DIRECT, BrokerProcess


@pytest.fixture(scope="module")
def consumer(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    pytest.importorskip("rocketmq")
    broker.post("/api/messages", {"topic": "seen", "body": "x"})
    with push_consumer(broker.listen, "watchers", "seen", tmp_path_factory.mktemp("home")):
        yield


def test_nobody_there_says_how_a_client_begins_and_what_to_do_if_one_should_be(browser: Browser) -> None:
    page = browser.open("/clients").text
    assert "tidewheel sample python" in page
    assert "tidewheel doctor client" in page
    assert browser.open("/clients/one?client=nobody").status == 404
    assert browser.open("/clients/stack?client=nobody").status == 404


def test_a_client_is_found_asked_and_told_to_reconnect(
    consumer: None, broker: BrokerProcess, browser: Browser
) -> None:
    while not (found := browser.model("/clients?name=push")["clients"]):
        pass
    (client,) = found
    assert (client["kind"], client["group"], client["language"]) == ("PUSH_CONSUMER", "watchers", "PYTHON")
    assert browser.model("/clients?name=nothing-like-it")["clients"] == []
    name = client["client_id"]
    page = browser.open(f"/clients/one?client={quote(name, safe='')}").text
    assert "outside of its group" in page
    place = {"client": name, "topic": "seen", "queue": "x", "offset": "0"}
    wrong = browser.post("/clients/one/verify", **place)
    assert (wrong.status, "The queue is" in wrong.text) == (400, True)
    nowhere = browser.post("/clients/one/verify", **(place | {"queue": "0", "offset": "99"}))
    assert nowhere.status == 404
    assert "was told to connect again" in browser.post("/clients/one/reconnect", client=name).text


def test_who_was_refused_is_counted_with_what_to_do(broker: BrokerProcess, browser: Browser) -> None:
    if not browser.model("/refused")["counts"]:
        assert "Nobody was refused" in browser.open("/refused").text
    foreign = Request(f"http://{broker.http}/api/topics/<b>", headers={"Host": "evil.example"})
    with pytest.raises(OSError, match="403"):
        DIRECT.open(foreign)
    shown = browser.model("/refused?reason=http+host")
    (counted,) = [one for one in shown["counts"] if one["reason"] == "http host"]
    assert counted["advice"].startswith("name the host by --http-hosts")
    assert {one["reason"] for one in shown["refused"]} == {"http host"}
    assert browser.model("/refused?reason=none")["refused"] == []
    page = browser.open("/refused").text
    assert "name the host by --http-hosts" in page
    assert "<b>" not in page.partition("<h2>")[2]
    assert "name the host by --http-hosts" in tidewheel("refused", "--http", broker.http).stdout
