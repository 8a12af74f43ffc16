"""Addresses, tokens and certificates: from arguments and from the environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tidewheel.client.address import broker
from tidewheel.errors import ConfigurationError


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TIDEWHEEL_HTTP", "TIDEWHEEL_HTTP_TOKEN", "TIDEWHEEL_HTTP_CA"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("given", "urls"),
    [
        (None, ["http://127.0.0.1:8088"]),
        ("localhost:8088", ["http://localhost:8088"]),
        ("http://broker", ["http://broker"]),
        ("https://broker:8088/", ["https://broker:8088"]),
        ("https://proxy/tidewheel/", ["https://proxy/tidewheel"]),
        ("0.0.0.0:8088", ["http://127.0.0.1:8088"]),
        ("[::1]:8088, a:1", ["http://[::1]:8088", "http://a:1"]),
        ("[::]:8088", ["http://[::1]:8088"]),
    ],
)
def test_an_address_is_a_url_whatever_way_it_is_written(given: str | None, urls: list[str]) -> None:
    assert list(broker(given, None, None).urls) == urls


@pytest.mark.parametrize(
    "given",
    [
        "",
        "broker",
        "broker:x",
        "ftp://broker:1",
        "http://",
        "http://a:1?x=1",
        "http://me:pw@a:1",
        "[::1",
        "a:1,",
        "http://a :1",
        "http://a\u00a0b:1",
        7,
    ],
)
def test_what_is_no_address_is_one_error_that_shows_how_to_write_one(given: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"url is .*[Ww]rite it as http://127.0.0.1:8088"):
        broker(given, None, None)


@pytest.mark.parametrize(
    "given",
    [
        "http://me:pa ss@a:1x",
        "http://me:pass@[::1",
        "me:pass@a",
        "ftp://me:pass@a:1",
        "http://a:1x/pass@b",
        "http://a:1x?token=pass",
        "http://a:1x#pass",
    ],
)
def test_an_address_with_a_secret_is_not_shown(given: str) -> None:
    with pytest.raises(ConfigurationError, match=r"url is .*[Ww]rite it as") as refused:
        broker(given, None, None)
    assert "pass" not in str(refused.value)
    assert "pa ss" not in str(refused.value)


def test_the_environment_is_read_where_no_argument_is_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("secret\n")
    monkeypatch.setenv("TIDEWHEEL_HTTP", "broker:1")
    monkeypatch.setenv("TIDEWHEEL_HTTP_TOKEN", str(tmp_path / "token"))
    found = broker(None, None, None)
    assert (found.urls, found.token) == (("http://broker:1",), "secret")
    assert broker("other:2", "mine", None).token == "mine"
    assert "secret" not in repr(found)
    monkeypatch.setenv("TIDEWHEEL_HTTP_TOKEN", str(tmp_path / "missing"))
    with pytest.raises(ConfigurationError, match=r"TIDEWHEEL_HTTP_TOKEN is .*missing"):
        broker(None, None, None)
    monkeypatch.setenv("TIDEWHEEL_HTTP", "nonsense")
    with pytest.raises(ConfigurationError, match="TIDEWHEEL_HTTP is 'nonsense'"):
        broker(None, "x", None)


def test_a_token_in_place_of_its_file_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEWHEEL_HTTP_TOKEN", f"tw_3f9a61c07b52_{'k' * 43}")
    with pytest.raises(ConfigurationError, match="TIDEWHEEL_HTTP_TOKEN has a token itself") as refused:
        broker("a:1", None, None)
    assert "kkk" not in str(refused.value)


@pytest.mark.parametrize("token", ["two words", "line\nbreak", "ü", 7, b"x"])
def test_a_token_that_no_header_holds_is_refused(token: Any) -> None:
    with pytest.raises(ConfigurationError, match="The token"):
        broker(None, token, None)


def test_a_file_of_certificates_that_is_none_is_told() -> None:
    with pytest.raises(ConfigurationError, match="Name a file of certificates"):
        broker("https://a:1", None, "/nowhere.pem").tls()


def test_a_broker_is_called_by_the_proxy_of_the_environment_but_on_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("no_proxy", "NO_PROXY", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    found = broker("http://far.example:1,http://127.0.0.1:2", None, None)
    proxy = found.proxy_of("http://far.example:1")
    assert proxy is not None
    assert proxy.url == "http://proxy.example:3128"
    assert found.direct_urls == ("http://127.0.0.1:2",)
    assert broker("http://far.example:1", "secret", None).proxy_of("http://far.example:1") is None, (
        "its token"
    )
