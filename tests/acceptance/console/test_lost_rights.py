"""A right or a token that is taken away is taken from open pages at once; audits are for administrators."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from tests.audit_runs import write_run
from tests.command import tidewheel
from tests.console_process import Browser, ConsoleProcess
from tidewheel.testing.process import BrokerProcess


class Place(NamedTuple):
    """A broker that asks for a token, and its console."""

    run: Callable[..., str]
    console: ConsoleProcess

    def user(self, name: str, *rights: str) -> Browser:
        """Return the browser of a new user, whose rights are words of `tidewheel auth`."""
        self.run("auth", "user", "add", name)
        if rights:
            self.run("auth", *rights)
        browser = Browser(self.console.url + "/sign-in")
        token = self.run("auth", "token", "add", name).split()[1]
        assert browser.post("/sign-in", token=token).status == 200
        return browser


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("lost")
    token, audits = folder / "token", folder / "audits"
    write_run(audits, "20261121T020000Z", totals={"orders": 4711}, cases={"balanced": 4711})
    broker = BrokerProcess(folder, ("--http-token", str(token)))
    broker.start()
    console = ConsoleProcess(os.environ, broker.http, "--audits", str(audits))

    def run(*command: str) -> str:
        done = tidewheel(*command, "--http", broker.http, environment={"TIDEWHEEL_HTTP_TOKEN": str(token)})
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    yield Place(run, console)
    console.stop()
    broker.stop()


KINDS = ("text/html", "application/json")


@pytest.mark.parametrize("kind", KINDS)
def test_a_right_that_is_taken_away_is_taken_from_open_pages(place: Place, kind: str) -> None:
    user = f"viewer-{kind[-4:]}"
    browser = place.user(user, "acl", "allow", user, "view", "--topic", "*")
    assert browser.open("/topics", X_Refresh="page", Accept=kind).status == 200
    place.run("auth", "acl", "deny", user, "view", "--topic", "*")
    assert browser.open("/topics", Accept=kind).status == 403
    assert browser.open("/topics", X_Refresh="page", Accept=kind).status == 403
    place.run("auth", "acl", "allow", user, "view", "--topic", "*")


@pytest.mark.parametrize("kind", KINDS)
def test_a_revoked_token_shows_nothing(place: Place, kind: str) -> None:
    user = f"revoked-{kind[-4:]}"
    browser = place.user(user, "acl", "allow", user, "view", "--topic", "*")
    assert browser.open("/topics", X_Refresh="page", Accept=kind).status == 200
    tokens = json.loads(place.run("auth", "token", "ls", "--json"))
    place.run("auth", "token", "revoke", *(one["id"] for one in tokens if one["user"] == user))
    assert browser.open("/topics", X_Refresh="page", Accept=kind).status == 401


def test_the_overview_shows_audits_to_administrators_only(place: Place) -> None:
    nobody, admin = place.user("nobody"), place.user("boss", "role", "boss", "admin")
    assert nobody.open("/audits").status == 403
    assert "4,711" in admin.open("/").text
    assert "audit" not in [row["name"] for row in nobody.model("/")["rows"]]
    assert "4,711" not in nobody.open("/").text
