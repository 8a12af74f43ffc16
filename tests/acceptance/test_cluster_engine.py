"""The engine of a cluster as an operator meets it: away at a start, with another password."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import psycopg
import pytest

from tests.command import tidewheel
from tests.endurance import sick_clock
from tests.endurance.conftest import BrokerProcess
from tests.endurance.sick_clock import SickClock
from tests.endurance.sick_disk import NoCompiler
from tests.postgresql import PostgresServers, running_servers

SEGMENT_BYTES = 8 << 20


@pytest.fixture
def servers() -> Iterator[PostgresServers]:
    with running_servers(options=()) as servers:
        yield servers


def node(folder: Path, name: str, url: str) -> BrokerProcess:
    """A node of a cluster, as a process."""
    return BrokerProcess(folder / name, "--cluster", url, "--node", name)


def answer(of: BrokerProcess, path: str) -> tuple[int, str]:
    """What a node answers over HTTP; (0, "") where nothing serves there."""
    try:
        with urlopen(f"http://{of.http}{path}", timeout=5) as found:
            return found.status, found.read().decode()
    except HTTPError as refusal:
        return refusal.code, refusal.read().decode()
    except URLError:
        return 0, ""


def test_a_node_that_is_started_while_the_engine_is_away_waits(
    tmp_path: Path, servers: PostgresServers, eventually: Any
) -> None:
    assert tidewheel("cluster", "create", servers.url, "--segment-bytes", SEGMENT_BYTES).returncode == 0
    first = node(tmp_path, "a", servers.url)
    first.start()
    assert first.stop() == 0
    servers.primary.stop()
    for is_to_stop in (True, False):
        first.launch()
        eventually(lambda: answer(first, "/livez")[0] == 200)
        status, said = answer(first, "/readyz")
        assert (status, "waits for the shared log" in said, "tidewheel cluster doctor" in said) == (
            503,
            True,
            True,
        )
        assert "this node waits for it" in first.log()
        if is_to_stop:
            assert first.stop() == 0
    servers.primary.start()
    first.wait_until_up()
    eventually(lambda: answer(first, "/readyz")[0] == 200)
    assert tidewheel("send", "orders", "one", "--http", first.http).returncode == 0
    assert first.stop() == 0


def test_another_password_needs_no_restart(tmp_path: Path, servers: PostgresServers, eventually: Any) -> None:
    file = tmp_path / "password"
    file.write_text("first\n")
    url = f"postgresql://app@/orders?host={servers.primary.folder}&password_file={file}"
    with psycopg.connect(servers.url, autocommit=True) as asked:
        asked.execute("CREATE ROLE app LOGIN PASSWORD 'first'")
        asked.execute("CREATE DATABASE orders OWNER app")
        access = servers.primary.folder / "data" / "pg_hba.conf"
        access.write_text("local orders app scram-sha-256\n" + access.read_text())
        asked.execute("SELECT pg_reload_conf()")
        eventually(lambda: tidewheel("cluster", "create", url).returncode == 0)
        nodes = [node(tmp_path, name, url) for name in "ab"]
        for one in nodes:
            one.start()
        eventually(lambda: all(answer(one, "/readyz")[0] == 200 for one in nodes))
        asked.execute("ALTER ROLE app PASSWORD 'second'")
        assert tidewheel("send", "orders", "one", "--http", nodes[0].http).returncode == 0
        asked.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'")
        eventually(lambda: "password authentication failed" in answer(nodes[0], "/readyz")[1])
        said = tidewheel("cluster", "doctor", url)
        assert said.returncode == 1
        assert "no sure answer" not in said.stdout
        assert f"read from {file} for each connection" in said.stdout.replace("\n", " ")
        file.write_text("second\n")
        eventually(lambda: all(answer(one, "/readyz")[0] == 200 for one in nodes))
        assert tidewheel("send", "orders", "two", "--http", nodes[1].http).returncode == 0
        for one in nodes:
            assert one.stop() == 0


def test_the_clock_of_the_engine_that_is_off_is_named(
    tmp_path: Path, servers: PostgresServers, eventually: Any
) -> None:
    try:
        library = sick_clock.build(tmp_path)
    except NoCompiler as error:
        pytest.skip(str(error))
    assert tidewheel("cluster", "create", servers.url, "--segment-bytes", SEGMENT_BYTES).returncode == 0
    nodes = [node(tmp_path, name, servers.url) for name in "ab"]
    clocks = [SickClock(library, tmp_path / f"{name}.clock") for name in "ab"]
    for one, clock in zip(nodes, clocks, strict=True):
        one.environment = {**os.environ, **clock.variables()}
        one.start()
    eventually(lambda: all(answer(one, "/readyz")[0] == 200 for one in nodes))
    for clock in clocks:  # both at once: it is the engine's that differs
        clock.be_off_by(10_000)
    for one in nodes:
        eventually(lambda one=one: "s behind those of this node and of" in answer(one, "/readyz")[1])  # type: ignore[misc]
        eventually(lambda one=one: "cluster_engine_clock_off 1.0" in answer(one, "/metrics")[1])  # type: ignore[misc]
        assert "CLOCK" in tidewheel("cluster", "status", "--http", one.http).stdout
        eventually(lambda one=one: "the clock of the shared log's engine is off" in one.log())  # type: ignore[misc]
    for clock in clocks:
        clock.be_off_by(0)
    eventually(lambda: all("cluster_engine_clock_off 0.0" in answer(one, "/metrics")[1] for one in nodes))
    assert [one.stop() for one in nodes] == [0, 0]


def test_nodes_that_are_told_to_stop_end_while_the_engine_owes_an_answer(
    tmp_path: Path, servers: PostgresServers, eventually: Any
) -> None:
    assert tidewheel("cluster", "create", servers.url, "--segment-bytes", SEGMENT_BYTES).returncode == 0
    nodes = [node(tmp_path, name, servers.url) for name in "ab"]
    for one in nodes:
        one.start()
        eventually(lambda one=one: answer(one, "/readyz")[0] == 200)
    assert tidewheel("send", "orders", "before", "--http", nodes[1].http).returncode == 0
    servers.primary.pause()
    try:
        eventually(lambda: "has not answered" in answer(nodes[0], "/readyz")[1])
        for one in nodes:
            assert one.process is not None
            one.process.terminate()
        assert [one.process.wait(30) for one in nodes if one.process is not None] == [0, 0]
    finally:
        servers.primary.go_on()
    for one in nodes:
        assert "waits for the shared log no longer" in one.log()
        assert "Traceback" not in one.log()
        one.start()
    eventually(lambda: answer(nodes[0], "/readyz")[0] == 200)
    assert tidewheel("send", "orders", "after", "--http", nodes[0].http).returncode == 0
    assert [one.stop() for one in nodes] == [0, 0]
