"""What filters and receipt handles may have wrong."""

from __future__ import annotations

from tidewheel.errors import ClientMistake


class IllegalFilter(ClientMistake):
    """The filter expression is illegal."""

    code = "TW-139"


class InvalidReceiptHandle(ClientMistake):
    """The receipt handle is no longer valid."""

    code = "TW-146"
