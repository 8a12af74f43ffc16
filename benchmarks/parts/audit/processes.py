"""One part of a benchmark in a separate process: its phases, wall time and the memory of its process tree.

    measured(["part", ...]) -> Ran(answer, phases, wall_s, peak_mib, peak_private_mib)

The part prints a line `PHASE name` at the start of each phase, and JSON in its last line. Memory is the sum
over the process and its descendants (Spark's JVM, Spark's Python workers), sampled four times a second:
`peak_mib` of all resident pages, `peak_private_mib` without file-backed pages. The pages of a mapped log stay
resident as long as the machine has free memory, and are evicted otherwise.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

PHASE: Final = "PHASE "
_PAUSE_S: Final = 0.25


@dataclass
class Phase:
    """A phase of a part: wall seconds, and the peak memory sampled during it."""

    name: str
    wall_s: float = 0.0
    peak_mib: int = 0
    peak_private_mib: int = 0

    def see(self, resident_mib: int, private_mib: int) -> None:
        """Update the peaks with a sample."""
        self.peak_mib = max(self.peak_mib, resident_mib)
        self.peak_private_mib = max(self.peak_private_mib, private_mib)


@dataclass
class Ran:
    """Answer of a part (None if it failed), wall seconds and phases."""

    answer: Any
    wall_s: float
    phases: list[Phase] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        return {
            "wall_s": round(self.wall_s, 1),
            "peak_mib": max(phase.peak_mib for phase in self.phases),
            "peak_private_mib": max(phase.peak_private_mib for phase in self.phases),
            "phases": {
                phase.name: {"wall_s": round(phase.wall_s, 1), "peak_private_mib": phase.peak_private_mib}
                for phase in self.phases
            },
            "answer": self.answer,
        }


def measured(command: Sequence[str], paths: Sequence[Path] = ()) -> Ran:
    """Run one part; `command` is the interpreter's arguments, `paths` extends the module search path."""
    scripts = Path(__file__).parents[2]
    found = [str(scripts.parent), str(scripts), *map(str, paths), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(found), "PYTHONUNBUFFERED": "1"}
    started = time.monotonic()
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True, env=environment)
    phases, ended = [Phase("start")], threading.Event()
    watch = threading.Thread(target=_watch, args=(process.pid, phases, ended))
    watch.start()
    last_line, phase_started = "", started
    for line in process.stdout or ():
        last_line, now = line, time.monotonic()
        if line.startswith(PHASE):
            phases[-1].wall_s, phase_started = now - phase_started, now
            phases.append(Phase(line.removeprefix(PHASE).strip()))
    is_done = process.wait() == 0
    phases[-1].wall_s = time.monotonic() - phase_started
    ended.set()
    watch.join()
    return Ran(json.loads(last_line) if is_done else None, time.monotonic() - started, phases)


def _watch(pid: int, phases: list[Phase], ended: threading.Event) -> None:
    while not ended.wait(_PAUSE_S):
        phases[-1].see(*memory_of(pid))


def memory_of(pid: int) -> tuple[int, int]:
    """Return (resident, anonymous) memory of a process and its descendants, in MiB."""
    parents = _parents()
    family, grown = {pid}, 0
    while len(family) > grown:
        grown = len(family)
        family |= {child for child, parent in parents.items() if parent in family}
    resident, private = zip(*(_memory(one) for one in family), strict=True)
    return sum(resident) >> 10, sum(private) >> 10


def _parents() -> dict[int, int]:
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            found[int(folder.name)] = _field(folder, "PPid")
    return found


def _memory(pid: int) -> tuple[int, int]:
    folder = Path("/proc") / str(pid)
    return _field(folder, "VmRSS"), _field(folder, "RssAnon")


def _field(folder: Path, name: str) -> int:
    """Return one number of a process's status; 0 if the process has ended."""
    try:
        lines = (folder / "status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)
