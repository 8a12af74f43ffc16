"""`tidewheel status`, `top`, `check` and `debug bundle` as an operator meets them, with real brokers."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import tarfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.cli.diagnosis import asking
from tests.command import tidewheel
from tidewheel.testing.process import BrokerProcess

BODY, PROPERTY, FILTERED = "body-of-order-7", "4111-1111-1111-1111", "card-4999"
PASSWORD, TOKEN = "p/ss@hunter-2", "wrong-token-of-somebody"


class Operator:
    """An operator of a broker, whose clock goes on as told."""

    def __init__(self, http: str, token: Path | None = None) -> None:
        self.http, self.token = http, token

    def run(self, *words: object, code: int = 0, http: str = "", **more: str) -> str:
        """Run a command, which must end with a code; return what it prints."""
        told = {"TIDEWHEEL_HTTP": http or self.http, "NO_COLOR": "1", "COLUMNS": "100"} | more
        if self.token:
            told["TIDEWHEEL_HTTP_TOKEN"] = str(self.token)
        done = tidewheel(*words, environment=told)
        said = done.stdout + done.stderr
        assert done.returncode == code, said
        assert "Traceback" not in said
        return said

    def post(self, path: str, body: object) -> Any:
        """Call the broker."""
        headers = {"Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token.read_text().strip()}"
        request = urllib.request.Request(f"http://{self.http}/api/{path}", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def states(self, code: int, *words: object, **more: str) -> dict[str, str]:
        """The state of each line of the status."""
        rows = json.loads(self.run("status", "--json", *words, code=code, **more))["rows"]
        return {one["name"]: one["state"] for one in rows}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path)
    process.start()
    yield process
    process.stop()


@pytest.fixture
def operator(broker: BrokerProcess) -> Operator:
    return Operator(broker.http)


def stop_consuming(operator: Operator) -> None:
    """Send a message, lease it as a consumer that then stops, and wait for six minutes."""
    operator.post("messages", {"topic": "orders", "body": BODY, "properties": {"card": PROPERTY}})
    operator.post("groups/shop/receive", {"topic": "orders", "wait": "1s", "lease": "10s"})
    operator.post("clock/advance", {"by": "6m"})


def test_a_broker_that_is_well_and_then_one_whose_consumer_stopped(operator: Operator) -> None:
    rows = operator.states(0 if has_room(operator) else 1)
    assert {rows[name] for name in ("serving", "on time", "keeping up", "decided", "given up")} == {"OK"}
    stop_consuming(operator)
    said = operator.run("status", code=1)
    assert re.search(
        r"^WARN  keeping up  1 of 1 group behind; shop: 1 not done, the oldest for 6m", said, re.M
    )
    assert re.search(r"^ +--> tidewheel group lag shop$", said, re.M)
    assert "ok    decided" in said
    assert re.search(r"^orders .* 6m", operator.run("group", "lag", "shop"), re.M)


def has_room(operator: Operator) -> bool:
    """Whether the disk of this machine is less than four fifths full."""
    said = operator.run("check", "disk", "--json", "--warn", "0%", "--crit", "100%", code=1)
    used: float = json.loads(said)["figures"]["used"]["value"]
    return used < 0.8


def test_a_probe_tells_by_its_exit_code_and_in_one_line(operator: Operator) -> None:
    stop_consuming(operator)
    assert operator.run("check", "late").startswith("OK - late: no timer is pending | overdue=0s;1;10 ")
    warned = operator.run("check", "lag", code=1)
    assert re.match(
        r"WARNING - lag: .*; see: tidewheel group lag shop \| oldest=36\d(\.\d+)?s;300;1800 lag=1;;", warned
    )
    assert operator.run("check", "lag", "--crit", "1", code=2).startswith("CRITICAL - lag: ")
    assert operator.run("check", "lag", "--warn", "10m").startswith("OK - lag: ")
    assert operator.run("check", "disk", "--warn", "0%", "--crit", "100%", code=1).startswith(
        "WARNING - disk: "
    )
    assert operator.run("check", "disk", "--warn", "0%", "--crit", "0%", code=2).startswith(
        "CRITICAL - disk: "
    )
    assert operator.run("check", "dlq").startswith("OK - dlq: no dead letters | dead_letters=0;1;1000 ")
    for name in ("cluster", "audit"):
        assert operator.run("check", name, code=3).startswith(f"UNKNOWN - {name}: ")
    assert json.loads(operator.run("check", "halves", "--json"))["state"] == "OK"


@pytest.mark.parametrize("words", [("lag", "--crit"), ("lag", "--bogus"), (), ("lag", "5m", "10m")])
def test_a_command_line_that_is_none_is_unknown_too(words: tuple[str, ...]) -> None:
    said = Operator("127.0.0.1:1").run("check", *words, code=3)
    assert re.match(
        r"UNKNOWN - (lag|check): TW-120 A setting cannot be used\. .*tidewheel check --help\n", said
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("foo",), "There is no check 'foo'. Give one of: late, lag,"),
        (("lag", "--warn", "soon"), "--warn is 'soon': write it as a span"),
        (("disk", "--crit", "5m"), "disk is judged by a part (80%)"),
        (("lag", "--warn", "20m", "--crit", "10m"), "--warn 20m is above --crit 10m"),
        (("lag", "--http", "here"), "TW-120"),
    ],
)
def test_a_mistake_in_a_probe_is_unknown_and_a_sentence(words: tuple[str, ...], sentence: str) -> None:
    said = Operator("127.0.0.1:1").run("check", *words, code=3)
    assert said.startswith("UNKNOWN - ")
    assert sentence in said
    assert said.count("\n") == 1


def test_a_broker_that_is_gone_is_critical(operator: Operator, broker: BrokerProcess) -> None:
    broker.stop()
    assert re.search(r"^CRIT  serving  No broker answers\.", operator.run("status", code=2), re.M)
    assert operator.run("check", "late", code=2).startswith("CRITICAL - late: No broker answers.")


def test_the_port_of_the_clients_is_no_status(operator: Operator, broker: BrokerProcess) -> None:
    said = operator.run("status", code=2, http=broker.listen)
    assert "is no Tidewheel HTTP interface" in said
    assert "--http" in said


def test_a_broker_that_stands_still_is_critical(
    operator: Operator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "WAIT_SECONDS", 0.3)
    (pid,) = {json.loads(one.read_text())["pid"] for one in tmp_path.glob("ready*")}
    os.kill(pid, signal.SIGSTOP)
    try:
        assert "CRIT  serving" in operator.run("status", code=2)
    finally:
        os.kill(pid, signal.SIGCONT)


def test_top_in_a_pipe_prints_once_and_says_so(operator: Operator) -> None:
    stop_consuming(operator)
    said = operator.run("top", code=1)
    assert said.count("keeping up") == 1
    assert "stdout is no terminal: printed once" in said
    assert "--every is 10ms" in operator.run("top", "--every", "10ms", code=2)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[BrokerProcess, Path]]:
    """A broker that asks callers for a token, and the file with the administrator's."""
    token = tmp_path / "token"
    process = BrokerProcess(tmp_path, ("--http-token", str(token)))
    process.start()
    yield process, token
    process.stop()


