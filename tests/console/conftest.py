"""A broker with something on each page, its console, and a Chromium that signs in, as users of every role."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sharedlog.versions import SUPPORTED
from tests.audit_runs import write_run
from tests.command import tidewheel
from tests.console.chromium import Pipe, Tab, chromium, new_profile
from tests.console.verbs import World
from tests.console_process import ConsoleProcess
from tests.official_consumer import push_consumer
from tests.postgresql import running_postgresql
from tidewheel.command import COMMAND
from tidewheel.testing.process import SEGMENT_BYTES, BrokerProcess

ROLES: Final = {
    "viewer": ("viewer",),
    "operator": ("operator", "--topic", "orders*", "--group", "shop*"),
    "stranger": ("operator", "--topic", "carts*", "--group", "carts*"),
    "admin": ("admin",),
}
"""Users by their names, each with its role. The objects of the tests are not those of `stranger`."""
RUN: Final = "20261121T020000Z"
"""The audit of the stage."""


@pytest.fixture(scope="session")
def pipe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipe]:
    with chromium(tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.fixture
def tab(pipe: Pipe, broker: BrokerProcess) -> Iterator[Tab]:
    """A tab that came in by the HTTP address of the broker."""
    found = Tab(pipe)
    found.open(f"http://{broker.http}/")
    found.shows("keeping up")
    yield found
    found.close()


@dataclass
class Stage:
    """A broker that asks for a token, and its console, at which a user of each role signs in."""

    pipe: Pipe
    world: World
    url: str
    tokens: dict[str, str]
    tabs: dict[str, Tab] = field(default_factory=dict)

    def tab(self, role: str) -> Tab:
        """Return the tab of a user, in a profile of its own."""
        if role not in self.tabs:
            self.tabs[role] = self.sign_in(Tab(self.pipe, profile=new_profile(self.pipe)), role)
        return self.tabs[role]

    def sign_in(self, tab: Tab, role: str) -> Tab:
        """Sign a user in by the form."""
        tab.open(f"{self.url}/sign-in")
        tab.fill("form[action='/sign-in']", token=self.tokens[role])
        tab.press("form[action='/sign-in'] button")
        tab.shows("Sign out")
        return tab

    def form(self, page: str, action: str) -> dict[str, str]:
        """Return the fields of a form, as the page has them for the administrator."""
        tab = self.tab("admin")
        tab.open(self.url + page)
        place = json.dumps(f'form[action="{action}"]')
        tab.until(f"document.querySelector({place})")
        found: dict[str, str] = tab.run(f"Object.fromEntries(new FormData(document.querySelector({place})))")
        return found


def enrol(http: str, token: Path) -> dict[str, str]:
    """Add a user of each role; return the token of each."""

    def run(*command: str) -> str:
        done = tidewheel(*command, "--http", http, environment={"TIDEWHEEL_HTTP_TOKEN": str(token)})
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    for user, role in ROLES.items():
        run("auth", "user", "add", user)
        run("auth", "role", user, *role)
    return {user: run("auth", "token", "add", user).split()[1] for user in ROLES}


@pytest.fixture(scope="session")
def stage(pipe: Pipe, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A broker with users of every role, and an official consumer where its library is installed."""
    folder = tmp_path_factory.mktemp("stage")
    token = folder / "token"
    with ExitStack() as stack:
        broker = BrokerProcess(folder, ("--http-token", str(token)))
        stack.callback(broker.stop)
        broker.start()
        world = World(broker.http, token.read_text().strip())
        world.api.post("topics", body={"name": "seen", "queue_count": 1})
        world.api.post("messages", body={"topic": "seen", "body": "x"})
        if importlib.util.find_spec("rocketmq"):
            stack.enter_context(push_consumer(broker.listen, "watchers", "seen", folder))
            while not (found := world.api.get("clients")["clients"]):
                pass
            world.client = found[0]["client_id"]
        write_audit(folder / "audits")
        console = ConsoleProcess(os.environ, broker.http, "--audits", str(folder / "audits"))
        stack.callback(console.stop)
        yield Stage(pipe, world, console.url, enrol(broker.http, token))


