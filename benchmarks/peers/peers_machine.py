"""Machine, commit and Python of a run, on which its figures depend."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]


def machine_facts(load_before: float) -> dict[str, Any]:
    """Return date, machine and Python; the loads are averages of a minute, before and after the run."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "processor": processor(),
        "system": platform.platform(),
        "python": python_of(),
        "load_before": load_before,
        "load_after": os.getloadavg()[0],
    }


def machine_text(machine: dict[str, Any]) -> str:
    """Return the machine and its Python as text."""
    return f"{machine['cores']} cores ({machine['processor']}), Python {machine['python']}"


def load_text(machine: dict[str, Any]) -> str:
    """Return the load of the machine as text."""
    return f"load of the machine: {machine['load_before']:.1f} before, {machine['load_after']:.1f} after"


def commit() -> str:
    """Return the commit of this tree, with `-dirty` if it has uncommitted changes."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def processor() -> str:
    """Return the name of the processor."""
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return found[1] if found else platform.machine()


def python_of() -> str:
    """Return the version and build of Python: without its optimizations the broker takes a third more."""
    is_optimized = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    how = "optimized" if is_optimized else "built without optimizations"
    return f"{platform.python_version()}, {'of the distribution' if sys.base_prefix == '/usr' else how}"
