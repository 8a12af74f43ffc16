"""`tidewheel` commands as tests run them: in the test's own process, which spares each the second that Python
takes to start and to import. What they print, how they end and what they read of the environment is what
`python -m services.cli.main` would. Commands that serve, or that start Java, are processes all the same.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import traceback
from collections.abc import Mapping
from contextlib import chdir, nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Final
from unittest.mock import patch

from services.cli.main import main

TIDEWHEEL: Final = (sys.executable, "-m", "services.cli.main")
PROCESSES: Final = (
    *(("serve",), ("dev",), ("demo",), ("shop",)),
    *(("audit", verb) for verb in ("init", "run", "schedule")),
)
"""Commands that listen, keep threads, or start Java: each in a process that ends with it."""
SECONDS: Final = 300
"""How long a process may take: one that starts Java takes a minute on a machine with other work."""


def tidewheel(
    *arguments: object, environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder and return how it ended; `environment` is added to what there is."""
    words, told = [str(one) for one in arguments], dict(environment or {})
    if any(tuple(words[: len(one)]) == one for one in PROCESSES):
        return subprocess.run(
            [*TIDEWHEEL, *words],
            capture_output=True, text=True, env=os.environ | told, cwd=folder, timeout=SECONDS, check=False,
        )  # fmt: skip
    return in_this_process(*words, environment=told, folder=folder)


def in_this_process(
    *words: str, environment: Mapping[str, str], folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command here and return how it ended: one that serves only if it is to be refused."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with (
        patch.dict(os.environ, environment),
        patch("sys.stdin", io.StringIO()),
        chdir(folder) if folder else nullcontext(),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        exit_code = run(list(words))
    printed = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]
    return subprocess.CompletedProcess(words, exit_code, *printed)


def run(words: list[str]) -> int:
    """Run it, and return the exit code that its process would have."""
    try:
        main(words)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception:
        traceback.print_exc()
        return 1
    return 0
