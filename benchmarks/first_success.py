"""Time of newcomers' commands until their first success, and the size of an installation. Prints JSON.

    .venv/bin/python benchmarks/first_success.py [--persona newcomer]

Both wheels are built from these sources. Each persona has a new virtual environment and an empty pip cache,
and runs the commands of the documents: `pip install` of a wheel in place of its name, with its requirements
from the package index, and then the programs and commands as printed. A step is a command and the seconds
until its expected output; reading and typing are not counted. The times to create the environment and to
install depend on the disk and the network, and are summed separately.

    newcomer     README's path: install, `tidewheel dev`, the program (a delayed message is cancelled by its
                 key, another is consumed after 3 s), the three lines of the banner (two wait for a schedule
                 of every 10 s), Ctrl-C, pytest, and the test in which 30 minutes pass
    client       tidewheel-client alone, the broker elsewhere: the first program of docs/client.md
    transaction  the same with the extra `txn`: the barrier's program commits its row and its message
    cancel       the command line: a timer is set, shown and cancelled; a second cancel returns ALREADY
    audit        `tidewheel demo` runs a shop and its audit, and the books balance

`distributions` lists the packages of `pip install tidewheel-client` and `pip install tidewheel` in an empty
environment, each with its megabytes (10^6 bytes of files, compiled ones included; pip and setuptools of the
environment are not counted).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
NOT_SOURCES = shutil.ignore_patterns(
    ".*", "build", "dist", "*.egg-info", "__pycache__", "node_modules", "target"
)
READY_SECONDS, STEP_SECONDS = 60, 1_800
INSTALLING = ("python3 -m venv ", "pip install ")
OF_THE_ENVIRONMENT = ("pip", "setuptools")
MEGABYTE = 1_000_000


@dataclass
class Machine:
    """A folder with a new virtual environment; `wheels` holds the files of the distributions by name."""

    folder: Path
    wheels: dict[str, Path]
    steps: list[tuple[str, float]] = field(default_factory=list)
    """The commands, and the seconds of each."""

    def type(self, line: str, *arguments: str) -> str:
        """Run a line in a shell; return its stdout. `arguments` do not appear in the steps.

        A line that fails ends the benchmark.
        """
        began = time.monotonic()
        command = ["bash", "-c", f'{line} "$@"' if arguments else line, "bash", *arguments]
        ran = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=STEP_SECONDS,
            check=False,
        )
        if ran.returncode:
            sys.exit(f"{line} ended with {ran.returncode}:\n{ran.stdout}{ran.stderr}")
        self.steps.append((line, time.monotonic() - began))
        return ran.stdout

    def install(self, name: str) -> None:
        """Install a distribution with its extra; those in `wheels` from their wheel and the client's."""
        own, bracket, extra = name.partition("[")
        if own not in self.wheels:
            self.type(f"pip install {name}")
            return
        began = time.monotonic()
        files = [f"{self.wheels[own]}{bracket}{extra}"]
        if own != "tidewheel-client":
            files.append(str(self.wheels["tidewheel-client"]))
        self.type("pip install", *files)
        self.steps[-1] = (f"pip install {shlex.quote(name)}", time.monotonic() - began)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a newcomer's shell, with the new Python's programs first in the path."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("TIDEWHEEL_", "PYTHON"))
        }
        return kept | {
            "HOME": str(self.folder),
            "PIP_CACHE_DIR": str(self.folder / "cache"),
            "PATH": f"{self.folder / '.venv' / 'bin'}:{os.environ['PATH']}",
        }

    @contextmanager
    def running(self, line: str, ready: str) -> Iterator[str]:
        """Run a command until the block ends, then send Ctrl-C.

        Yield its output once that contains a line with `ready`.
        """
        printed, began = self.folder / "printed", time.monotonic()
        with printed.open("wb") as out:
            process = subprocess.Popen(
                line.split(), cwd=self.folder, env=self.environment, stdout=out, stderr=out
            )
        try:
            while not re.search(f"^.*{ready}.*\n", printed.read_text(), re.MULTILINE):
                if process.poll() is not None or time.monotonic() - began > READY_SECONDS:
                    sys.exit(f"{line} does not start:\n{printed.read_text()}")
                time.sleep(0.02)
            self.steps.append((line, time.monotonic() - began))
            yield printed.read_text()
            began = time.monotonic()
            process.send_signal(signal.SIGINT)
            if process.wait(READY_SECONDS):
                sys.exit(f"{line} ended with {process.returncode}:\n{printed.read_text()}")
            self.steps.append(("Ctrl-C", time.monotonic() - began))
        finally:
            process.kill()

    def save(self, file: str, page: str, number: int = 0) -> None:
        """Save the program of a page with this number, counted from 0, in a file."""
        (self.folder / file).write_text(programs_of(page)[number])

    def sizes(self) -> dict[str, float]:
        """Return the megabytes of each package, the largest first."""
        (site,) = self.folder.glob(".venv/lib/python*/site-packages")
        found = {
            one.name: sum(size_bytes(Path(str(file.locate()))) for file in one.files or ()) / MEGABYTE
            for one in distributions(path=[str(site)])
            if one.name not in OF_THE_ENVIRONMENT
        }
        return dict(sorted(found.items(), key=lambda item: -item[1]))


def size_bytes(file: Path) -> int:
    """Return the size of a file in bytes, 0 if it does not exist."""
    return file.stat().st_size if file.exists() else 0


def programs_of(page: str) -> list[str]:
    """Return the programs and tests of a page."""
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


