"""The sentence about a missing library names an extra that brings it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tidewheel.databases import way_of_url
from tidewheel.extras import CLIENT_EXTRAS, EXTRAS, missing

ROOT = Path(__file__).parents[3]


def project(folder: str) -> dict[str, Any]:
    described: dict[str, Any] = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
    return described


@pytest.mark.parametrize("extra", EXTRAS)
def test_every_extra_is_one_of_the_distribution_that_is_named(extra: str) -> None:
    folder, name = (
        ("distributions/client", "tidewheel-client") if extra in CLIENT_EXTRAS else (".", "tidewheel")
    )
    assert extra in project(folder)["optional-dependencies"]
    assert f"pip install '{name}[{extra}]'" in str(missing(extra, "a library"))


def test_the_page_of_transactions_names_the_extras_of_the_drivers_that_it_uses() -> None:
    """Its code runs as printed after the line that installs it, in a fresh environment."""
    page = (ROOT / "docs/transactions.md").read_text()
    drivers = set(re.findall(r"(sqlite|mysql|mariadb)\+([a-z]+)://", page))
    assert {driver for _, driver in drivers} >= {"aiosqlite", "pymysql", "asyncmy"}
    for database, driver in drivers:
        extra = "txn" if database == "sqlite" else "mysql"
        assert driver in EXTRAS[extra]
    for extra in ("txn", "mysql"):
        brought = " ".join(project("distributions/client")["optional-dependencies"][extra])
        assert [library for library in EXTRAS[extra] if library not in brought] == []
    assert "greenlet" in EXTRAS["txn"]


def test_the_distributions_have_one_version() -> None:
    broker, client = project("."), project("distributions/client")
    assert broker["version"] == client["version"]
    assert f"tidewheel-client=={client['version']}" in broker["dependencies"]
    assert broker["optional-dependencies"]["txn"] == [f"tidewheel-client[txn]=={client['version']}"]


@pytest.mark.parametrize(
    ("url", "library"),
    [
        ("mysql+pymysql://u@h/x", "tidewheel-client[mysql]"),
        ("mariadb+pymysql://u@h/x", "tidewheel-client[mysql]"),
        ("postgresql+psycopg://u@h/x", "psycopg[binary]"),
    ],
)
def test_a_driver_that_is_named_and_not_there_is_to_be_installed(url: str, library: str) -> None:
    assert way_of_url(url) == f" Install it: pip install '{library}'"
