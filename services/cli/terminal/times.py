"""Moments on the command line."""

from __future__ import annotations

from services.times import moments
from services.times.display import now_ms
from tidewheel.errors import ConfigurationError


def parse_moment_ms(text: str, flag: str) -> int:
    """Return a moment, local where it has no zone; raise `ConfigurationError` naming the flag."""
    try:
        return moments.moment_ms(text, now_ms(), is_local=True)
    except ValueError as error:
        raise ConfigurationError(f"{flag} is {text!r}: {error}.") from error


def parse_past_ms(text: str, flag: str) -> int:
    """Return a moment that has been, local where it has no zone; raise `ConfigurationError`."""
    try:
        return moments.past_ms(text, now_ms(), is_local=True)
    except ValueError as error:
        raise ConfigurationError(f"{flag} is {text!r}: {error}.") from error


def parse_due_ms(text: str, flag: str) -> int:
    """Return a moment that something is to be due at; raise `ConfigurationError` naming the flag."""
    try:
        return moments.due_ms(text, now_ms(), is_local=True)
    except ValueError as error:
        raise ConfigurationError(f"{flag} is {text!r}: {error}.") from error
