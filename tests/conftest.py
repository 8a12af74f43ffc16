"""What all tests share."""

from __future__ import annotations

import subprocess

from tests.forked import Forked

subprocess.Popen = Forked  # type: ignore[misc]