@contextmanager
def serving(machine: Machine) -> Iterator[None]:
    """Run a broker on the default ports for the block, without adding to the machine's steps."""
    steps, machine.steps = machine.steps, []
    with machine.running("tidewheel serve --store ./tidewheel-data", "tidewheel tail"):
        machine.steps = steps
        yield
        steps, machine.steps = machine.steps, []
    machine.steps = steps


def newcomer(machine: Machine, _: Machine) -> bool:
    """Follow the whole path of README; return whether every step had its expected output."""
    machine.save("app.py", "README.md")
    machine.save("test_orders.py", "README.md", 1)
    with machine.running("tidewheel dev", "curl") as banner:
        tail, cancel, receive = (line.strip() for line in banner.splitlines()[-3:])
        was_consumed = machine.type("python app.py") == "CANCELLED\ntimed out: {'order': 123}\n"
        was_printed = "ten seconds have passed" in machine.type(tail)
        was_cancelled = "CANCELLED" in machine.type(cancel)
        was_received = shutil.which("curl") is None or '"topic":"ticks"' in machine.type(receive)
    machine.install("pytest")
    has_passed = "1 passed" in machine.type("python -m pytest test_orders.py")
    return all((was_consumed, was_printed, was_cancelled, was_received, has_passed))


def client(machine: Machine, elsewhere: Machine) -> bool:
    """Send, cancel and receive from an application with only the client installed."""
    machine.save("app.py", "docs/client.md")
    with serving(elsewhere):
        return machine.type("python app.py") == "CANCELLED\norder 7 is paid\n"


def transaction(machine: Machine, elsewhere: Machine) -> bool:
    """Commit a row and its message in one transaction."""
    machine.save("app.py", "docs/transactions.md")
    with serving(elsewhere):
        machine.type("python app.py")
        return "COMMITTED" in elsewhere.type("tidewheel txn show order-7 --topic order-created")


def cancel(machine: Machine, _: Machine) -> bool:
    """Cancel a timer by its key, twice."""
    key = "--topic order-timeouts --timer-key order:7"
    with machine.running("tidewheel dev", "curl"):
        machine.type("tidewheel send order-timeouts '{\"order\": 7}' --timer-key order:7 --in 30m")
        machine.type(f"tidewheel timer show {key}")
        first = machine.type(f"tidewheel timer cancel {key} --reason paid")
        again = machine.type(f"tidewheel timer cancel {key} --reason paid")
    return "CANCELLED" in first and "ALREADY" in again


def audit(machine: Machine, _: Machine) -> bool:
    """Run a shop and its audit; the command fails unless the books balance."""
    machine.type("tidewheel demo")
    return True


PERSONAS: dict[str, tuple[str, Callable[[Machine, Machine], bool]]] = {
    "newcomer": ("tidewheel", newcomer),
    "client": ("tidewheel-client", client),
    "transaction": ("tidewheel-client[txn]", transaction),
    "cancel": ("tidewheel", cancel),
    "audit": ("tidewheel[shop,audit]", audit),
}


def main() -> None:
    """Run the measurement and print its figures."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--persona", choices=PERSONAS, action="append")
    chosen = arguments.parse_args().persona or list(PERSONAS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheels = built(folder)
        both = {one: installed(folder / f"only-{one}", wheels, one) for one in wheels}
        figures = {
            "distributions": {one: facts_of(machine) for one, machine in both.items()},
            "personas": {one: measured(one, folder / one, wheels, both["tidewheel"]) for one in chosen},
        }
    print(json.dumps(figures, indent=2))


def built(folder: Path) -> dict[str, Path]:
    """Build the wheels from a copy of the sources; return their files by distribution name."""
    shutil.copytree(ROOT, folder / "sources", ignore=NOT_SOURCES)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    sources = folder / "sources"
    for one in (sources, sources / "distributions" / "client"):
        subprocess.run([*command, "--wheel-dir", str(folder), str(one)], check=True)
    (of_client,) = folder.glob("tidewheel_client-*.whl")
    (of_broker,) = folder.glob("tidewheel-*.whl")
    return {"tidewheel-client": of_client, "tidewheel": of_broker}


def installed(folder: Path, wheels: dict[str, Path], name: str) -> Machine:
    """Return a new machine with one of the distributions installed."""
    machine = Machine(folder, wheels)
    machine.folder.mkdir()
    machine.type("python3 -m venv .venv")
    machine.install(name)
    return machine


def facts_of(machine: Machine) -> dict[str, Any]:
    """Return the number and the megabytes of the packages of a machine, in total and by package."""
    sizes = machine.sizes()
    by_package = {name: round(megabytes, 2) for name, megabytes in sizes.items()}
    return {"packages": len(sizes), "mb": round(sum(sizes.values()), 1), "mb_by_package": by_package}


def measured(persona: str, folder: Path, wheels: dict[str, Path], elsewhere: Machine) -> dict[str, Any]:
    """Run one persona on a new machine; `elsewhere` runs the broker if the persona has none."""
    name, succeeds = PERSONAS[persona]
    machine = installed(folder, wheels, name)
    if not succeeds(machine, elsewhere):
        sys.exit(f"{persona} has not succeeded: {machine.steps}")
    facts = facts_of(machine)
    shutil.rmtree(machine.folder)
    spent = {
        is_install: sum(took for line, took in machine.steps if line.startswith(INSTALLING) is is_install)
        for is_install in (True, False)
    }
    return {
        "commands": len(machine.steps),
        "install_seconds": round(spent[True], 1),
        "other_seconds": round(spent[False], 1),
        "packages": facts["packages"],
        "mb": facts["mb"],
        "steps": [{"command": line, "seconds": round(took, 1)} for line, took in machine.steps],
    }


if __name__ == "__main__":
    main()
