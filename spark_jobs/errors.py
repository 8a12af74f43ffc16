"""What an audit finds wrong with its surroundings."""

from __future__ import annotations

from tidewheel.errors import ConfigurationError


class DatabaseUnreadable(ConfigurationError):
    """The database cannot be read."""

    code = "TW-124"


class JavaMissing(ConfigurationError):
    """Spark needs Java 17 or newer."""

    code, exit_code = "TW-200", 3
