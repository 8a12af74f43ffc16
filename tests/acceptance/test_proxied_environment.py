"""A developer whose environment names a proxy for everything: the broker is not behind it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from services.shop.calls import channel_to, stub_of
from services.shop.generated import shop_pb2
from tests.command import tidewheel
from tidewheel import AsyncClient, Client
from tidewheel.errors import BrokerUnreachable, TidewheelError
from tidewheel.testing.process import BrokerProcess

TOKEN: Final = "s3cret-s3cret-s3cret-s3cret-s3cret"
VARIABLES: Final = ("http_proxy", "https_proxy", "all_proxy", "HTTPS_PROXY", "ALL_PROXY", "grpc_proxy")
REFUSAL: Final = b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
ELSEWHERE: Final = "broker.invalid:8088"


class Proxy:
    """A proxy that refuses everything, and what it was asked."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.asked: list[str] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                self.asked.append(connection.recv(65_536).decode(errors="replace"))
                connection.sendall(REFUSAL)

    def close(self) -> None:
        """End it."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """The proxy of the environment."""
    proxy = Proxy()
    for name in VARIABLES:
        monkeypatch.setenv(name, proxy.url)
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    yield proxy
    proxy.close()


@pytest.fixture
def token(tmp_path: Path) -> Path:
    """A file with the broker's token."""
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    return token


def test_a_broker_on_this_machine_is_not_asked_for_through_a_proxy(
    proxy: Proxy, token: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    monkeypatch.setenv("TIDEWHEEL_HTTP_TOKEN", str(token))
    addresses = (broker.http, broker.http.replace("127.0.0.1", "LOCALHOST"), f"{broker.http},{ELSEWHERE}")
    try:
        for address in addresses:
            listed = tidewheel("topic", "ls", environment={"TIDEWHEEL_HTTP": address})
            assert listed.returncode == 0, listed.stderr
            with Client(address, token="") as client:
                client.send("orders", "x")

            async def send(url: str = address) -> None:
                async with AsyncClient(url, token="") as client:
                    await client.send("orders", "x")

            asyncio.run(send())
        assert broker.get("/api/topics")["topics"]
    finally:
        broker.stop()
    assert proxy.asked == []


def test_a_token_goes_over_plain_http_to_the_broker_alone(proxy: Proxy, token: Path) -> None:
    with Client(ELSEWHERE, token=TOKEN, timeout=5) as client, pytest.raises(BrokerUnreachable):
        client.send("orders", "x")
    environment = {"TIDEWHEEL_HTTP": ELSEWHERE, "TIDEWHEEL_HTTP_TOKEN": str(token)}
    assert tidewheel("topic", "ls", environment=environment).returncode == 3
    assert proxy.asked == []


def test_a_proxy_is_asked_for_a_broker_elsewhere_and_sees_no_token(
    proxy: Proxy, token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEWHEEL_HTTP_TOKEN", str(token))
    with Client(f"https://{ELSEWHERE}", timeout=5) as client, pytest.raises(TidewheelError):
        client.send("orders", "x")
    assert tidewheel("topic", "ls", "--http", f"https://{ELSEWHERE}").returncode == 3
    assert {one.split()[0] for one in proxy.asked} == {"CONNECT"}
    assert not any(TOKEN in one for one in proxy.asked)


def test_the_shop_calls_its_services_without_a_proxy(proxy: Proxy) -> None:
    with socket.create_server(("127.0.0.1", 0)) as service:
        service.settimeout(20)
        with channel_to(f"127.0.0.1:{service.getsockname()[1]}") as channel:
            called = stub_of("Carts", channel).Get.future(shop_pb2.CartRequest(), timeout=20)
            service.accept()[0].close()
            called.cancel()
    assert proxy.asked == []


def test_a_redirect_does_not_take_the_token_along(
    token: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEWHEEL_HTTP_TOKEN", str(token))
    elsewhere = Proxy()
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def redirect() -> None:
            with server.accept()[0] as connection:
                connection.recv(65_536)
                head = f"HTTP/1.1 302 Found\r\nlocation: {elsewhere.url}/\r\ncontent-length: 0\r\n\r\n"
                connection.sendall(head.encode())

        answering = threading.Thread(target=redirect)
        answering.start()
        assert tidewheel("topic", "ls", "--http", address).returncode == 3
        answering.join()
    elsewhere.close()
    assert elsewhere.asked == []
