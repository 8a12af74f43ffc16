"""What the system refuses a process."""

from __future__ import annotations

from tidewheel.errors import ConfigurationError, TidewheelError


class PortTaken(ConfigurationError):
    """The port is in use."""

    code, exit_code = "TW-101", 3


class StdoutFailed(TidewheelError):
    """Standard output cannot be written."""

    code, exit_code = "TW-103", 3
