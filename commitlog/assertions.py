"""The check that Python's assertions are enabled, which every process that runs the core requires.

An assertion stops the process at an invalid state, before the state is written to disk. `python -O`, `-OO`
and PYTHONOPTIMIZE remove every assertion. Therefore the command line and `Broker.recover`, the entry points
of the core, call `require_assertions` first. No assertion changes state (tests/unit/test_assertions.py).

The package `tidewheel/`, which runs in users' processes, does not call `require_assertions`, because none of
its guarantees depends on an assertion.
"""

from __future__ import annotations

from commitlog.errors import AssertionsOff


def require_assertions() -> None:
    """Raise `AssertionsOff` if the process runs without assertions."""
    if not __debug__:
        raise AssertionsOff(
            "-O, -OO and PYTHONOPTIMIZE remove the checks that stop a broker before it writes a wrong state. "
            "Start Python without the flag, and unset PYTHONOPTIMIZE."
        )
