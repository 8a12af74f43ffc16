"""Parsing of times on the command line."""

from __future__ import annotations

from services.times import moments
from services.times.display import now_ms
from tidewheel.errors import ConfigurationError


def parse_moment_ms(text: str, flag: str) -> int:
    """Return a time in milliseconds, local if it has no zone. `ConfigurationError` names the option."""
    try:
        return moments.moment_ms(text, now_ms(), is_local=True)
    except ValueError as error:
        raise ConfigurationError(f"{flag} is {text!r}: {error}.") from error


def parse_past_ms(text: str, flag: str) -> int:
    """Return a time in the past in milliseconds, local if it has no zone. Raises `ConfigurationError`."""
    try:
        return moments.past_ms(text, now_ms(), is_local=True)
    except ValueError as error:
        raise ConfigurationError(f"{flag} is {text!r}: {error}.") from error


def parse_due_ms(text: str, flag: str) -> int:
    """Return a due time in milliseconds. `ConfigurationError` names the option."""
    try:
        return moments.due_ms(text, now_ms(), is_local=True)
    except ValueError as error:
        raise ConfigurationError(f"{flag} is {text!r}: {error}.") from error
