"""Errors of transaction ids."""

from __future__ import annotations

from tidewheel.errors import ClientMistake


class InvalidTransactionId(ClientMistake):
    """The transaction id is not one of this store's."""

    code = "TW-145"
