"""What a call of a broker's HTTP interface may meet."""

from __future__ import annotations

from tidewheel.errors import ConfigurationError


class TokenAstray(ConfigurationError):
    """The token would be sent to an address that nobody has chosen."""

    code = "TW-246"
