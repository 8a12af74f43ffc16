"""Steers `sick_clock.c`, the wall clock of a process that steps on purpose."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from tests.endurance.sick_disk import compiled

SOURCE = Path(__file__).with_name("sick_clock.c")
NUMBER = struct.Struct("=q")


def build(folder: Path) -> Path:
    """Compile the library into a folder; raises `NoCompiler`."""
    return compiled(SOURCE, folder)


class SickClock:
    """By how much the clock of a process is off."""

    def __init__(self, library: Path, control: Path) -> None:
        self._library, self._control = library, control
        control.write_bytes(bytes(NUMBER.size))
        with control.open("r+b") as file:
            self._number = mmap.mmap(file.fileno(), 0)

    def variables(self) -> dict[str, str]:
        """Return what the environment of a process needs that is to have this clock."""
        return {"LD_PRELOAD": str(self._library), "SICK_CLOCK": str(self._control)}

    def be_off_by(self, offset_ms: int) -> None:
        """Step: from now on the clock is off by so much."""
        NUMBER.pack_into(self._number, 0, offset_ms * 1_000_000)
