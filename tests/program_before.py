"""The release before this one, as a program beside it: its sources come from git, its libraries from here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

BEFORE: Final = "4648fb2d06"
"""The commit of the last release before this one; its newest version of records is VERSION_BEFORE."""
VERSION_BEFORE: Final = 2
ROOT: Final = Path(__file__).resolve().parents[1]
SECONDS: Final = 60
MAIN: Final = "from services.cli.main import main; main()"


def check_out(folder: Path) -> Path:
    """Write the sources of the release before into a folder. Skips where the clone lacks the commit."""
    packed = subprocess.run(["git", "-C", str(ROOT), "archive", BEFORE], capture_output=True, check=False)
    if packed.returncode:
        pytest.skip(f"the release before, commit {BEFORE}, is not in this clone: git fetch --unshallow")
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "x", "-C", str(folder)], input=packed.stdout, check=True)
    return folder


def environment_of(sources: Path) -> dict[str, str]:
    """Return the environment in which Python imports these sources; the working folder is left out."""
    return os.environ | {"PYTHONPATH": str(sources), "PYTHONSAFEPATH": "1"}


def run_before(sources: Path, *words: object, first: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command of the release before, after the Python statement `first`."""
    command = [sys.executable, "-c", f"{first}\n{MAIN}", *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment_of(sources), timeout=SECONDS, check=False
    )
