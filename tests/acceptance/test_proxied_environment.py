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


def errors_by(proxy: str, url: str, environ: pytest.MonkeyPatch) -> list[str]:
    """What the command, both clients say of a broker elsewhere, which a proxy is named for."""
    for name in VARIABLES:
        environ.delenv(name, raising=False)
    environ.setenv(url.partition(":")[0] + "_proxy", proxy)

    async def send() -> None:
        async with AsyncClient(url, token="", timeout=5) as client:
            await client.send("orders", "x")

    with Client(url, token="", timeout=5) as client, pytest.raises(TidewheelError) as sync:
        client.send("orders", "x")
    with pytest.raises(TidewheelError) as in_loop:
        asyncio.run(send())
    ended = tidewheel("topic", "ls", "--http", url)
    assert ended.returncode in (2, 3)
    return [ended.stderr, *(f"{one.value.code} {one.value}" for one in (sync, in_loop))]


@pytest.mark.parametrize("url", [f"http://{ELSEWHERE}", f"https://{ELSEWHERE}"])
@pytest.mark.parametrize(
    "wrong", ["foo://u:secret@127.0.0.1:1", "http://u:secret@127.0.0.1:x", "http://", "socks5://127.0.0.1:1"]
)
def test_a_proxy_that_is_none_is_told_by_its_variable(
    wrong: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were an ImportError or a ValueError of the library, or silence."""
    for told in errors_by(wrong, url, monkeypatch):
        assert told.startswith("TW-120 ")
        assert f"{url.partition(':')[0]}_proxy" in told
        assert "no_proxy" in told
        assert "secret" not in told


@pytest.mark.parametrize("url", [f"http://{ELSEWHERE}", f"https://{ELSEWHERE}"])
def test_a_proxy_that_does_not_serve_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        dead = f"127.0.0.1:{taken.getsockname()[1]}"
    for told in errors_by(f"http://u:secret@{dead}", url, monkeypatch):
        assert told.startswith("TW-123 ")
        assert f"http://{dead} ({url.partition(':')[0]}_proxy)" in told
        assert "secret" not in told


def test_a_proxy_for_others_is_none_of_a_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    for told in errors_by("foo://127.0.0.1:1", f"https://{ELSEWHERE}", monkeypatch):
        assert told.startswith("TW-120 ")
    monkeypatch.setenv("no_proxy", ELSEWHERE.partition(":")[0])
    with Client(f"https://{ELSEWHERE}", timeout=5) as client, pytest.raises(BrokerUnreachable) as error:
        client.send("orders", "x")
    assert "proxy" not in str(error.value)
    assert tidewheel("topic", "ls", "--http", f"https://{ELSEWHERE}").returncode == 3


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
