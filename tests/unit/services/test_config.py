"""A flag goes before the environment, the environment before the default; a wrong value names its source."""

from __future__ import annotations

import pytest

from commitlog.errors import ConfigurationError
from services.config import Address, ServeSettings, load, parse_address


def test_a_flag_goes_before_the_environment_and_that_before_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert load(ServeSettings).listen == Address("127.0.0.1", 8081)
    monkeypatch.setenv("TIDEWHEEL_LISTEN", "0.0.0.0:1")
    monkeypatch.setenv("TIDEWHEEL_AUTO_CREATE", "no")
    settings = load(ServeSettings, listen="[::1]:2", auto_create=None)
    assert settings.listen == Address("::1", 2)
    assert not settings.auto_create


@pytest.mark.parametrize(
    "text", ["", "localhost", ":8081", "localhost:", "localhost:http", "localhost:70000", "::1:8081x"]
)
def test_an_address_that_cannot_be_one_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"--listen is .*HOST:PORT"):
        load(ServeSettings, listen=text)


def test_the_message_names_the_variable_when_it_came_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TIDEWHEEL_CHECK_COUNT_MAX", "0")
    with pytest.raises(ConfigurationError, match=r"TIDEWHEEL_CHECK_COUNT_MAX is '0': .*greater than"):
        load(ServeSettings)


def test_where_groups_begin_is_one_of_two() -> None:
    assert load(ServeSettings, group_start="latest").group_start == "latest"
    with pytest.raises(ConfigurationError, match=r"--group-start is 'middle': .*'earliest' or 'latest'"):
        load(ServeSettings, group_start="middle")


@pytest.mark.parametrize("text", ["127.0.0.1:0", "[::1]:8081", "broker.example:443"])
def test_an_address_prints_as_it_is_written(text: str) -> None:
    assert str(parse_address(text)) == text
