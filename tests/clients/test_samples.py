"""`tidewheel sample`: what it prints runs as printed, with the libraries that `make test-clients` builds."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import Request, urlopen

import pytest

from services.cli.sample import FORMS, LACKING, Language, Use
from tests.clients.conftest import BrokerProcess, serving
from tests.clients.libraries import LIBRARIES, require
from tests.command import tidewheel

SECONDS = 300


def environment_of(folder: Path, **more: str) -> dict[str, str]:
    """The environment of a program: its own home, and the packages of the tests."""
    return {**os.environ, "HOME": str(folder), "PYTHONPATH": os.pathsep.join(sys.path), **more}


def run(command: list[str], folder: Path, **environment: str) -> str:
    """Runs a program in its folder; what it printed."""
    own = environment_of(folder, **environment)
    done = subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_until_received(command: list[str], folder: Path) -> str:
    """Runs a program that serves until it has received something, then ends it as Ctrl-C does."""
    own = environment_of(folder, PYTHONUNBUFFERED="1")
    lines = []
    with subprocess.Popen(command, cwd=folder, env=own, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if line.startswith("received "):
                process.send_signal(signal.SIGINT)
        code = process.wait(SECONDS)
    assert code == 0, lines
    return "".join(lines)


def run_python(folder: Path, use: Use) -> str:
    return run([sys.executable, "sample.py"], folder)


def run_python_tidewheel(folder: Path, use: Use) -> str:
    """A worker ends at Ctrl-C, the others by themselves."""
    how = run_until_received if use is Use.PUSH else run
    return how([sys.executable, "sample.py"], folder)


def run_node(folder: Path, use: Use) -> str:
    return run(["node", "sample.js"], folder, NODE_PATH=str(LIBRARIES["node"].folder / "node_modules"))


def run_java(folder: Path, use: Use) -> str:
    return run(["java", "-cp", f"{LIBRARIES['java'].folder}/target/libs/*", "Sample.java"], folder)


def run_go(folder: Path, use: Use) -> str:
    """In a module of its own, with the versions of the scenarios'."""
    for name in ("go.mod", "go.sum"):
        shutil.copy(LIBRARIES["go"].folder / name, folder)
    return run(["go", "run", "sample.go"], folder, HOME=os.environ["HOME"])


def run_rust(folder: Path, use: Use) -> str:
    """In a package of its own, with the versions of the scenarios', and what is compiled of them."""
    scenarios = LIBRARIES["rust"].folder
    for name in ("Cargo.toml", "Cargo.lock"):
        text = (scenarios / name).read_text()
        (folder / name).write_text(text.replace('name = "scenarios"', 'name = "sample"'))
    built = {"CARGO_TARGET_DIR": str(scenarios / "target"), "HOME": os.environ["HOME"]}
    return run(["cargo", "run", "--quiet", "--locked"], folder, **built)


class Program(NamedTuple):
    """How the programs of a language are called, run, and how they name it."""

    file: str
    run: Callable[[Path, Use], str]
    name: str


PROGRAMS = {
    Language.PYTHON: Program("sample.py", run_python, "Python"),
    Language.PYTHON_TIDEWHEEL: Program("sample.py", run_python_tidewheel, "Python"),
    Language.NODE: Program("sample.js", run_node, "Node"),
    Language.JAVA: Program("Sample.java", run_java, "Java"),
    Language.GO: Program("sample.go", run_go, "Go"),
    Language.RUST: Program("src/main.rs", run_rust, "Rust"),
}
OFFICIAL = [language for language in Language if language is not Language.PYTHON_TIDEWHEEL]
SAMPLES = [(language, use) for language in Language for use in Use if (language, use) not in LACKING]


class Printed(NamedTuple):
    """What a program printed: what it sent, and what it received, in order: id and text."""

    lines: list[str]
    sent: list[str]
    received: list[tuple[str, str]]


def played(language: Language, use: Use, broker: BrokerProcess, folder: Path, *options: str) -> Printed:
    """Prints a program for the broker, and runs it."""
    if language in LIBRARIES:
        require(LIBRARIES[language])
    program = PROGRAMS[language]
    path = folder / program.file
    path.parent.mkdir(exist_ok=True)
    endpoint = broker.http if language is Language.PYTHON_TIDEWHEEL else broker.listen
    done = tidewheel("sample", language, "--use", use, "--endpoint", endpoint, *options)
    assert done.returncode == 0, done.stderr
    path.write_text(done.stdout)
    lines = program.run(folder, use).splitlines()
    sent = [line.split()[1] for line in lines if line.startswith("sent ")]
    received = [line.split(maxsplit=2) for line in lines if line.startswith("received ")]
    return Printed(lines, sent, [(one[1], one[2]) for one in received])


def said_and_heard(printed: Printed, language: Language, broker: BrokerProcess) -> None:
    """It receives what it has sent."""
    [sent] = printed.sent
    assert (sent, f"hello from {PROGRAMS[language].name}") in printed.received


