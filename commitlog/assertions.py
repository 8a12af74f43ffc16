"""Assertions are part of the product: a process that runs the core without them does not start.

An assert stops the process at the state that must not be, before that state reaches the disk. `python -O`,
`-OO` and PYTHONOPTIMIZE leave every assert out. So each way into the core asks `require_assertions` first:
the command line, and `Broker.recover`. No assert changes state (tests/unit/test_assertions.py).

What runs in users' processes, `tidewheel/`, does not ask: it has no assert that a promise rests on.
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
