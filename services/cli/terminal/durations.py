"""Parsing of time spans on the command line."""

from __future__ import annotations

from tidewheel.durations import span_ms
from tidewheel.errors import ConfigurationError


def parse_ms(text: str, flag: str) -> int:
    """Return a time span in milliseconds. `ConfigurationError` names the option."""
    try:
        return span_ms(text)
    except ValueError as error:
        raise ConfigurationError(f"{flag} is {text!r}: {error}.") from error
