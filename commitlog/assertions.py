"""Checks that Python assertions are enabled. Every process that runs the core requires assertions.

A failed assertion stops the process before it writes an invalid state to disk. `python -O`, `-OO`, and
PYTHONOPTIMIZE remove all assertions. The entry points of the core (the command line and `Broker.recover`)
therefore call `require_assertions` first. Assertions never change state (tests/unit/test_assertions.py).

The `tidewheel/` package runs in client processes and does not rely on assertions, so it does not call
`require_assertions`.
"""

from __future__ import annotations

from commitlog.errors import AssertionsOff


def require_assertions() -> None:
    """Raise `AssertionsOff` if assertions are disabled."""
    if not __debug__:
        raise AssertionsOff(
            "-O, -OO and PYTHONOPTIMIZE remove the checks that stop a broker before it writes a wrong state. "
            "Start Python without the flag, and unset PYTHONOPTIMIZE."
        )
