"""Signals that end a process cleanly."""

from __future__ import annotations

import signal


def signals_to_end() -> tuple[signal.Signals, ...]:
    """Return SIGTERM, SIGINT, and SIGHUP, which is sent when the terminal is closed.

    If SIGHUP was ignored at start, as under `nohup`, it remains ignored.
    """
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return signal.SIGTERM, signal.SIGINT
    return signal.SIGTERM, signal.SIGINT, signal.SIGHUP
