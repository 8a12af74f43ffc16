"""Where the broker's packages lie, and how the command is started from another process.

A user's project may have folders named `services` or `commitlog`, and may be on the path by the current
folder, by PYTHONPATH or by an editable installation.

Rules:
1. An installation keeps the broker's packages in the folder `broker` of this package, where nobody's imports
   find them; a checkout of the sources keeps them beside this package.
2. Only the command's own processes have that folder on their path, and there in front of everything.
3. Whoever starts one does so by `COMMAND`: `-P` keeps the current folder off its path, which `-m` alone would
   put first.
4. Where `tidewheel-client` alone is installed there is no such folder: `work` runs all the same, every other
   command is one sentence.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from tidewheel.errors import LibraryMissing

VARIABLE_PREFIX = "TIDEWHEEL_"
COMMAND = (sys.executable, "-P", "-m", "tidewheel")
"""The `tidewheel` command in this Python."""


def without_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without settings, in which a command reads no file of settings either."""
    kept = {name: value for name, value in environ.items() if not name.startswith(VARIABLE_PREFIX)}
    return kept | {f"{VARIABLE_PREFIX}CONFIG": os.devnull}


def broker_path() -> Path:
    """Return the folder that the broker's packages are imported from."""
    installed = Path(__file__).with_name("broker")
    return installed if installed.is_dir() else Path(__file__).parents[1]


def main() -> None:
    """Run the command line."""
    if not (broker_path() / "services" / "cli").is_dir():
        run_without_broker(sys.argv[1:])
        return
    sys.path.insert(0, str(broker_path()))
    # By its name: a user's process, where this package is at home, must never import the broker.
    importlib.import_module("services.cli.main").main()


def run_without_broker(arguments: list[str]) -> None:
    """Run what `tidewheel-client` alone can, or say what is missing."""
    match arguments:
        case ["work", *others]:
            importlib.import_module("tidewheel.client.work").main(others)
        case ["--version" | "-V"]:
            found = importlib.import_module("importlib.metadata").version("tidewheel-client")
            print(f"tidewheel-client {found}")
        case _:
            error = LibraryMissing(
                "Of Tidewheel only tidewheel-client is here, with the command `tidewheel work`. "
                "The broker and the other commands are missing, install them with: pip install tidewheel"
            )
            print(f"{error.code} {error}", file=sys.stderr)
            sys.exit(error.exit_code)
