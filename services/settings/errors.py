"""Errors of settings and of input files."""

from __future__ import annotations

from tidewheel.errors import ConfigurationError


class InputUnreadable(ConfigurationError):
    """The input file cannot be read."""

    code = "TW-121"


class UnknownSetting(ConfigurationError):
    """A setting is unknown."""

    code = "TW-245"