def test_a_user_without_rights_is_told_what_is_not_known(
    guarded: tuple[BrokerProcess, Path], tmp_path: Path
) -> None:
    process, token = guarded
    operator = Operator(process.http, token)
    operator.run("auth", "user", "add", "alice")
    operator.run("auth", "acl", "allow", "alice", "admin", "--topic", "*")
    made = json.loads(operator.run("auth", "token", "add", "alice", "--json"))
    (tmp_path / "alice").write_text(made["token"])
    alice = Operator(process.http, tmp_path / "alice")
    rows = alice.states(1)
    assert {name for name, state in rows.items() if state == "OK"} >= {"serving", "on time", "decided"}
    assert {name for name, state in rows.items() if state == "UNKNOWN"} >= {"keeping up", "given up", "room"}
    assert alice.run("check", "lag", code=3).startswith("UNKNOWN - lag: TW-18")
    (tmp_path / "nobody").write_text(TOKEN)
    nobody = Operator(process.http, tmp_path / "nobody")
    unknown = nobody.states(1)
    assert unknown.pop("serving") == "OK"  # which the broker tells everybody
    assert set(unknown.values()) == {"UNKNOWN"}


def test_a_bundle_has_what_helps_and_no_secret(guarded: tuple[BrokerProcess, Path], tmp_path: Path) -> None:
    process, token = guarded
    operator = Operator(process.http, token)
    made = ("send", "orders", BODY, "--property", f"card={PROPERTY}", "--key", "order:7")
    operator.run(*made)
    operator.run("group", "create", "shop", "orders", "--from", "earliest")
    for client, how in (("a", {"sql": f"card IN ('{PROPERTY}', '{FILTERED}')"}), ("b", {"filter": "new"})):
        asked = {"topic": "orders", "client": client, "wait": "0s", "lease": "10s"} | how
        operator.post("groups/shop/receive", asked)
    (tmp_path / "wrong").write_text(TOKEN)
    Operator(process.http, tmp_path / "wrong").run("topic", "ls", code=3)
    file = tmp_path / "bundle.tar.gz"
    cluster = f"postgresql://tidewheel:{PASSWORD}@db/orders"
    where = ("--endpoint", process.listen, "--store", str(tmp_path / "store"))
    told = {"TIDEWHEEL_CLUSTER": cluster, "TIDEWHEEL_ACCESS_KEY": "an-access-key"}
    said = operator.run("debug", "bundle", file, *where, **told)
    assert "NOT READ" not in said, said
    parts = opened(file)
    assert {"config.json", "status.txt", "metrics.txt", "doctor.json", "groups.json", "refused.json"} <= set(
        parts
    )
    whole = said + "".join(parts.values())
    planted = (
        BODY,
        PROPERTY,
        FILTERED,
        PASSWORD,
        "hunter",
        TOKEN,
        token.read_text().strip(),
        "an-access-key",
    )
    assert [one for one in planted if one in whole] == []
    assert json.loads(parts["config.json"])["cluster"]["value"].endswith("@db/orders")
    assert json.loads(parts["groups.json"])[0]["lag"] == 1
    assert json.loads(parts["refused.json"])["counts"]
    assert "mq_disk_used_ratio" in parts["metrics.txt"]
    assert 'filter="[left out]"' in parts["metrics.txt"]
    assert file.stat().st_mode & 0o777 == 0o600
    assert "is there already, and stays" in operator.run("debug", "bundle", file, code=2)


def test_a_bundle_of_a_broker_that_is_gone_says_what_could_not_be_read(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        http = f"127.0.0.1:{closed.getsockname()[1]}"
    file = tmp_path / "bundle.tar.gz"
    said = Operator(http).run("debug", "bundle", file, "--endpoint", http, "--store", tmp_path)
    assert re.search(r"^metrics\.txt +NOT READ: TW-123 ", said, re.M)
    assert re.search(r"^checkpoints\.json +NOT READ: .* is no store", said, re.M)
    assert {"version.json", "config.json", "status.txt", "contents.json"} <= set(opened(file))
    assert "Give another place" in Operator(http).run("debug", "bundle", tmp_path / "none" / "x", code=2)


def opened(file: Path) -> dict[str, str]:
    """The parts of a bundle."""
    with tarfile.open(file) as archive:
        members = [(one, archive.extractfile(one)) for one in archive]
        return {Path(one.name).name: content.read().decode() for one, content in members if content}
