"""Where the broker's packages lie, and how the command is started from another process.

A user's project may have folders named `services` or `commitlog`, and may be on the path by the current
folder, by PYTHONPATH or by an editable installation.

Rules:
1. An installation keeps the broker's packages in the folder `broker` of this package, where nobody's imports
   find them; a checkout of the sources keeps them beside this package.
2. Only the command's own processes have that folder on their path, and there in front of everything.
3. Whoever starts one does so by `COMMAND`: `-P` keeps the current folder off its path, which `-m` alone would
   put first.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

COMMAND = (sys.executable, "-P", "-m", "tidewheel")
"""The `tidewheel` command in this Python."""


def broker_path() -> Path:
    """Return the folder that the broker's packages are imported from."""
    installed = Path(__file__).with_name("broker")
    return installed if installed.is_dir() else Path(__file__).parents[1]


def main() -> None:
    """Run the command line."""
    sys.path.insert(0, str(broker_path()))
    # By its name: a user's process, where this package is at home, must never import the broker.
    importlib.import_module("services.cli.main").main()
