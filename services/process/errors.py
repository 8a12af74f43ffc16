"""What the system refuses a process."""

from __future__ import annotations

from tidewheel.errors import ConfigurationError


class PortTaken(ConfigurationError):
    """The port is in use."""

    code, exit_code = "TW-101", 3
