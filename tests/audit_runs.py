"""Runs of an audit as it writes them, without an audit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from spark_jobs.layout import RunFolders
from spark_jobs.names import SHOPS

SUMMARY: Final[dict[str, Any]] = {
    "balanced": True,
    "totals": {"orders": 0},
    "cases": {},
    "others": {},
    "options": {"from_ms": None, "to_ms": None},
    "written_ms": 2_000_000_060_000,
    "as_of_ms": 2_000_000_000_000,
    "covered_from_ms": 0,
    "has_carts": True,
    "has_currency": False,
    "names": SHOPS.as_json(),
    "lacking": [],
}


def write_run(out: Path, run_id: str, **summary: Any) -> RunFolders:
    """Write a run with a whole summary and folders for its rows; return its places."""
    folders = RunFolders(out, run_id)
    for folder in (folders.folder, folders.orders, folders.findings):
        folder.mkdir(parents=True)
    folders.summary.write_text(json.dumps(SUMMARY | summary))
    return folders
