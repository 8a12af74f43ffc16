"""`tidewheel sample`: what it prints runs as printed, with the libraries that `make test-clients` builds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import Request, urlopen

import pytest

from services.cli.sample import TLS_LINES, Language
from tests.clients.conftest import BrokerProcess, serving
from tests.clients.libraries import LIBRARIES, require

SECONDS = 300


def run(command: list[str], folder: Path, **environment: str) -> str:
    """Runs a program in its folder; what it printed."""
    own = {**os.environ, "HOME": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        command, cwd=folder, env={**own, **environment}, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def sample(language: str, broker: BrokerProcess, path: Path, *options: str) -> None:
    """Writes what the command prints to `path`."""
    tidewheel = [sys.executable, "-m", "services.cli.main", "sample", language]
    command = [*tidewheel, "--endpoint", broker.listen, *options]
    path.parent.mkdir(exist_ok=True)
    path.write_text(run(command, path.parent))


def run_python(folder: Path) -> str:
    return run([sys.executable, "sample.py"], folder)


def run_node(folder: Path) -> str:
    return run(["node", "sample.js"], folder, NODE_PATH=str(LIBRARIES["node"].folder / "node_modules"))


def run_java(folder: Path) -> str:
    return run(["java", "-cp", f"{LIBRARIES['java'].folder}/target/libs/*", "Sample.java"], folder)


def run_go(folder: Path) -> str:
    """In a module of its own, with the versions of the scenarios'."""
    for name in ("go.mod", "go.sum"):
        shutil.copy(LIBRARIES["go"].folder / name, folder)
    return run(["go", "run", "sample.go"], folder, HOME=os.environ["HOME"])


def run_rust(folder: Path) -> str:
    """In a package of its own, with the versions of the scenarios', and what is compiled of them."""
    scenarios = LIBRARIES["rust"].folder
    for name in ("Cargo.toml", "Cargo.lock"):
        text = (scenarios / name).read_text()
        (folder / name).write_text(text.replace('name = "scenarios"', 'name = "sample"'))
    built = {"CARGO_TARGET_DIR": str(scenarios / "target"), "HOME": os.environ["HOME"]}
    return run(["cargo", "run", "--quiet", "--locked"], folder, **built)


SAMPLES = {
    "python": ("sample.py", run_python),
    "node": ("sample.js", run_node),
    "java": ("Sample.java", run_java),
    "go": ("sample.go", run_go),
    "rust": ("src/main.rs", run_rust),
}


def said_and_heard(language: str, broker: BrokerProcess, folder: Path, *options: str) -> None:
    """The printed program runs, and receives what it has sent."""
    if language in LIBRARIES:
        require(LIBRARIES[language])
    name, run_sample = SAMPLES[language]
    sample(language, broker, folder / name, *options)
    lines = run_sample(folder).splitlines()
    [sent] = [line.split()[1] for line in lines if line.startswith("sent ")]
    [received] = [line for line in lines if line.startswith(f"received {sent} ")]
    assert received.endswith(f"hello from {language.capitalize()}")


class Asking(NamedTuple):
    """A broker that asks who calls, and the secret of its user `sample`, who may do what samples do."""

    broker: BrokerProcess
    secret: str


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asking]:
    for broker in serving(BrokerProcess(tmp_path_factory.mktemp("asking") / "store", "--auth")):
        made = post(broker, "users", {"name": "sample"})
        topics = {"user": "sample", "topics": ["hello"], "effect": "allow"}
        post(broker, "rules", topics | {"verbs": ["send"]})
        post(broker, "rules", topics | {"groups": ["hello-*"], "verbs": ["receive"]})
        yield Asking(broker, made["secret"])


def post(broker: BrokerProcess, path: str, body: object) -> Any:
    """Tells the broker about its users."""
    kind = {"Content-Type": "application/json"}
    request = Request(f"http://{broker.http}/api/auth/{path}", json.dumps(body).encode(), kind)
    with urlopen(request) as answer:
        return json.load(answer)


@pytest.mark.parametrize("language", SAMPLES)
def test_what_is_printed_runs_as_printed(language: str, broker: BrokerProcess, tmp_path: Path) -> None:
    before = refused(broker)
    said_and_heard(language, broker, tmp_path)
    assert refused(broker) == before, "whoever says good-bye in its way is not taken for refused"


def refused(broker: BrokerProcess) -> Any:
    """Whom the broker has sent away, by reason."""
    with urlopen(f"http://{broker.http}/api/refused") as answer:
        return json.load(answer)["counts"]


@pytest.mark.parametrize("language", SAMPLES)
def test_where_the_broker_asks_it_is_the_user_of_the_environment(
    language: str, asking: Asking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEWHEEL_ACCESS_KEY", "sample")
    monkeypatch.setenv("TIDEWHEEL_SECRET_KEY", asking.secret)
    said_and_heard(language, asking.broker, tmp_path)
    assert asking.secret not in (tmp_path / SAMPLES[language][0]).read_text()


@pytest.mark.parametrize("language", [one.value for one in TLS_LINES])
@pytest.mark.parametrize("option", ["--tls", "--no-tls"])
def test_it_uses_tls_or_does_not_as_it_was_asked_for(
    language: str, option: str, broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = str(broker.store / "tls" / "certificate.pem")
    monkeypatch.setenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", authority)
    said_and_heard(language, broker, tmp_path, option)
    written = TLS_LINES[Language(language)].format(option == "--tls").lower()
    assert written in (tmp_path / SAMPLES[language][0]).read_text().lower()


def test_tls_is_not_promised_where_the_client_has_none() -> None:
    command = [sys.executable, "-m", "services.cli.main", "sample", "rust", "--tls"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, done.stdout) == (2, "")
    assert "speaks no TLS" in done.stderr


def test_every_language_has_a_sample_that_is_run() -> None:
    assert set(SAMPLES) == set(Language)
