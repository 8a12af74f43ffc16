"""`tidewheel sample`: what it prints runs as printed, with the libraries that `make test-clients` builds."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from services.cli.sample import Language
from tests.clients.conftest import BrokerProcess
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


def sample(language: str, broker: BrokerProcess, path: Path) -> None:
    """Writes what the command prints to `path`."""
    command = [sys.executable, "-m", "services.cli.main", "sample", language, "--endpoint", broker.listen]
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


@pytest.mark.parametrize("language", SAMPLES)
def test_what_is_printed_runs_as_printed(language: str, broker: BrokerProcess, tmp_path: Path) -> None:
    if language in LIBRARIES:
        require(LIBRARIES[language])
    name, run_sample = SAMPLES[language]
    sample(language, broker, tmp_path / name)
    lines = run_sample(tmp_path).splitlines()
    [sent] = [line.split()[1] for line in lines if line.startswith("sent ")]
    [received] = [line for line in lines if line.startswith(f"received {sent} ")]
    assert received.endswith(f"hello from {language.capitalize()}")


def test_every_language_has_a_sample_that_is_run() -> None:
    assert set(SAMPLES) == set(Language)
