"""Errors in the environment of an audit."""

from __future__ import annotations

from commitlog.errors import StoreError
from tidewheel.errors import ConfigurationError


class DatabaseUnreadable(ConfigurationError):
    """The database cannot be read."""

    code = "TW-124"


class JavaMissing(ConfigurationError):
    """Spark needs Java 17 or newer."""

    code, exit_code = "TW-200", 3


class StreamLost(StoreError):
    """The store no longer holds the log that was being read."""

    code = "TW-112"


class NothingProposed(ConfigurationError):
    """No mapping can be proposed."""

    code = "TW-129"
