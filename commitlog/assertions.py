"""Assertions are part of the product, and a process that runs the core without assertions does not start.

An assertion stops the process at an invalid state, before this state reaches the disk. `python -O`, `-OO` and
PYTHONOPTIMIZE remove every assertion. The command line and `Broker.recover`, which are the entry points of
the core, therefore call `require_assertions` first. No assertion changes state
(tests/unit/test_assertions.py).

The package `tidewheel/`, which runs in users' processes, does not call `require_assertions`, because none of
its guarantees depends on an assertion.
"""

from __future__ import annotations

from commitlog.errors import AssertionsOff


def require_assertions() -> None:
    """Raise `AssertionsOff` in a process that runs without assertions."""
    if not __debug__:
        raise AssertionsOff(
            "-O, -OO and PYTHONOPTIMIZE remove the checks that stop a broker before it writes a wrong state. "
            "Start Python without the flag, and unset PYTHONOPTIMIZE."
        )
