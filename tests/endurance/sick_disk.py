"""Steers `sick_disk.c`, the disk of a broker that fails, fills, shortens, slows and dies on purpose."""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("sick_disk.c")
KINDS = ("open", "read", "write", "sync", "allocate", "truncate", "rename", "unlink", "mmap")
NUMBERS = (
    *(
        "armed",
        "seed",
        "die",
        "die_after",
        "die_kind",
        "power",
        "full",
        "room",
        "tell_room",
        "short_ppm",
        "slow_ppm",
        "slow_us_max",
    ),
    *KINDS,
    *("calls", "failed", "filled", "shortened", "slowed", "kept", "undone", "torn", "cursed"),
)
COUNTERS = NUMBERS[NUMBERS.index("calls") :]
NUMBER = struct.Struct("=q")


class NoCompiler(Exception):
    """There is nothing here that compiles C."""


def build(folder: Path) -> Path:
    """Compile the library into a folder; raises `NoCompiler`."""
    return compiled(SOURCE, folder)


def compiled(source: Path, folder: Path) -> Path:
    """Compile a library that is preloaded; raises `NoCompiler`."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise NoCompiler
    library = folder / source.with_suffix(".so").name
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl", "-lpthread"]
    subprocess.run(command, check=True)
    return library


class SickDisk:
    """The numbers that are shared with the library in the broker; `disk["write"] = ppm` and the like."""

    def __init__(self, library: Path, root: Path, control: Path) -> None:
        self._environment = {
            "LD_PRELOAD": str(library),
            "SICK_ROOT": str(root),
            "SICK_CONTROL": str(control),
        }
        control.write_bytes(bytes(NUMBER.size * len(NUMBERS)))
        with control.open("r+b") as file:
            self._numbers = mmap.mmap(file.fileno(), 0)

    def environment(self) -> dict[str, str]:
        """Return the environment of a process that is to have this disk."""
        return {**os.environ, **self._environment}

    def __getitem__(self, name: str) -> int:
        value: tuple[int] = NUMBER.unpack_from(self._numbers, NUMBERS.index(name) * NUMBER.size)
        return value[0]

    def __setitem__(self, name: str, value: int) -> None:
        NUMBER.pack_into(self._numbers, NUMBERS.index(name) * NUMBER.size, value)

    def set(self, **numbers: int) -> None:
        """Set some numbers, the switch last."""
        for name, value in sorted(numbers.items(), key=lambda one: one[0] == "armed"):
            self[name] = value

    def die_after(self, calls: int, kind: str = "") -> None:
        """Let the process die before one of its next calls, of one kind if that is given."""
        self.set(die_after=calls, die_kind=NUMBERS.index(kind) if kind else 0, armed=1)

    def heal(self) -> None:
        """Make everything well; what is un-synced stays in the journal as long as `power` is on."""
        self["armed"] = 0
        for name in ("die", "die_after", "die_kind", "full", "short_ppm", "slow_ppm", *KINDS):
            self[name] = 0

    def counters(self) -> dict[str, Any]:
        """Return what has happened so far."""
        return {name: self[name] for name in COUNTERS}
