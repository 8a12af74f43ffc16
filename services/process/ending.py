"""The signals that tell a process to end, which it does as cleanly for one as for another."""

from __future__ import annotations

import signal


def signals_to_end() -> tuple[signal.Signals, ...]:
    """Return SIGTERM, SIGINT, and SIGHUP, which comes when the terminal is gone.

    A process that was started to ignore SIGHUP, as `nohup` does, goes on ignoring it.
    """
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return signal.SIGTERM, signal.SIGINT
    return signal.SIGTERM, signal.SIGINT, signal.SIGHUP
