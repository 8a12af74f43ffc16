"""Which broker the commands call, and where a token never goes."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from services.http.calls import HttpCalls, client_settings
from services.http.errors import TokenAstray
from tidewheel.errors import ConfigurationError


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Work in an empty folder, without settings in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("TIDEWHEEL_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("listens", "called"),
    [
        ("0.0.0.0:8088", "http://127.0.0.1:8088"),
        ("[::]:8088", "http://[::1]:8088"),
        ("127.0.0.1:9", "http://127.0.0.1:9"),
        ("https://0.0.0.0:9/", "https://127.0.0.1:9"),
    ],
)
def test_the_file_of_a_broker_tells_the_commands_where_it_is(listens: str, called: str) -> None:
    Path("tidewheel.toml").write_text(f'http = "{listens}"\nhttp_token = "token"\n')
    assert client_settings(None).http.all[0].url == called
    assert client_settings("127.0.0.1:1").http.all[0].url == "http://127.0.0.1:1"


@pytest.mark.parametrize("from_file", [False, True])
def test_a_file_that_nobody_has_named_sends_no_token_to_another_machine(
    monkeypatch: pytest.MonkeyPatch, from_file: bool
) -> None:
    token = 'http_token = "/home/me/token"\n' if from_file else ""
    Path("tidewheel.toml").write_text(f'http = "collector.example:80"\n{token}')
    if not from_file:
        assert str(client_settings(None).http) == "collector.example:80", "no token, nothing to give away"
        monkeypatch.setenv("TIDEWHEEL_HTTP_TOKEN", "/home/me/token")
    with pytest.raises(TokenAstray, match=r"sent to collector\.example:80.*TIDEWHEEL_CONFIG=tidewheel\.toml"):
        client_settings(None)
    assert client_settings("collector.example:80").http_token == Path("/home/me/token")
    monkeypatch.setenv("TIDEWHEEL_CONFIG", "tidewheel.toml")
    assert client_settings(None).http.all[0].host == "collector.example"


def test_of_several_nodes_one_that_is_there_is_called() -> None:
    with socket.create_server(("127.0.0.1", 0)) as there, socket.create_server(("127.0.0.1", 0)) as gone:
        here, away = (f"127.0.0.1:{one.getsockname()[1]}" for one in (there, gone))
        gone.close()
        assert str(HttpCalls(f"{away},https://{here}").address) == here
        assert str(HttpCalls(f"{here}, {away}").address) == here
        assert str(HttpCalls(f"{away},{away}").address) == away
    with pytest.raises(ConfigurationError, match="HOST:PORT"):
        HttpCalls("127.0.0.1:1,")
