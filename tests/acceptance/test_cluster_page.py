"""docs/cluster.md as an operator follows it: its commands word by word, on two machines and a PostgreSQL.

A block labelled `bash cluster` begins with where it is run. Machines are folders here, their addresses are
ports of this one's own (one that others reach, so that nodes speak TLS), and `scp` copies between folders.
`serve` stays, and is stopped and started where a comment of the block says so. What a block exports holds for
the later ones of that machine.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import psycopg
import pytest

from tests.acceptance.test_documents import blocks_of
from tests.postgresql import USER, PostgresServer, has_owner, program
from tidewheel.command import COMMAND

WHERE = {
    "# on the database server, as its superuser": ("database",),
    "# on machine a": ("a",),
    "# on machine b": ("b",),
    "# on both machines": ("a", "b"),
}
STOP, START = "# stop the node", "# start the node"
SECONDS = 90
DOCTOR = "tidewheel cluster doctor\n"
"""What ends with another code where it has found something, as the page says."""

pytestmark = pytest.mark.skipif(not os.environ.get("TIDEWHEEL_LONG"), reason="plays for minutes")


class PasswordedServer(PostgresServer):
    """A PostgreSQL that serves over TCP, too, and asks there for a password."""

    port = 0

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@/postgres?host={self.folder}&port={self.port}"

    def make(self) -> None:
        super().make()
        rules = self._data / "pg_hba.conf"
        asks = "host all tidewheel 127.0.0.1/32 scram-sha-256\n"
        rules.write_text(asks + rules.read_text())


def free_port(host: str) -> int:
    """A port that nobody has now."""
    with closing(socket.socket()) as one:
        one.bind((host, 0))
        return int(one.getsockname()[1])


def own_address() -> str:
    """An address of this machine that others reach; skips the test where there is none."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as one, suppress(OSError):
        one.connect(("192.0.2.1", 9))
        if not (found := str(one.getsockname()[0])).startswith("127."):
            return found
    pytest.skip("this machine has no address but its own loopback")