def late(printed: Printed, language: Language, broker: BrokerProcess) -> None:
    """It comes, and not early."""
    [sent] = printed.sent
    [text] = [text for one, text in printed.received if one == sent]
    found = re.fullmatch(rf"a reminder from {PROGRAMS[language].name} (-?\d+) ms after it was due", text)
    assert found, text
    assert int(found[1]) >= 0


def cancelled(printed: Printed, language: Language, broker: BrokerProcess) -> None:
    """What is cancelled does not wait, and was not delivered."""
    topic = f"sample-{language}-cancel"
    if language is Language.PYTHON_TIDEWHEEL:
        assert printed.lines == ["CANCELLED", "ALREADY"]
        assert broker.stored(topic) == []
    else:
        by_handle = [line for line in printed.lines if line.startswith("cancelled ")]
        assert len(by_handle) == (language is not Language.RUST)
        [(sent, text)] = printed.received
        assert [sent] == printed.sent
        assert text.startswith("order 8 is paid CANCELLED")
        assert [one["body"] for one in broker.stored(topic)] == ["order 8 is paid"]
    with urlopen(f"http://{broker.http}/api/timers?topic={topic}") as answer:
        assert json.load(answer)["timers"] == []


def agreed(printed: Printed, language: Language, broker: BrokerProcess) -> None:
    """Both come: one by its commit, one by the answer to a check-back; of our client one, and none."""
    if language is Language.PYTHON_TIDEWHEEL:
        assert "rolled back 7 IntegrityError" in printed.lines
        assert [text for _, text in printed.received] == ["order 8 is paid"]
        return
    first, second = printed.sent
    assert f"asked about {second}" in printed.lines
    assert sorted(printed.received) == sorted([(first, "order 7 is paid"), (second, "order 8 is paid")])


def in_order(printed: Printed, language: Language, broker: BrokerProcess) -> None:
    steps = [f"order 7 is {step}" for step in ("created", "paid", "shipped")]
    assert printed.received == list(zip(printed.sent, steps, strict=True))


CHECKS = {
    Use.PLAIN: said_and_heard,
    Use.PUSH: said_and_heard,
    Use.DELAY: late,
    Use.CANCEL: cancelled,
    Use.TRANSACTION: agreed,
    Use.FIFO: in_order,
}


@pytest.mark.parametrize(("language", "use"), SAMPLES)
def test_what_is_printed_runs_as_printed(
    language: Language, use: Use, broker: BrokerProcess, tmp_path: Path
) -> None:
    before = refused(broker)
    CHECKS[use](played(language, use, broker, tmp_path), language, broker)
    assert refused(broker) == before, "whoever says good-bye in its way is not taken for refused"


def refused(broker: BrokerProcess) -> Any:
    """Whom the broker has sent away, by reason."""
    with urlopen(f"http://{broker.http}/api/refused") as answer:
        return json.load(answer)["counts"]


class Asking(NamedTuple):
    """A broker that asks who calls, and the secret of its user `sample`, who may do what samples do."""

    broker: BrokerProcess
    secret: str


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asking]:
    for broker in serving(BrokerProcess(tmp_path_factory.mktemp("asking") / "store", "--auth")):
        made = post(broker, "users", {"name": "sample"})
        topics = {"user": "sample", "topics": ["sample-*"], "effect": "allow"}
        post(broker, "rules", topics | {"verbs": ["send"]})
        post(broker, "rules", topics | {"groups": ["sample-*"], "verbs": ["receive"]})
        yield Asking(broker, made["secret"])


def post(broker: BrokerProcess, path: str, body: object) -> Any:
    """Tells the broker about its users."""
    kind = {"Content-Type": "application/json"}
    request = Request(f"http://{broker.http}/api/auth/{path}", json.dumps(body).encode(), kind)
    with urlopen(request) as answer:
        return json.load(answer)


@pytest.mark.parametrize("language", OFFICIAL)
def test_where_the_broker_asks_it_is_the_user_of_the_environment(
    language: Language, asking: Asking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEWHEEL_ACCESS_KEY", "sample")
    monkeypatch.setenv("TIDEWHEEL_SECRET_KEY", asking.secret)
    said_and_heard(played(language, Use.PLAIN, asking.broker, tmp_path), language, asking.broker)
    assert asking.secret not in (tmp_path / PROGRAMS[language].file).read_text()


@pytest.mark.parametrize("language", [one for one in OFFICIAL if FORMS[one].with_tls])
@pytest.mark.parametrize("option", ["--tls", "--no-tls"])
def test_it_uses_tls_or_does_not_as_it_was_asked_for(
    language: Language, option: str, broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = str(broker.store / "tls" / "certificate.pem")
    monkeypatch.setenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", authority)
    said_and_heard(played(language, Use.PLAIN, broker, tmp_path, option), language, broker)
    form = FORMS[language]
    line = form.with_tls if option == "--tls" else form.without_tls
    assert line in (tmp_path / PROGRAMS[language].file).read_text()
