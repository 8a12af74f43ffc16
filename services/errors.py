"""What commands and a starting broker find wrong: addresses, settings, input."""

from __future__ import annotations

from tidewheel.errors import ConfigurationError


class PortTaken(ConfigurationError):
    """The port is in use."""

    code, exit_code = "TW-101", 3


class InputUnreadable(ConfigurationError):
    """The input file cannot be read."""

    code = "TW-121"


class BrokerUnreachable(ConfigurationError):
    """No broker answers."""

    code, exit_code = "TW-123", 3


class OpenToAll(ConfigurationError):
    """Others could reach this address and do everything."""

    code = "TW-127"


class TokenAstray(ConfigurationError):
    """The token would be sent to an address that nobody has chosen."""

    code = "TW-246"


class UnknownSetting(ConfigurationError):
    """A setting is unknown."""

    code = "TW-245"
