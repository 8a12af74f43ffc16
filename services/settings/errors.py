"""What a setting or an input file may have wrong."""

from __future__ import annotations

from tidewheel.errors import ConfigurationError


class InputUnreadable(ConfigurationError):
    """The input file cannot be read."""

    code = "TW-121"


class UnknownSetting(ConfigurationError):
    """A setting is unknown."""

    code = "TW-245"
