"""Location of the broker's packages, and the command line that starts them in another process.

A user's project may have folders named `services` or `commitlog`, and may be on the import path by the
current directory, PYTHONPATH, or an editable installation.

Rules:
1. An installation keeps the broker's packages in the folder `broker` of this package, where user imports
   cannot find them. A source checkout keeps them next to this package.
2. Only processes of the command have that folder on their import path, in the first position.
3. These processes are started with `COMMAND`. The option `-P` removes the current directory from the import
   path.
4. If only `tidewheel-client` is installed, this folder does not exist. The command `work` is still available;
   all other commands print an error message.
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
"""The `tidewheel` command in the current Python environment."""


def without_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without settings and without a settings file."""
    kept = {name: value for name, value in environ.items() if not name.startswith(VARIABLE_PREFIX)}
    return kept | {f"{VARIABLE_PREFIX}CONFIG": os.devnull}


def broker_path() -> Path:
    """Return the folder from which the broker's packages are imported."""
    installed = Path(__file__).with_name("broker")
    return installed if installed.is_dir() else Path(__file__).parents[1]


def main() -> None:
    """Run the command line."""
    if not (broker_path() / "services" / "cli").is_dir():
        run_without_broker(sys.argv[1:])
        return
    sys.path.insert(0, str(broker_path()))
    # Imported by name, because a user process that has this package must never import the broker.
    importlib.import_module("services.cli.main").main()


def run_without_broker(arguments: list[str]) -> None:
    """Run the commands of `tidewheel-client`, or print which package is missing."""
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
