"""Defines the errors that concern transaction IDs."""

from __future__ import annotations

from tidewheel.errors import ClientMistake


class InvalidTransactionId(ClientMistake):
    """The transaction id does not belong to this store."""

    code = "TW-145"