class Machine:
    """One machine of the page: its folder, what it has exported, its node."""

    def __init__(self, name: str, world: World) -> None:
        self.name, self.world = name, world
        self.folder = world.folder / name
        (self.folder / "etc").mkdir(parents=True)
        self.variables: dict[str, str] = {}
        self.serves = ""
        self.node: subprocess.Popen[bytes] | None = None

    def here(self, text: str) -> str:
        """A text of the page with what is this machine's in place of what it names."""
        world = self.world
        text = text.replace("10.0.0.2:/etc/tidewheel/", f"{world.folder}/b/etc/")
        for old, new in (
            ("/etc/tidewheel", f"{self.folder}/etc"),
            ("/var/lib/tidewheel", f"{self.folder}/store"),
            ("/backup", f"{world.folder}/backup"),
            ("@db/", f"@127.0.0.1:{world.server.port}/"),
            *world.addresses.items(),
        ):
            text = text.replace(old, new)
        return text

    def play(self, text: str) -> str:
        """Run the commands of a block; return what they said."""
        said, lines = [], list[str]()
        for line in text.splitlines():
            if line in (STOP, START) or line.startswith("tidewheel serve"):
                said.append(self.run(lines))
                lines = []
                if line == STOP:
                    self.stop()
                else:
                    self.serves = self.serves if line == START else line
                    self.start()
            else:
                lines.append(line)
        return "".join([*said, self.run(lines)])

    def run(self, lines: list[str]) -> str:
        """Run commands in a shell that keeps what they export."""
        kept = self.folder / "exported"
        script = "\n".join([*map(self.here, lines), f"{sys.executable} -c {shlex.quote(KEEP)} {kept}"])
        ran = subprocess.run(
            ["bash", "-c", f"set -e\n{script}"],
            env=self.world.environment | self.variables,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert ran.returncode == 0, f"{self.name}: {lines}\n{ran.stdout}\n{ran.stderr}\n{self.log()}"
        self.variables = json.loads(kept.read_text())
        return f"$ on {self.name}\n{ran.stdout}{ran.stderr}"

    def start(self) -> None:
        """Start the node as it was started first, and wait until it says that it is ready."""
        ready = self.folder / "ready"
        ready.unlink(missing_ok=True)
        words = [*shlex.split(self.here(self.serves))[1:], "--ready-file", str(ready)]
        with (self.folder / "log").open("ab") as log:
            self.node = subprocess.Popen(
                [*COMMAND, *words],
                env=self.world.environment | self.variables,
                stdout=log,
                stderr=log,
            )
        self.world.until(ready.exists, self.log)

    def stop(self) -> None:
        """Stop the node, if it runs, as a service manager does."""
        if self.node is not None:
            self.node.send_signal(signal.SIGTERM)
            assert self.node.wait(SECONDS) == 0, self.log()
            self.node = None

    def log(self) -> str:
        """The end of what the node has said."""
        path = self.folder / "log"
        return path.read_text()[-3_000:] if path.exists() else ""


KEEP = (
    "import json, os, sys; names = {name: value for name, value in os.environ.items() "
    "if name.startswith('TIDEWHEEL_') or name == 'PGPASSWORD'}; json.dump(names, open(sys.argv[1], 'w'))"
)


class World:
    """The machines of the page, and its PostgreSQL."""

    def __init__(self, folder: Path) -> None:
        self.folder, address = folder, own_address()
        ports = {name: str(free_port(address)) for name in ("1:8081", "1:8088", "2:8081", "2:8088")}
        self.addresses = {f"10.0.0.{name}": f"{address}:{port}" for name, port in ports.items()}
        port = free_port("127.0.0.1")
        listens = ("-c", "listen_addresses=127.0.0.1", "-c", f"port={port}")
        self.server = PasswordedServer("database", listens)
        self.server.port = port
        commands = folder / "bin"
        commands.mkdir()
        (folder / "backup").mkdir()
        for name, does in (("tidewheel", shlex.join(COMMAND)), ("scp", "cp")):
            (commands / name).write_text(f'#!/bin/sh\nexec {does} "$@"\n')
            (commands / name).chmod(0o755)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TIDEWHEEL_")},
            "PATH": f"{commands}:{Path(program('initdb')).parent}:{os.environ['PATH']}",
            "PGHOST": str(self.server.folder),
            "PGPORT": str(port),
            "PGUSER": USER,
            "PGDATABASE": "postgres",
            "COLUMNS": "200",
        }
        self.machines = {name: Machine(name, self) for name in ("database", "a", "b")}

    def until(self, holds: Callable[[], object], told: Callable[[], str] = str) -> None:
        """Wait until something holds."""
        ends = time.monotonic() + SECONDS
        while not (found := holds()):
            assert time.monotonic() < ends, f"{found} {told()}"
            time.sleep(0.1)

    def play(self, text: str) -> str:
        """Play a block where it says."""
        place, _, commands = text.partition("\n")
        return "".join(self.machines[name].play(commands) for name in WHERE[place.strip()])

    def on(self, name: str, command: str) -> str:
        """Run a command of the test's own; return what it said."""
        return self.machines[name].run([f"{command} || true"])


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    if not (shutil.which("initdb") and shutil.which("psql") and has_owner()):
        pytest.skip("no PostgreSQL server on this machine")
    world = World(tmp_path)
    try:
        world.server.make()
        world.server.start()
        yield world
    finally:
        for one in world.machines.values():
            if one.node is not None:
                one.node.kill()
                one.node.wait()
        world.server.stop()
        world.server.forget()


def test_the_page_is_played_word_by_word(world: World) -> None:
    blocks = [one for one in blocks_of("docs/cluster.md") if one.label == "bash cluster"]
    assert len(blocks) >= 12
    played = []
    for block in blocks:
        before = BEFORE.get(marked(block.text), nothing)
        before(world)
        said = world.play(block.text.replace(DOCTOR, f"{DOCTOR.strip()} || true\n"))
        played.append(f"{block}\n{said}")
        AFTER.get(marked(block.text), nothing)(world)
    print("\n".join(played))
    for one in world.machines.values():
        one.stop()


