"""Exceptions for errors of a shared log."""

from __future__ import annotations

from tidewheel.errors import TidewheelError


class Halted(TidewheelError):
    """This node stopped: the shared log is not one history."""

    code, exit_code = "TW-250", 5


class VersionUnsupported(Halted):
    """This node stopped: its program does not support the version of the cluster."""

    code, exit_code = "TW-268", 5


class LogDamaged(Halted):
    """This node stopped: the shared log has lost, doubled or changed records."""

    code, exit_code = "TW-269", 5

    def __init__(self, detail: str = "", record: int | None = None) -> None:
        super().__init__(detail)
        self.record = record
        """The number of the damaged record, or None if the next record to be read is damaged."""


class EngineRefused(TidewheelError):
    """The shared log has another head: somebody else leads."""

    code = "TW-251"


class NoCluster(EngineRefused):
    """There is no cluster in this shared log."""

    code, exit_code = "TW-255", 4


class ClusterExists(EngineRefused):
    """There is a cluster in this shared log already."""

    code, exit_code = "TW-256", 4


class EngineUnavailable(TidewheelError):
    """The shared log gave no sure answer."""

    code = "TW-252"


class SessionRefused(EngineUnavailable):
    """The engine of the shared log refuses new sessions."""

    code = "TW-270"


class RightMissing(EngineUnavailable):
    """The user of the shared log's engine lacks a right."""

    code = "TW-271"


class LogTrimmed(TidewheelError):
    """The shared log begins behind what this node has read."""

    code = "TW-253"


class NotAccepted(OSError):
    """An append failed, or the node has not received proof that the shared log accepted the records.

    The broker core that appended the records must be discarded.
    """
