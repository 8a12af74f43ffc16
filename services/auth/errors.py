"""Callers that have not proved who they are, or may not; and a key that opens nothing."""

from __future__ import annotations

from tidewheel.errors import AccessRefused, ConfigurationError


class Unauthorized(AccessRefused):
    """The caller has not proved who it is."""

    code, exit_code = "TW-181", 3


class Forbidden(AccessRefused):
    """The caller has no right to this."""

    code = "TW-182"


class WrongKey(ConfigurationError):
    """The key file does not open the users' secrets."""

    code = "TW-126"
