"""What the protocol port alone refuses."""

from __future__ import annotations

from tidewheel.errors import Busy


class TooManyClients(Busy):
    """There is no room for another client."""

    code = "TW-178"


class ClientSilent(Busy):
    """The client does not answer."""

    code = "TW-175"
