"""What the protocol port alone refuses."""

from __future__ import annotations

from tidewheel.errors import Busy


class ClientSilent(Busy):
    """The client does not answer."""

    code = "TW-175"
