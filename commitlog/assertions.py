"""Checks that Python's assertions are enabled, which is required for every process that runs the core.

If an assertion detects an invalid state, it stops the process before the state is written to disk. `python
-O`, `-OO`, and PYTHONOPTIMIZE remove all assertions. Therefore, `require_assertions` is called first by the
entry points of the core, which are the command line and `Broker.recover`. Assertions never change any state
(tests/unit/test_assertions.py).

The package `tidewheel/`, which runs in user processes, does not call `require_assertions`, because none of
its guarantees depend on assertions.
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
