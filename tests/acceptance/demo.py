"""`tidewheel demo` with short deadlines, and a file of orders for it."""

from __future__ import annotations

import csv
import os
import subprocess
from pathlib import Path

from services.shop.demo.processes import tidewheel
from services.shop.replay.made_up_orders import made_up_rows

INVOICE_COUNT = 120


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a `tidewheel demo` of which the deadlines are short."""
    command = tidewheel("demo", "--timeout", "2", "--json", *arguments)
    environment = os.environ | {"HOME": str(folder)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def write_orders(path: Path) -> None:
    """Write a file of orders, the same each time."""
    rows = [row for _, row in made_up_rows(seed=7, invoice_count=INVOICE_COUNT)]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
