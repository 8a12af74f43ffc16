"""A flag goes before the environment, that before the file, that before the default; a wrong value or name is
refused with its source, and what is declared once is the same everywhere.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Annotated, get_type_hints

import pytest

from services.cli.settings import config as command
from services.settings.config import (
    Address,
    ClientSettings,
    ServeSettings,
    all_settings,
    ignored_variables,
    load,
    look_up,
    parse_address,
    secret_in,
)
from services.settings.errors import InputUnreadable, UnknownSetting
from services.settings.setting import Meta, declared, settings_of
from services.settings.sources import FILE_VARIABLE, KUBERNETES, OTHER_VARIABLES
from tidewheel.errors import ConfigurationError

ROOT = Path(__file__).parents[4]
SOURCES = {"", ".py", ".md", ".go", ".java", ".js", ".rs", ".toml"}


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Work in an empty folder, without settings in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("TIDEWHEEL_")]:
        monkeypatch.delenv(name)


def test_a_flag_goes_before_the_environment_that_before_the_file_and_that_before_the_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert load(ServeSettings).listen == Address("127.0.0.1", 8081)
    Path("tidewheel.toml").write_text('listen = "10.0.0.1:3"\nauto_create = true\nqueue_count = 7\n')
    monkeypatch.setenv("TIDEWHEEL_LISTEN", "0.0.0.0:1")
    monkeypatch.setenv("TIDEWHEEL_AUTO_CREATE", "no")
    settings = load(ServeSettings, listen="[::1]:2", auto_create=None)
    assert settings.listen == Address("::1", 2)
    assert not settings.auto_create
    assert settings.queue_count == 7
    found = look_up(settings_of(ServeSettings), {"listen": "[::1]:2"})
    origins = {name: found[name].origin for name in ("listen", "auto_create", "queue_count", "flush")}
    assert origins == {
        "listen": "--listen",
        "auto_create": "TIDEWHEEL_AUTO_CREATE",
        "queue_count": "queue_count in tidewheel.toml",
        "flush": "default",
    }


def test_a_file_is_named_by_a_flag_or_a_variable_and_its_paths_are_relative_to_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Path("tidewheel.toml").write_text('broker_name = "here"\n')
    etc = tmp_path / "etc"
    etc.mkdir()
    for name in ("flag", "variable"):
        (etc / f"{name}.toml").write_text(f'broker_name = "{name}"\nstore = "data"\nhttp_token = "/token"\n')
    assert load(ServeSettings).broker_name == "here"
    monkeypatch.setenv(FILE_VARIABLE, str(etc / "variable.toml"))
    assert load(ServeSettings).broker_name == "variable"
    settings = load(ServeSettings, etc / "flag.toml")
    assert settings.broker_name == "flag"
    assert (settings.store, settings.http_token) == (etc / "data", Path("/token"))
    monkeypatch.setenv(FILE_VARIABLE, os.devnull)
    assert load(ServeSettings) == ServeSettings()


@pytest.mark.parametrize("text", ["listen = \n", "[[\n", "listen = 'a'\nlisten = 'b'\n"])
def test_a_file_that_is_no_toml_is_refused_with_the_place(text: str) -> None:
    Path("tidewheel.toml").write_text(text)
    with pytest.raises(InputUnreadable, match=r"tidewheel\.toml is no TOML: .*line"):
        load(ServeSettings)


def test_a_file_that_is_not_there_is_refused_when_it_was_named() -> None:
    with pytest.raises(InputUnreadable, match=r"gone\.toml: No such file"):
        load(ServeSettings, Path("gone.toml"))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("listn = 1", "listn in tidewheel.toml is no setting; did you mean listen?"),
        ("queue-count = 1", "queue-count in tidewheel.toml is no setting; did you mean queue_count?"),
        ("xyzzy = 1", "xyzzy in tidewheel.toml is no setting; tidewheel config example lists all."),
        ("[serve]\nlisten = 1", "serve in tidewheel.toml is no setting;"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(line: str, said: str) -> None:
    Path("tidewheel.toml").write_text(line)
    with pytest.raises(UnknownSetting, match=re.escape(said)):
        load(ServeSettings)


@pytest.mark.parametrize("kind", [ServeSettings, ClientSettings])
def test_an_unknown_variable_is_ignored_and_named_with_the_nearest(
    monkeypatch: pytest.MonkeyPatch, kind: type[ServeSettings]
) -> None:
    monkeypatch.setenv("TIDEWHEEL_LISTN", "0.0.0.0:1")
    assert load(kind) == kind()
    assert ignored_variables() == ["TIDEWHEEL_LISTN is no setting; did you mean TIDEWHEEL_LISTEN?"]


@pytest.mark.parametrize(
    "name",
    [
        "TIDEWHEEL_SERVICE_HOST", "TIDEWHEEL_SERVICE_PORT", "TIDEWHEEL_SERVICE_PORT_GRPC", "TIDEWHEEL_PORT",
        "TIDEWHEEL_PORT_8081_TCP", "TIDEWHEEL_PORT_8081_TCP_PROTO", "TIDEWHEEL_HTTP_SERVICE_HOST",
        "TIDEWHEEL_HTTP_PORT_8088_TCP_ADDR", *OTHER_VARIABLES,
    ],
)  # fmt: skip
def test_variables_of_kubernetes_services_and_of_our_tests_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "" if name == FILE_VARIABLE else "tcp://10.0.0.1:8081")
    assert load(ServeSettings) == ServeSettings()
    assert ignored_variables() == []


def test_every_variable_that_the_repository_names_is_known() -> None:
    known = {setting.variable for setting in all_settings().values()} | OTHER_VARIABLES.keys()
    folders = [ROOT / name for name in ("services", "spark_jobs", "tidewheel", "txn", "docs", "tests")]
    built = {"node_modules", "target"}  # of the clients, once they were built
    sources = [path for folder in folders for path in folder.rglob("*") if not built & {*path.parts}]
    named: dict[str, Path] = {}
    for path in (ROOT / "Makefile", ROOT / "README.md", *sources):
        if path.suffix in SOURCES and path.is_file() and path != Path(__file__):
            named |= dict.fromkeys(re.findall(r"TIDEWHEEL_[A-Z_]*[A-Z]", path.read_text()), path)
    assert {
        name: path for name, path in named.items() if name not in known and not KUBERNETES.fullmatch(name)
    } == {}


@pytest.mark.parametrize("text", ["", "localhost", ":8081", "localhost:", "localhost:http", "::1:8081x"])
def test_an_address_that_cannot_be_one_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"--listen is .*HOST:PORT"):
        load(ServeSettings, listen=text)


def test_a_port_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigurationError, match=r"--listen is 'localhost:70000': its port .* 0 to 65535"):
        load(ServeSettings, listen="localhost:70000")


def test_each_value_that_is_wrong_is_named_with_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("tidewheel.toml").write_text('check_count_max = 0\nauth = "perhaps"\nqueue_count = true\n')
    monkeypatch.setenv("TIDEWHEEL_ATTEMPTS_MAX", "many")
    with pytest.raises(ConfigurationError) as refused:
        load(ServeSettings, broker_name="x" * 128, retain_hours="0", group_pin_hours="nan")
    for sentence in (
        "check_count_max in tidewheel.toml is '0': it must be at least 1.",
        "auth in tidewheel.toml is 'perhaps': it must be true or false.",
        "queue_count in tidewheel.toml is 'True': it must be a whole number.",
        "TIDEWHEEL_ATTEMPTS_MAX is 'many': it must be a whole number.",
        "it must be at most 127 characters long.",
        "--retain-hours is '0': it must be greater than 0.",
        "--group-pin-hours is 'nan': it must be a number.",
    ):
        assert sentence in str(refused.value)


def test_a_variable_that_is_set_to_nothing_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEWHEEL_HTTP_TOKEN", "")
    assert load(ServeSettings).http_token is None


def test_where_groups_begin_is_one_of_two() -> None:
    assert load(ServeSettings, group_start="latest").group_start == "latest"
    with pytest.raises(ConfigurationError, match=r"--group-start is 'middle': .*'earliest' or 'latest'"):
        load(ServeSettings, group_start="middle")


@pytest.mark.parametrize("text", ["127.0.0.1:0", "[::1]:8081", "broker.example:443"])
def test_an_address_prints_as_it_is_written(text: str) -> None:
    assert str(parse_address(text)) == text


def test_every_default_keeps_its_own_bounds() -> None:
    for setting in declared(ServeSettings):
        if setting.default is not None:
            assert setting.parse(setting.default) == setting.default
            assert setting.parse(str(setting.default)) == setting.default


def test_the_example_sets_nothing_and_with_its_comments_off_what_is_the_default_anyway() -> None:
    shown = command.example()
    assert tomllib.loads(shown) == {}
    set_all = tomllib.loads(re.sub(r"^#(?=\w+ = )", "", shown, flags=re.MULTILINE))
    assert set_all.keys() == all_settings().keys()
    for name, value in set_all.items():
        setting = all_settings()[name]
        assert setting.default is None or setting.parse(value) == setting.default


def test_the_documented_table_is_that_of_the_code() -> None:
    documented = (ROOT / "docs" / "configuration.md").read_text()
    assert command.table() in documented, "tidewheel config docs"


def test_a_setting_says_what_it_is_about() -> None:
    for name, hint in get_type_hints(ServeSettings, include_extras=True).items():
        (about,) = (one for one in hint.__metadata__ if isinstance(one, Meta))
        assert about.meaning.endswith("."), name
        assert about.heading, name


def test_a_class_without_such_words_cannot_declare() -> None:
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Silent:
        size: int = 1

    @dataclass(frozen=True)
    class Needy:
        size: Annotated[int, Meta("How large.")]

    for kind in (Silent, Needy):
        with pytest.raises(AssertionError):
            settings_of(kind)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HTTP", "http://me:pass@a:1"),
        ("HTTP", "me:pass@a:1"),
        ("HTTP", "http://a:1?token=pass"),
        ("HTTP", "ftp://me:p/a@ss:pass@a:1"),
        ("LISTEN", "me:pass@a:1"),
    ],
)
def test_a_wrong_address_is_shown_without_its_password(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(f"TIDEWHEEL_{variable}", value)
    with pytest.raises(ConfigurationError, match=f"TIDEWHEEL_{variable} is ") as refused:
        load(ServeSettings if variable == "LISTEN" else ClientSettings)
    assert "pass" not in str(refused.value)
    assert "p/a" not in str(refused.value)


def test_a_token_in_place_of_its_file_is_not_shown() -> None:
    with pytest.raises(ConfigurationError, match="TIDEWHEEL_HTTP_TOKEN has a token itself") as refused:
        secret_in(Path(f"tw_3f9a61c07b52_{'k' * 43}"), "http_token")
    assert "kkk" not in str(refused.value)


@pytest.mark.parametrize(("variable", "usual"), [("HTTP", "127.0.0.1:8088"), ("LISTEN", "127.0.0.1:8081")])
@pytest.mark.parametrize("value", ["127.0.0.1", "localhost:", "me@a:1"])
def test_a_wrong_address_is_told_with_the_usual_one(
    monkeypatch: pytest.MonkeyPatch, variable: str, usual: str, value: str
) -> None:
    """--http without a port named 8081, where HTTP is not spoken."""
    monkeypatch.setenv(f"TIDEWHEEL_{variable}", value)
    with pytest.raises(ConfigurationError, match=rf"HOST:PORT, such as {usual}\."):
        load(ServeSettings)
