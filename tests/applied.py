"""Other limits that `apply` reads, for one test."""

from __future__ import annotations

import pytest

from commitlog import applied_limits


def limited(monkeypatch: pytest.MonkeyPatch, version: int = applied_limits.OLDEST, **limits: int) -> None:
    """Let a version have other limits than the oldest."""
    rows = applied_limits.BY_VERSION
    row = rows[applied_limits.OLDEST]._replace(**limits)
    monkeypatch.setattr(applied_limits, "BY_VERSION", {**rows, version: row})