def marked(text: str) -> str:
    """The command by which a block is known to what looks before and behind it."""
    return next((one for one in (*BEFORE, *AFTER) if one in text), "")


def nothing(_: World) -> None:
    """Look at nothing."""


def bodies(world: World, name: str) -> str:
    """What lies in the topic, as a machine sees it."""
    return world.on(name, "timeout 10 tidewheel tail orders --from-start --limit 6")


def both_answer(world: World) -> None:
    said = world.on("b", "tidewheel cluster status")
    assert "leader" in said
    shown = world.on("a", "ps -ef")
    assert "first-password" not in shown
    for name in ("a", "b"):
        for port in ("1:8088", "2:8088"):
            asked = f"tidewheel cluster status --http https://10.0.0.{port}"
            world.until(lambda name=name, asked=asked: "leader " in world.on(name, asked))  # type: ignore[misc]
    metrics = scraped(world)
    page = next(one for one in blocks_of("docs/cluster.md") if one.text.startswith("groups:"))
    named = set(re.findall(r"\b(?:tidewheel_cluster|mq)_\w+", page.text))
    assert len(named) > 10
    assert {one for one in named if f"\n{one}" not in metrics} == set()


def scraped(world: World) -> str:
    """The metrics of both nodes."""
    token = (world.folder / "a" / "etc" / "http.token").read_text().strip()
    ask = "curl --silent --insecure -H 'Authorization: Bearer {}' https://10.0.0.{}/metrics"
    return "".join(world.on("a", ask.format(token, port)) for port in ("1:8088", "2:8088"))


def sessions_are_refused(world: World) -> None:
    """The password was changed: both nodes tell, and go on."""
    for name in ("a", "b"):
        port = {"a": "1", "b": "2"}[name]
        asked = f"tidewheel cluster status --http https://10.0.0.{port}:8088"
        world.until(lambda name=name, asked=asked: "SESSIONS" in world.on(name, asked))  # type: ignore[misc]
    assert "TW-" not in world.on("a", "tidewheel send orders meanwhile")


def sessions_end(world: World) -> None:
    """The sessions of before end, and all goes on with the new password."""
    with psycopg.connect(world.server.url, autocommit=True) as asked:
        asked.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'tidewheel'")
    world.until(lambda: "TW-" not in world.on("b", "tidewheel send orders rotated"))
    world.until(lambda: "SESSIONS" not in world.on("a", "tidewheel cluster status"))
    assert "TW-" not in world.on("a", "tidewheel send orders backed-up")


def node_a_has_a_copy(world: World) -> None:
    """Let node a lead, and leave a checkpoint; what comes behind that only the engine's backup has."""
    for name in ("b", "a", "b"):
        world.until(lambda name=name: f"Node {name} leads" in world.on("a", f"tidewheel cluster move {name}"))  # type: ignore[misc]
    copied = re.compile(r"^a +\d+", re.MULTILINE)
    world.until(lambda: copied.search(world.on("a", "tidewheel cluster nodes")))
    assert "TW-" not in world.on("a", "tidewheel send orders behind")


def all_is_back(world: World) -> None:
    said = world.on("b", "tidewheel cluster status")
    world.until(lambda: "following" in world.on("b", STATUS_OF_B), world.machines["b"].log)
    assert "HALTED" not in said
    found = bodies(world, "b")
    for body in ("hello", "meanwhile", "rotated", "backed-up", "behind"):
        assert body in found, found


STATUS_OF_B = "tidewheel cluster status --http https://10.0.0.2:8088"
BEFORE: dict[str, Callable[[World], None]] = {
    "echo 'second-password'": sessions_are_refused,
    "tidewheel store snapshot": node_a_has_a_copy,
}
AFTER: dict[str, Callable[[World], None]] = {
    "tidewheel send orders hello": both_answer,
    "echo 'second-password'": sessions_end,
    "tidewheel.halted": all_is_back,
}
