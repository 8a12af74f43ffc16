"""Precision and recall of an audit of a shop with planted faults, by case.

    truth(folder, orders, plants_per_case, seed) -> figures

Builds a generated shop (`parts/shop/`), audits it with the default limits, and compares the findings with
the truth, case by case: precision is the share of the findings that were planted, recall the share of the
planted faults that were found. A finding with another case or subject than planted reduces both.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from parts.shop.building import build
from spark_jobs.inputs.stores import Inputs

Finding = tuple[str, str, str]
"""Subject, its id, case."""


def inputs_of(folder: Path) -> Inputs:
    """Return the stores of a generated shop other than the log."""
    return Inputs(
        f"sqlite:///{folder / 'orders.db'}",
        f"parquet:{folder / 'carts'}",
        f"sqlite:///{folder / 'pushes.db'}",
    )


def findings_in(path: Path) -> list[Finding]:
    """Return the findings, or the truth, from Parquet files."""
    rows = ds.dataset(path, format="parquet").to_table(columns=["subject", "subject_id", "case"]).to_pylist()
    return [(row["subject"], row["subject_id"], row["case"]) for row in rows]


def scores(planted: list[Finding], found: list[Finding]) -> dict[str, dict[str, Any]]:
    """Return precision and recall of each case, with up to three ids of missed and extra findings."""
    missed, extra = Counter(planted) - Counter(found), Counter(found) - Counter(planted)
    by_case: dict[str, dict[str, Any]] = {}
    for case in sorted({case for _, _, case in (*planted, *found)}):
        planted_count, found_count = _count(planted, case), _count(found, case)
        missed_count, extra_count = _count(missed.elements(), case), _count(extra.elements(), case)
        by_case[case] = {
            "planted": planted_count,
            "found": found_count,
            "precision": round(1 - extra_count / found_count, 4) if found_count else None,
            "recall": round(1 - missed_count / planted_count, 4) if planted_count else None,
        }
        for name, ones in (("missed", missed), ("extra", extra)):
            if some := sorted(one for _, one, its_case in ones if its_case == case)[:3]:
                by_case[case][name] = some
    return by_case


def is_perfect(by_case: dict[str, dict[str, Any]]) -> bool:
    """Return whether no finding is missing and none is extra."""
    return all(one["precision"] == one["recall"] == 1.0 for one in by_case.values())


def truth(folder: Path, orders: int, plants_per_case: int, seed: int) -> dict[str, Any]:
    """Build a shop, audit it, and compare the findings with the truth."""
    from spark_jobs.main import audit
    from spark_jobs.options import AuditOptions

    built = build(folder / "shop", orders, plants_per_case, seed)
    started = time.monotonic()
    options = AuditOptions("truth")
    audit(folder / "shop" / "store", inputs_of(folder / "shop"), folder / "out", options, _tell)
    found = findings_in(folder / "out" / "findings" / "run_id=truth")
    by_case = scores(findings_in(folder / "shop" / "truth.parquet"), found)
    return {
        "orders": orders,
        "records": built.records,
        "audited_s": round(time.monotonic() - started, 1),
        "perfect": is_perfect(by_case),
        "cases": by_case,
    }


def _count(findings: Any, case: str) -> int:
    return sum(one[2] == case for one in findings)


def _tell(message: str) -> None:
    print(message, file=sys.stderr)
