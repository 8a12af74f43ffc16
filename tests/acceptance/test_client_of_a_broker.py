"""The client over brokers of other kinds: one that asks for a token, one that starts late."""

from __future__ import annotations

import asyncio
import multiprocessing
import re
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from tests.acceptance.conftest import eventually
from tidewheel import AsyncClient, Client
from tidewheel.errors import AccessRefused, BrokerUnreachable, Busy
from tidewheel.testing.process import BrokerProcess


def open_polls(broker: BrokerProcess) -> int:
    """Return how many receives wait."""
    found = re.search(r'^mq_http_polls\{.*kind="receive".*\} (\S+)$', broker.scrape(), re.MULTILINE)
    return int(float(found[1])) if found else 0


def test_a_broker_with_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret-s3cret-s3cret-s3cret-s3cret\n")
    token.chmod(0o600)
    broker = BrokerProcess(tmp_path, ("--http-token", str(token)))
    broker.start()
    try:
        with Client(broker.http) as client, pytest.raises(AccessRefused) as refused:
            client.send("orders", "x")
        assert refused.value.code == "TW-181"
        wrong = Client(broker.http, token="another-token-another-token-another")
        with pytest.raises(AccessRefused):
            wrong.receive("orders", "shop", wait="0s")
        monkeypatch.setenv("TIDEWHEEL_HTTP", broker.http)
        monkeypatch.setenv("TIDEWHEEL_HTTP_TOKEN", str(token))
        with Client() as client:
            client.send("orders", "x")
    finally:
        broker.stop()


def test_a_broker_that_starts_is_waited_for_and_one_that_stops_ends_a_poll(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    client = Client(broker.http)
    client.send("orders", "x")
    broker.stop()
    starting = threading.Thread(target=broker.start)
    starting.start()
    for _ in range(10):  # each call waits for some 3 s
        with suppress(BrokerUnreachable):
            client.send("orders", "y")
            break
    starting.join()
    ends: list[BaseException] = []

    def poll() -> None:
        try:
            client.receive("nothing", "shop")
        except BaseException as error:
            ends.append(error)

    polling = threading.Thread(target=poll)
    polling.start()
    eventually(lambda: open_polls(broker) == 1)
    broker.stop()
    polling.join()
    assert len(ends) == 1
    assert isinstance(ends[0], BrokerUnreachable | Busy), ends


def send_in_child(client: Client) -> None:
    client.send("orders", "from the child")


def test_a_client_is_used_on_after_a_fork(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    try:
        client = Client(broker.http)
        client.send("orders", "from the parent")
        child = multiprocessing.get_context("fork").Process(target=send_in_child, args=(client,))
        child.start()
        child.join()
        assert child.exitcode == 0
        client.send("orders", "from the parent")
        found = [one for _ in range(2) for one in client.receive("orders", "shop", wait="0s")]
        assert sorted(one.text for one in found) == ["from the child"] + ["from the parent"] * 2
    finally:
        broker.stop()


def test_a_long_poll_of_a_cancelled_task_leases_nothing(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()

    async def scenario() -> None:
        async with AsyncClient(broker.http) as client, asyncio.timeout(30):
            await client.send("other", "x")
            polling = asyncio.ensure_future(client.receive("orders", "shop"))
            while open_polls(broker) != 1:
                await asyncio.sleep(0.01)
            polling.cancel()
            while open_polls(broker) != 0:
                await asyncio.sleep(0.01)
            await client.send("orders", "y")
            [message] = await client.receive("orders", "shop")
            assert message.attempt == 1

    try:
        asyncio.run(scenario())
    finally:
        broker.stop()
