"""The errors that only the HTTP port raises. `services/ops/requests/statuses.py` defines their statuses.

`tidewheel/errors.py` defines the families of errors and their rules.
"""

from __future__ import annotations

from tidewheel.errors import AccessRefused, Busy, ClientMistake


class BodyNotJson(ClientMistake):
    """The request's body is not declared as what is taken here."""

    code = "TW-232"


class RequestTooLarge(ClientMistake):
    """The request's body is too large."""

    code = "TW-235"


class BodyUnfinished(ClientMistake):
    """The request's body did not come to its end in time."""

    code = "TW-233"


class TooManyBodies(Busy):
    """The requests under way hold as many bytes as they may together."""

    code = "TW-234"


class ForeignHost(AccessRefused):
    """The HTTP interface does not answer to this name."""

    code = "TW-230"


class ForeignPage(AccessRefused):
    """The request comes from a web page that is not the broker's."""

    code = "TW-231"


class TokenInUrl(ClientMistake):
    """The request's URL holds a token."""

    code = "TW-236"
