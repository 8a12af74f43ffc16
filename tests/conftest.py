"""What all tests share."""

from __future__ import annotations

import os
import subprocess

from tests.forked import Forked

subprocess.Popen = Forked  # type: ignore[misc]


def pytest_xdist_auto_num_workers() -> int:
    """Tell `-n auto` one more than there are processors, since tests that wait for a clock leave theirs."""
    return (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1) + 1
