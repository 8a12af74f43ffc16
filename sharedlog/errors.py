"""What can be wrong with a shared log."""

from __future__ import annotations

from tidewheel.errors import TidewheelError


class Halted(TidewheelError):
    """This node stopped: the shared log is not one history."""

    code, exit_code = "TW-250", 5


class Refused(TidewheelError):
    """The shared log has another head: somebody else leads."""

    code = "TW-251"


class Unknown(TidewheelError):
    """Nobody knows whether the shared log has the record."""

    code = "TW-252"
