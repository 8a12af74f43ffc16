"""`tidewheel audit run`: what was left out is in the terminal, not in a file alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.cli.audit.results import show_summary
from spark_jobs.report.summary import AuditSummary


def test_what_was_left_out_is_told_in_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    left_out = ["orders: 2 with the order_id of an earlier row: 7", "carts: 1 that cannot be read: carts: c"]
    about = {"epochs": [], "left_out": left_out}
    show_summary(
        AuditSummary("run", True, {"orders": 3}, {"balanced": 3}, [], Path("report.html"), about=about), False
    )
    printed = capsys.readouterr().out
    for one in left_out:
        assert f"Left out of {one}\n" in printed
