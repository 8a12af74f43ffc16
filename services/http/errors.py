"""What a call of a broker's HTTP interface may meet."""

from __future__ import annotations

from tidewheel.errors import ConfigurationError, TidewheelError


class BrokerUnreachable(ConfigurationError):
    """No broker answers."""

    code, exit_code = "TW-123", 3


class AnswerLate(TidewheelError):
    """The broker has the request and has not answered it."""

    code, exit_code = "TW-267", 3


class TokenAstray(ConfigurationError):
    """The token would be sent to an address that nobody has chosen."""

    code = "TW-246"
