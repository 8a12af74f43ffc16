"""The official clients of other languages: where their programs are, how one builds and how one runs them.

A program is played when its build is there and newer than its sources. Where it is not, `make test-clients`
(TIDEWHEEL_BUILD_CLIENTS=1) builds it, once: whoever comes second waits at a lock and finds it built; what
cannot be built is a failure then. Elsewhere its tests are skipped, with the reason.

Java's and Go's clients use TLS unless TIDEWHEEL_CLIENT_PLAINTEXT=1; the others are in plaintext by default.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

HERE: Final = Path(__file__).parent
BUILD_SECONDS: Final = 1_800


@dataclass(frozen=True)
class Library:
    """An official client, and the folder of its program.

    `build` makes `built`, a file or a folder; `sources` are what it is made of.
    """

    name: str
    folder: Path
    tools: tuple[str, ...]
    sources: tuple[str, ...]
    build: tuple[str, ...]
    built: str
    command: tuple[str, ...]

    def missing(self) -> list[str]:
        """The tools that are not installed."""
        return [tool for tool in self.tools if shutil.which(tool) is None]

    def is_built(self) -> bool:
        """Whether the build is there and has seen the newest source."""
        built = self.folder / self.built
        found = [path for pattern in self.sources for path in self.folder.glob(pattern)]
        return built.exists() and all(built.stat().st_mtime >= path.stat().st_mtime for path in found)


LIBRARIES: Final = {
    library.name: library
    for library in (
        Library(
            name="node",
            folder=HERE / "node",
            tools=("node", "npm"),
            sources=("package.json", "package-lock.json"),
            build=("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"),
            built="node_modules",
            command=("node", "scenarios.js"),
        ),
        Library(
            name="java",
            folder=HERE / "java",
            tools=("java", "javac", "mvn"),
            sources=("pom.xml", "src/**/*.java"),
            build=("mvn", "-B", "-q", "package"),
            built="target/libs",
            command=("java", "-cp", "target/classes:target/libs/*", "tidewheel.clients.Scenarios"),
        ),
        Library(
            name="go",
            folder=HERE / "go",
            tools=("go",),
            sources=("go.mod", "go.sum", "*.go"),
            build=("go", "build", "-buildvcs=false", "-o", "target/scenarios", "."),
            built="target/scenarios",
            command=("target/scenarios",),
        ),
        Library(
            name="rust",
            folder=HERE / "rust",
            tools=("cargo",),
            sources=("Cargo.toml", "Cargo.lock", "src/*.rs"),
            build=("cargo", "build", "--locked", "--quiet"),
            built="target/debug/scenarios",
            command=("target/debug/scenarios",),
        ),
    )
}


PYTHON: Final = Library(
    name="python",
    folder=HERE.parents[1],
    tools=(),
    sources=(),
    build=(),
    built=".",
    command=(sys.executable, "-m", "tests.clients.python_process"),
)
"""Python's as a process. Most tests use it without one (`python_client`), so it is not in `LIBRARIES`."""


def spare_make_test() -> None:
    """Skip a long test unless all clients are asked for: other tests say the same of the core."""
    if not os.environ.get("TIDEWHEEL_BUILD_CLIENTS"):
        pytest.skip("make test-clients plays it")


def require(library: Library) -> None:
    """Have the library's program built, or skip the test; where builds are asked for, fail instead."""
    is_asked = bool(os.environ.get("TIDEWHEEL_BUILD_CLIENTS"))
    leave_out = pytest.fail if is_asked else pytest.skip  # CI may lack a toolchain; who asks for all may not
    if missing := library.missing():
        leave_out(f"{library.name}'s client is left out: {', '.join(missing)} not installed")
    if library.is_built():
        return
    if not is_asked:
        pytest.skip(f"{library.name}'s client is left out, as it is not built: make test-clients plays it")
    with locked(library):
        if not library.is_built():
            make(library)


def make(library: Library) -> None:
    """Build it."""
    done = subprocess.run(
        library.build, cwd=library.folder, capture_output=True, text=True, timeout=BUILD_SECONDS
    )
    if done.returncode:
        pytest.fail(f"{library.name}'s client cannot be built: {(done.stdout + done.stderr)[-2000:]}")
    os.utime(library.folder / library.built)


@contextmanager
def locked(library: Library) -> Iterator[None]:
    """Keep other test processes from building it meanwhile."""
    with (library.folder / ".build.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
