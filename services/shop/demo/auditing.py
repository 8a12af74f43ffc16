"""Runs the audit as its own process: it gets the paths and URLs of the stores and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

from commitlog.errors import TidewheelError
from services.shop.database import sqlite_url
from services.shop.demo.processes import tidewheel

if TYPE_CHECKING:
    from services.shop.demo.settings import Layout

BALANCED, DIFFERENT = 0, 1


def run_audit(layout: Layout, carts_url: str) -> dict[str, Any]:
    """Audit the run's stores and return the audit's summary.

    Raises:
        TidewheelError: when the audit itself fails; its last words are quoted.
    """
    command = tidewheel(
        "audit",
        *("--store", str(layout.store)),
        *("--orders", sqlite_url(layout.orders_database)),
        *("--carts", carts_url),
        *("--pushes", sqlite_url(layout.pushes_database)),
        *("--out", str(layout.audit)),
        "--json",
    )
    log = layout.logs / "audit.log"
    with log.open("w") as errors:
        done = subprocess.run(command, env=os.environ, stdout=subprocess.PIPE, stderr=errors, text=True)
    if done.returncode not in (BALANCED, DIFFERENT) or not done.stdout:
        last_words = " / ".join(log.read_text(errors="replace").splitlines()[-3:])
        raise TidewheelError(f"The audit ended with exit code {done.returncode}: {last_words[-500:]}")
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary
