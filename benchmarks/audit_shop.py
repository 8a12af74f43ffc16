"""Build the stores of a shop's day at any size, with known faults, and the findings expected of an audit.

    .venv/bin/python benchmarks/audit_shop.py FOLDER --orders 1000000 [--plants 20] [--seed 1]

    FOLDER/store                  the log, its queue files and a snapshot that names them
    FOLDER/orders.db, pushes.db   SQLite, with the shop's own tables
    FOLDER/carts/                 carts, ledger and differences.parquet, as the audit exports them
    FOLDER/truth.parquet          subject, subject_id, case: every finding there is

Every record is patched from one that a real broker wrote (`parts/shop/templates.py`), with other ids, times
and offsets; the course of an order is a story (`stories.py`), drawn from the seed. Orders are evenly spaced:
100 per second, or fewer if that would not fill three hours. Their stories overlap in the log as a real
shop's do. The last push is due twenty minutes after everything else, so that nothing is in flight. Planted
orders are either older than the audit's limit for a long unacknowledged message (an hour), or young. No
broker opens the store.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

from parts.shop.building import build


def main() -> None:
    """Build a shop, and print its figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--orders", type=int, default=1_000_000)
    parser.add_argument("--plants", type=int, default=0, help="findings of each case")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    started = time.monotonic()
    truth = build(given.folder, given.orders, given.plants, given.seed)
    figures = {
        "orders": truth.orders,
        "records": truth.records,
        "record_bytes": round(truth.log_bytes / truth.records),
        "log_bytes": truth.log_bytes,
        "findings": truth.cases,
        "wall_s": round(time.monotonic() - started, 1),
        "cpu_s": round(sum(os.times()[:4]), 1),
    }
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