def write_audit(folder: Path) -> None:
    """Write a run whose books do not balance, as an audit does."""
    run = write_run(folder, RUN, balanced=False, totals={"orders": 2}, cases={"fired-late": 1, "balanced": 1})
    event = {"physical_offset": 7, "store_ms": 1_763_700_000_000, "kind": "half", "topic": "<t>", "note": "n"}
    order = {"subject": "order", "subject_id": "7", "order_id": "7", "case": "fired-late", "why": "Late."}
    row = order | {"due_ms": 1_763_700_000_000, "timeline": [event]}
    pq.write_table(pa.Table.from_pylist([row]), run.findings / "part.parquet")
    run.report.write_text("<!doctype html><title>r</title><h1>Audit</h1>")


class VersionedNode(BrokerProcess):
    """A node whose program supports the version of the variable `SUPPORTED_VERSION`."""

    def _command(self) -> list[str]:
        words = super()._command()
        assert words[: len(COMMAND)] == list(COMMAND)
        return [COMMAND[0], "-m", "tests.endurance.node_of_version", *words[len(COMMAND) :]]


@pytest.fixture(scope="session")
def cluster(pipe: Pipe, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Two nodes of a cluster, with users of every role."""
    folder = tmp_path_factory.mktemp("cluster")
    token, numbers = folder / "token", count()
    with running_postgresql() as database, ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUPPORTED_VERSION", str(SUPPORTED))
        url = f"{database.replace('postgresql+psycopg', 'postgresql')}&log=verbs"
        made = tidewheel("cluster", "create", url, "--segment-bytes", SEGMENT_BYTES)
        assert made.returncode == 0, made.stderr

        def node(name: str) -> BrokerProcess:
            (folder / name).mkdir()
            key = ("--auth-key", str(folder / "users.key"), "--http-token", str(token))
            options = ("--clock", "real", "--cluster", url, "--node", name, *key)
            found = VersionedNode(folder / name, options)
            stack.callback(found.stop)
            found.start()
            return found

        nodes = [node(name) for name in "ab"]
        world = World(",".join(one.http for one in nodes), token.read_text().strip())
        until(world, lambda found: {"a", "b"} <= found["copies"].keys() and found["leader"])

        def gone() -> str:
            for known in world.api.get("cluster")["copies"].keys() - {"a", "b"}:
                return str(known)
            name = f"gone{next(numbers)}"
            third = node(name)
            until(world, lambda found: name in found["copies"])
            third.stop()
            return name

        def restart_as(version: int) -> None:
            for known in world.api.get("cluster")["copies"].keys() - {"a", "b"}:
                world.api.post("cluster", "forget", body={"node": known})
            patch.setenv("SUPPORTED_VERSION", str(version))
            for one in nodes:
                one.stop()
                one.start()
            until(world, lambda found: all(found["copies"][name]["supports"] == version for name in "ab"))

        world.gone_node, world.restart_as = gone, restart_as
        console = ConsoleProcess(os.environ, world.http)
        stack.callback(console.stop)
        yield Stage(pipe, world, console.url, enrol(nodes[0].http, token))


def until(world: World, is_so: Callable[[Any], Any]) -> None:
    """Wait until the cluster is in a state."""
    while not is_so(world.api.get("cluster")):
        pass


@pytest.fixture
def stage_of(request: pytest.FixtureRequest) -> Callable[[str], Stage]:
    """Return the stage of a page: that of the cluster or of the single broker."""
    return partial(_stage_of, request)


def _stage_of(request: pytest.FixtureRequest, path: str) -> Stage:
    found: Stage = request.getfixturevalue("cluster" if path == "/cluster" else "stage")
    if path.startswith("/clients") and not found.world.client:
        pytest.skip("no official client is installed")
    return found
