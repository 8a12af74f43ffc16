"""Defines the errors that concern filters."""

from __future__ import annotations

from tidewheel.errors import ClientMistake


class IllegalFilter(ClientMistake):
    """The filter expression is illegal."""

    code = "TW-139"
