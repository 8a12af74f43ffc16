"""What threads free goes back to the system; in a process of its own, since the setting holds for good."""

from __future__ import annotations

import subprocess
import sys

import pytest

MEASURED = """
import sys, threading
from pathlib import Path
import numpy as np
from services.process.memory import keep_little

def held_mib():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024

def crowd():
    np.ones(31 << 20, np.uint8)
    arrays = [np.ones(20 << 20, np.uint8) for _ in range(5)]
    kept.append(np.ones(4_096, np.uint8))

if sys.argv[1] == "given back":
    keep_little()
kept, before = [], held_mib()
for _ in range(3):
    thread = threading.Thread(target=crowd)
    thread.start()
    thread.join()
print(held_mib() - before)
"""
GIVEN_BACK_MIB_MAX = 8


def held_mib(how: str) -> float:
    """MiB held more than before by a process whose threads have freed all but some bytes."""
    command = [sys.executable, "-c", MEASURED, how]
    return float(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="the heap of other systems is left as it is")
def test_what_threads_have_freed_is_given_back() -> None:
    assert held_mib("given back") < GIVEN_BACK_MIB_MAX
