"""What a broker refuses to start with."""

from __future__ import annotations

from tidewheel.errors import ConfigurationError


class OpenToAll(ConfigurationError):
    """Others could reach this address and do everything."""

    code = "TW-127"
