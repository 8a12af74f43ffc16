"""Count which small faults the tests of a room see: `make mutants`, or `python -m tests.mutants.run --help`.

    copy the tree -> the tests pass there -> draw mutants of the room by the seed -> for each of them
    its module's unit tests -> the room's unit tests -> a few seeds of the simulation; the first that fails
    has killed it, and what none fails for has survived

Rules
1. Faults are put into a copy of the tree, below the folder for temporary files; the tree is only read. The
   copy has what git would commit, changes that are not committed too.
2. The same seed and the same sources give the same mutants, and each of them the same examples (hypothesis).
3. A mutant has a limit of time for each stage, LIMIT_TIMES what the stage takes without faults and a minute
   more, and of memory. One that reaches the limit of time has been killed by "time limit".
4. Standard output has a line of JSON for each room; standard error says how far it is, and shows survivors.

A survivor is equivalent to the source, harmless, or a hole of the suite: that is for a person to judge.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.mutants.mutating import KINDS, Mutant, drawn

ROOT: Final = Path(__file__).parents[2]
ROOMS: Final[Mapping[str, tuple[str, ...]]] = {
    "timingwheel": ("test_timers.py",),
    "txn": ("test_transactions.py",),
    "commitlog": ("test_broker.py", "test_timers.py"),
    "consumequeue": ("test_broker.py", "test_receiving.py"),
    "tidewheel": (),
    "services/broker": ("test_broker.py", "test_receiving.py", "test_timers.py", "test_transactions.py"),
    "services/store": (),
    "services/live": (),
    "services/rpc": (),
    "services/front": (),
    "sharedlog": ("test_sharedlog.py", "test_cluster.py"),
    "services/cluster": ("test_cluster.py", "test_lost_engine.py"),
    "spark_jobs": (),
}
"""The folders whose sources are mutated, and the simulations that run them."""
NOT_OURS: Final = ("generated", "samples")
LIMIT_TIMES: Final = 4
LIMIT_SECONDS_MIN: Final = 60
CPUS: Final = os.cpu_count() or 1
MEMORY_BYTES_MAX: Final = 6 << 30
FILE_BYTES_MAX: Final = 4 << 30
NO_TESTS: Final = 5
"""The exit code of pytest where it found none."""
TIME_LIMIT: Final = "time limit"
SURVIVED: Final = "survived"


class SuiteFails(Exception):
    """Tests fail without any fault; the message is the end of what they said."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Tests that a mutant must pass to survive: their paths and pytest's options."""

    name: str
    tests: tuple[str, ...]
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a mutant: the name of the stage that killed it, "time limit" or "survived"."""

    place: str
    kind: str
    fate: str
    diff: str


class Copy:
    """A copy of a tree, in a folder that may be deleted at any time; `Copy.made` makes one."""

    def __init__(self, folder: Path, hypothesis_seed: int) -> None:
        self.tree, self._scratch, self._seed = folder / "tree", folder / "t", hypothesis_seed

    @classmethod
    @contextmanager
    def made(cls, root: Path, hypothesis_seed: int = 0) -> Iterator[Copy]:
        """Copy what git would commit of a tree; raise CalledProcessError where it is none of git's."""
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=root, check=True, capture_output=True, text=True).stdout.split(
            "\0"
        )
        with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
            Path(folder).chmod(0o755)  # a PostgreSQL of the tests runs as another user
            copy = cls(Path(folder), hypothesis_seed)
            for name in filter(None, names):
                if (root / name).is_file():  # one that is deleted is listed until that is committed
                    (copy.tree / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(root / name, copy.tree / name)
            subprocess.run(["git", "init", "-q"], cwd=copy.tree, check=True)  # some tests list the files
            subprocess.run(["git", "add", "-A"], cwd=copy.tree, check=True)
            yield copy

    def sources(self, room: str) -> dict[str, bytes]:
        """Return the sources of a room by path."""
        files = (path.relative_to(self.tree) for path in (self.tree / room).rglob("*.py"))
        return {f"{one}": (self.tree / one).read_bytes() for one in files if not {*one.parts} & {*NOT_OURS}}

    @contextmanager
    def with_fault(self, mutant: Mutant) -> Iterator[None]:
        """Have a mutant in place of its source."""
        path = self.tree / mutant.path
        source = path.read_bytes()
        self._write(path, mutant.applied(source))
        try:
            yield
        finally:
            self._write(path, source)

    def run(self, stage: Stage, limit_seconds: float) -> tuple[int | None, str]:
        """Run tests; return pytest's exit code, None at the limit of time, and the end of what it printed."""
        for left in (self._scratch, self.tree / ".hypothesis"):  # no example of another mutant's is tried
            shutil.rmtree(left, ignore_errors=True)
        self._scratch.mkdir()
        self._scratch.chmod(0o1777)  # as it is usual of a folder for temporary files
        options = ["-x", "-q", "-p", "no:cacheprovider", f"--basetemp={self._scratch / 'b'}"]
        options.append(f"--hypothesis-seed={self._seed}")
        command = [sys.executable, "-m", "pytest", *options, *stage.options, *stage.tests]
        with (self._scratch / "said").open("w+") as said:
            process = subprocess.Popen(
                command, cwd=self.tree, env=self._environment(), stdin=subprocess.DEVNULL, stdout=said,
                stderr=said, start_new_session=True, preexec_fn=lambda: _limit(limit_seconds),
            )  # fmt: skip
            try:
                code: int | None = process.wait(limit_seconds)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _kill_group(process)
            said.seek(0)
            return code, said.read()[-4_000:]

    def require_own(self, room: str) -> None:
        """Raise `SuiteFails` where tests would import the room from elsewhere."""
        name = room.split("/")[0]
        asked = [sys.executable, "-c", f"import {name}; print(*{name}.__path__)"]
        found = subprocess.run(asked, cwd=self.tree, env=self._environment(), capture_output=True, text=True)
        if found.stdout.strip() != f"{self.tree / name}":
            raise SuiteFails(f"{name} is imported from {found.stdout or found.stderr}")

    def _environment(self) -> dict[str, str]:
        return os.environ | {"PYTHONPATH": f"{self.tree}", "TMPDIR": f"{self._scratch}"}

    def _write(self, path: Path, source: bytes) -> None:
        path.write_bytes(source)
        # Python believes a compiled file by its second and its size, and both may be the other source's.
        Path(importlib.util.cache_from_source(f"{path}")).unlink(missing_ok=True)


def _limit(seconds: float) -> None:
    """Bound what a process may take, so that it ends even where this program is killed."""
    for which, most in (
        (resource.RLIMIT_CPU, CPUS * int(seconds + 1)),
        (resource.RLIMIT_DATA, MEMORY_BYTES_MAX),
        (resource.RLIMIT_FSIZE, FILE_BYTES_MAX),
    ):
        resource.setrlimit(which, (most, resource.getrlimit(which)[1]))


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def mirrored(tree: Path, path: str) -> tuple[str, ...]:
    """Return the unit tests that have a module's name: `a/b.py` has tests/unit/a/test_b.py, test_b_c.py."""
    module, folder = Path(path), tree / "tests" / "unit" / Path(path).parent
    found = [folder / f"test_{module.stem}.py", *sorted(folder.glob(f"test_{module.stem}_*.py"))]
    return tuple(f"{one.relative_to(tree)}" for one in found if one.is_file())


def stages(tree: Path, room: str, simulations: Sequence[str], first_seed: int, seeds: int) -> list[Stage]:
    """Return what all mutants of a room must pass, after the tests of their own module."""
    folder = Path("tests/unit") / room
    found = [Stage("room", (f"{folder}",))] if (tree / folder).is_dir() else []
    paths = tuple(f"tests/simulation/{name}" for name in simulations)
    if paths and seeds:
        found.append(Stage("simulation", paths, (f"--first-seed={first_seed}", f"--seeds={seeds}")))
    return found


class Run:
    """The mutants of a room, one after another, in a copy of the tree."""

    def __init__(self, copy: Copy, room: str, after: Sequence[Stage]) -> None:
        self._copy, self._after, self.room = copy, after, room
        self._limits: dict[str, float] = {}

    def require_sound(self) -> None:
        """Run every stage without a fault, for how long each may take; raise `SuiteFails`."""
        self._copy.require_own(self.room)
        for stage in self._after:
            began = time.monotonic()
            code, said = self._copy.run(stage, limit_seconds=3_600)
            if code not in (0, NO_TESTS):
                raise SuiteFails(f"{stage.name} of {self.room} fails without a fault:\n{said}")
            took = time.monotonic() - began
            _say(f"{self.room}: {stage.name} takes {took:.0f} s")
            self._limits[stage.name] = LIMIT_SECONDS_MIN + LIMIT_TIMES * took

    def fate(self, mutant: Mutant) -> Fate:
        """Run the stages until one kills the mutant."""
        source = (self._copy.tree / mutant.path).read_bytes()
        place, diff = mutant.place(source), mutant.diff(source)
        with self._copy.with_fault(mutant):
            return Fate(place, mutant.kind, self._killed_by(mutant.path) or SURVIVED, diff)

    def _killed_by(self, path: str) -> str:
        tests = mirrored(self._copy.tree, path)
        own = [Stage("mirror", tests)] if tests else []
        for stage in [*own, *self._after]:
            limit = self._limits.get(stage.name, max(self._limits.values(), default=LIMIT_SECONDS_MIN))
            code, _ = self._copy.run(stage, limit)
            if code not in (0, NO_TESTS):
                return TIME_LIMIT if code is None else stage.name
        return ""


def report(room: str, seed: str, fates: Sequence[Fate]) -> dict[str, Any]:
    """Return what is printed for a room."""
    killed = Counter(one.fate for one in fates if one.fate != SURVIVED)
    kinds = {kind: [one.fate != SURVIVED for one in fates if one.kind == kind] for kind in KINDS}
    return {
        "room": room, "seed": seed, "drawn": len(fates), "killed": sum(killed.values()),
        "killed_by": dict(sorted(killed.items())),
        "kinds": {kind: f"{sum(these)} of {len(these)}" for kind, these in kinds.items() if these},
        "survived": [{"place": one.place, "kind": one.kind, "diff": one.diff} for one in fates
                     if one.fate == SURVIVED],
    }  # fmt: skip


def mutate(root: Path, room: str, simulations: Sequence[str], asked: argparse.Namespace) -> dict[str, Any]:
    """Draw the mutants of a room, run them, and return the report; raise `SuiteFails`."""
    fates: list[Fate] = []
    with Copy.made(root, asked.first_seed) as copy:
        many = drawn(copy.sources(room), asked.count, f"{asked.seed} {room}")
        run = Run(copy, room, stages(copy.tree, room, simulations, asked.first_seed, asked.seeds))
        run.require_sound()
        for n, mutant in enumerate(many, 1):
            if asked.only in mutant.place((copy.tree / mutant.path).read_bytes()):
                fates.append(run.fate(mutant))
                _say(f"{room}: {n} of {len(many)}, {fates[-1].place} {mutant.kind}: {fates[-1].fate}")
                _say(fates[-1].diff if fates[-1].fate == SURVIVED else "")
    return report(room, f"{asked.seed}", fates)


def _say(text: str) -> None:
    if text:
        print(text, file=sys.stderr, flush=True)


def _asked(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.run", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("rooms", nargs="*", metavar="room", help=f"of: {' '.join(ROOMS)}; else all")
    parser.add_argument("--seed", type=int, default=None, help="which mutants; else by the clock")
    parser.add_argument("--count", type=int, default=20, help="how many mutants of each room")
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds of the simulation; 0: none")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them")
    parser.add_argument("--only", default="", help="of the drawn mutants those whose path:line has this text")
    asked = parser.parse_args(words)
    asked.rooms = [room.strip("/") for room in asked.rooms] or [*ROOMS]
    if unknown := [room for room in asked.rooms if room not in ROOMS]:
        parser.error(f"no room {unknown[0]}; there are: {' '.join(ROOMS)}")
    asked.seed = int(time.time()) if asked.seed is None else asked.seed
    return asked


def main(words: Sequence[str], root: Path = ROOT) -> int:
    """Print a report for each room; return the exit code, 1 where a suite fails without a fault."""
    asked = _asked(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the copy is deleted
    _say(f"seed {asked.seed}")
    for room in asked.rooms:
        try:
            print(json.dumps(mutate(root, room, ROOMS[room], asked)), flush=True)
        except SuiteFails as error:
            _say(f"{error}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
