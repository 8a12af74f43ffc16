"""How long five newcomers take from a bare machine to their first success. Prints JSON; seconds.

    .venv/bin/python benchmarks/first_success.py [--persona audit]

Each has a new virtual environment and does what the documents say, as printed: `pip install` of the wheel of
these sources, with what its page names, from the package index; then a broker where one is needed, and the
program or the commands. Reading and typing are not counted. `install` depends on the network and on pip's
cache and is told apart; `success` runs from the first command after it to the answer that was wanted:

    message      README's program has cancelled one timer and received another's message, after 3 s
    cancel       a timer was set, looked at and cancelled by its key; a second cancel says ALREADY
    transaction  the barrier's program has committed its row, and the broker shows its message COMMITTED
    test         README's test of half an hour passes under pytest
    audit        `tidewheel demo` has run a shop and its audit, and the books balance
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOT_SOURCES = shutil.ignore_patterns(
    ".*", "build", "dist", "*.egg-info", "__pycache__", "node_modules", "target"
)
READY_SECONDS = 60


@dataclass
class Machine:
    """A folder with a new Python in it."""

    folder: Path

    def run(self, name: str, *arguments: str) -> str:
        """Run a program of the new Python and return what it says; one that fails ends the benchmark."""
        command = [str(self.folder / "env" / "bin" / name), *arguments]
        ran = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True)
        if ran.returncode:
            sys.exit(f"{' '.join(command)} ended with {ran.returncode}:\n{ran.stdout}{ran.stderr}")
        return ran.stdout

    @property
    def environment(self) -> dict[str, str]:
        """What a newcomer's shell has, with the new Python's programs first."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("TIDEWHEEL_", "PYTHON"))
        }
        return kept | {
            "HOME": str(self.folder),
            "PATH": f"{self.folder / 'env' / 'bin'}:{os.environ['PATH']}",
        }

    @contextmanager
    def broker(self) -> Iterator[None]:
        """Run `tidewheel serve` on the usual ports until the block ends."""
        ready = self.folder / "ready"
        command = [str(self.folder / "env" / "bin" / "tidewheel"), "serve", "--store", "./tidewheel-data"]
        with (self.folder / "broker.log").open("wb") as log:
            process = subprocess.Popen(
                [*command, "--ready-file", str(ready)],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
            )
        try:
            ends = time.monotonic() + READY_SECONDS
            while not ready.exists():
                if process.poll() is not None or time.monotonic() > ends:
                    sys.exit(f"the broker does not start:\n{(self.folder / 'broker.log').read_text()}")
                time.sleep(0.02)
            yield
        finally:
            process.terminate()
            process.wait()

    def program(self, page: str) -> str:
        """Run the first program of a page."""
        (self.folder / "app.py").write_text(programs_of(page)[0])
        return self.run("python", "app.py")


def programs_of(page: str) -> list[str]:
    """Return the programs and tests of a page."""
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


def message(machine: Machine) -> bool:
    """Send a delayed message and receive it."""
    with machine.broker():
        return "timed out: {'order': 123}" in machine.program("README.md")


def cancel(machine: Machine) -> bool:
    """Cancel a timer by its key."""
    key = ("--topic", "order-timeouts", "--key", "order:7")
    with machine.broker():
        set_ = ("order-timeouts", '{"order": 7}', "--timer-key", "order:7", "--in", "30m")
        machine.run("tidewheel", "send", *set_)
        machine.run("tidewheel", "timer", "show", *key)
        first = machine.run("tidewheel", "timer", "cancel", *key, "--reason", "paid")
        again = machine.run("tidewheel", "timer", "cancel", *key, "--reason", "paid")
    return "CANCELLED" in first and "ALREADY" in again


def transaction(machine: Machine) -> bool:
    """Commit a row and its message together."""
    with machine.broker():
        machine.program("docs/transactions.md")
        return "COMMITTED" in machine.run("tidewheel", "txn", "show", "order-7", "--topic", "order-created")


def virtual_clock(machine: Machine) -> bool:
    """Let half an hour pass in a test."""
    (machine.folder / "test_orders.py").write_text(programs_of("README.md")[1])
    return "1 passed" in machine.run("pytest", "-q", "test_orders.py")


def audit(machine: Machine) -> bool:
    """Run a shop and prove that its books balance."""
    machine.run("tidewheel", "demo")
    return True


PERSONAS: dict[str, tuple[str, tuple[str, ...], Callable[[Machine], bool]]] = {
    "message": ("", (), message),
    "cancel": ("", (), cancel),
    "transaction": ("[txn]", (), transaction),
    "test": ("", ("pytest",), virtual_clock),
    "audit": ("[shop,audit]", (), audit),
}


def main() -> None:
    """Run the measurement and print its figures."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--persona", choices=PERSONAS, action="append")
    chosen = arguments.parse_args().persona or list(PERSONAS)
    with tempfile.TemporaryDirectory() as folder:
        wheels = built(Path(folder))
        figures = {name: measured(name, wheels, Path(folder)) for name in chosen}
    print(json.dumps(figures, indent=2))


def built(folder: Path) -> list[Path]:
    """Build the wheels from a copy of the sources, that of the broker first."""
    shutil.copytree(ROOT, folder / "sources", ignore=NOT_SOURCES)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    sources = folder / "sources"
    for one in (sources, sources / "distributions" / "client"):
        subprocess.run([*command, "--wheel-dir", str(folder), str(one)], check=True)
    return sorted(folder.glob("*.whl"))


def measured(name: str, wheels: list[Path], folder: Path) -> dict[str, float]:
    """Install for one persona, and let it succeed."""
    extra, others, succeeds = PERSONAS[name]
    machine = Machine(folder / name)
    machine.folder.mkdir()
    began = time.monotonic()
    venv.create(machine.folder / "env", with_pip=True, symlinks=True)
    created = time.monotonic()
    broker, client = wheels
    machine.run("python", "-m", "pip", "install", "--quiet", f"{broker}{extra}", str(client), *others)
    installed = time.monotonic()
    if not succeeds(machine):
        sys.exit(f"{name} has not succeeded: look at {machine.folder}")
    ended = time.monotonic()
    libraries = [
        path for path in (machine.folder / "env").rglob("*") if path.is_file() and not path.is_symlink()
    ]
    mebibytes = sum(path.stat().st_size for path in libraries) / (1 << 20)
    shutil.rmtree(machine.folder)
    return {
        "environment": round(created - began, 1),
        "install": round(installed - created, 1),
        "success": round(ended - installed, 1),
        "installed_mib": round(mebibytes),
    }


if __name__ == "__main__":
    main()
