"""A viewer, an operator and an admin in the console: what each sees, and what the broker lets each do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.command import tidewheel
from tests.console_process import Browser, ConsoleProcess
from tidewheel.testing.process import BrokerProcess

SHOWN = (
    *("/", "/messages", "/search", "/topics", "/topics/one?name=orders", "/timers", "/schedules"),
    *("/transactions", "/groups", "/groups/one?name=shop", "/dead-letters", "/tasks", "/clients"),
    *("/refused", "/cluster"),
)
ROLES = {
    "viewer": ("viewer",),
    "operator": ("operator", "--topic", "or*", "--group", "shop"),
    "admin": ("admin",),
}
CLERK = "clerk"
"""A user without a role, who may view some topics."""


@pytest.fixture(scope="module")
def browsers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Browser]]:
    """A browser of a user of each role."""
    folder = tmp_path_factory.mktemp("roles")
    token = folder / "token"
    broker = BrokerProcess(folder, ("--http-token", str(token)))
    broker.start()
    console = ConsoleProcess(os.environ, broker.http, "--audits", str(folder / "none"))
    try:
        given = dict.fromkeys(ROLES, "")
        for user, role in ROLES.items():
            run(broker, token, "auth", "user", "add", user)
            run(broker, token, "auth", "role", user, *role)
            given[user] = run(broker, token, "auth", "token", "add", user).split()[1]
        run(broker, token, "auth", "user", "add", CLERK)
        run(broker, token, "auth", "acl", "allow", CLERK, "view", "--topic", "or*")
        given[CLERK] = run(broker, token, "auth", "token", "add", CLERK).split()[1]
        run(broker, token, "send", "orders", "7", "--in", "30m", "--timer-key", "order:7")
        run(broker, token, "send", "carts", "8", "--in", "30m", "--timer-key", "cart:8")
        run(broker, token, "group", "create", "shop", "orders")
        found = {}
        for user, text in given.items():
            found[user] = Browser(console.url + "/sign-in")
            assert found[user].post("/sign-in", token=text).status == 200
        yield found
    finally:
        console.stop()
        broker.stop()


def run(broker: BrokerProcess, token: Path, *command: str) -> str:
    """Run a command as the administrator; return what it prints."""
    done = tidewheel(*command, "--http", broker.http, environment={"TIDEWHEEL_HTTP_TOKEN": str(token)})
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


@pytest.mark.parametrize("user", ROLES)
@pytest.mark.parametrize("path", SHOWN)
def test_each_role_sees_every_page(browsers: dict[str, Browser], user: str, path: str) -> None:
    answer = browsers[user].open(path)
    assert answer.status == 200, answer.text
    assert "TW-182" not in answer.text


@pytest.mark.parametrize(
    ("user", "topic", "status"),
    [
        ("viewer", "orders", 403),
        ("operator", "carts", 403),
        ("operator", "orders", 200),
        ("admin", "carts", 200),
    ],
)
def test_each_role_moves_the_timers_that_it_may(
    browsers: dict[str, Browser], user: str, topic: str, status: int
) -> None:
    (timer,) = browsers[user].model(f"/timers?{urlencode({'topic': topic})}")["timers"]
    named = {"topic": topic, "id": timer["message_id"], "to": "in 1h", "reason": "test"}
    answer = browsers[user].post("/timers/one/move", **named)
    assert (answer.status, "MOVED" in answer.text) == (status, status == 200), answer.text


def test_audits_are_for_admins(browsers: dict[str, Browser]) -> None:
    statuses = {user: browsers[user].open("/audits").status for user in ROLES}
    assert statuses == {"viewer": 403, "operator": 403, "admin": 200}


def test_who_sees_some_topics_searches_these(browsers: dict[str, Browser]) -> None:
    clerk = browsers[CLERK]
    assert clerk.model("/search")["topics"] == []
    assert clerk.open("/search?topic=orders&text=x").status == 200
    assert clerk.open("/topics/one?name=orders").status == 200
    for path in ("/search?topic=carts&text=x", "/topics/one?name=carts", "/topics"):
        assert clerk.open(path).status == 403
