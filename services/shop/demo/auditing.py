"""Runs the audit in its own process, which receives only the paths and URLs of the stores."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

from services.shop.database import sqlite_url
from services.shop.demo.processes import tidewheel
from tidewheel.errors import TidewheelError

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.shop.demo.settings import Layout

LAST_WORDS_CHARACTERS = 500


def run_audit(layout: Layout, carts_url: str, say: Callable[[str], None], *limits: str) -> dict[str, Any]:
    """Audit the stores of a run, print the output of the audit, and return its summary.

    Raises:
        TidewheelError: If the audit fails. The message quotes the last lines of its output.
    """
    answer = layout.logs / "audit.json"
    with answer.open("w") as stdout:
        audit = subprocess.Popen(
            [*command(layout, carts_url), *limits], stdout=stdout, stderr=subprocess.PIPE, text=True
        )
        words = listen(audit, layout, say)
    exit_code = audit.wait()
    try:
        summary: dict[str, Any] = json.loads(answer.read_text())
    except ValueError as error:
        last_words = words[-LAST_WORDS_CHARACTERS:].strip()
        raise TidewheelError(f"The audit ended with exit code {exit_code}: {last_words}") from error
    return summary


def command(layout: Layout, carts_url: str) -> list[str]:
    """Return the command line of the audit."""
    return tidewheel(
        "audit",
        *("--store", str(layout.store)),
        *("--orders", sqlite_url(layout.orders_database)),
        *("--carts", carts_url),
        *("--pushes", sqlite_url(layout.pushes_database)),
        *("--out", str(layout.audit)),
        "--json",
    )


def listen(audit: subprocess.Popen[str], layout: Layout, say: Callable[[str], None]) -> str:
    """Print the output of the audit while it runs, and return it."""
    words = []
    assert audit.stderr is not None
    with (layout.logs / "audit.log").open("w") as log:
        for line in audit.stderr:
            say(f"  {line.rstrip()}")
            log.write(line)
            words.append(line)
    return "".join(words)
