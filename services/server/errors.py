"""What a broker refuses to start with, and what it could not start."""

from __future__ import annotations

from tidewheel.errors import ConfigurationError, TidewheelError


class OpenToAll(ConfigurationError):
    """Others could reach this address and do everything."""

    code = "TW-127"


class ConsoleFailed(TidewheelError):
    """The console could not be started."""

    code, exit_code = "TW-282", 3
