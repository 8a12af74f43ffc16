"""Replaces the store of a halted node at the request of an operator, and provides recovery advice.

The command `tidewheel cluster refetch` creates the `refetch` file in the store of a stopped node. When the
node restarts, the store is replaced with a copy from another node. The copy must cover the node's evidence.

With the option `--accept-loss-of N`, the command immediately deletes the evidence and the data of the store.
N must be equal to the accepted end in the evidence, or 0 if the evidence is damaged or missing.
"""

from __future__ import annotations

from typing import Final

from commitlog import layout
from commitlog.disk.disk import Disk
from services.cluster import evidence_file
from services.cluster.copies import transfer
from services.cluster.errors import LossNotAccepted
from services.cluster.evidence import Evidence
from services.cluster.evidence_file import EvidenceDamaged

AFTER_HALT: Final = (
    "Keep this node's --store: it may have what no other has. If all nodes halt, stop them, and begin anew "
    "with what the one that has most has: tidewheel cluster restore NEW-URL --from STORE. If this one alone "
    "does, the others go on without that: stop it, and it may get another's copy: tidewheel cluster refetch "
    "--store STORE"
)
"""Advice for the operator of a node that has found an inconsistent shared log."""
_SEEN: Final = (
    "This node has seen the log accepted {said}. {after}. "
    "A copy that lacks some of that is refused; to give it up: --accept-loss-of {end}."
)


def recovery_advice(disk: Disk) -> str:
    """Return advice for the operator of a halted node, with the accepted end if it is known."""
    claimed = _read_evidence(disk)
    return (
        AFTER_HALT
        if claimed is None
        else _SEEN.format(after=AFTER_HALT, said=claimed.description, end=claimed.end)
    )


def _read_evidence(disk: Disk) -> Evidence | None:
    """Return the evidence of the node, or None if the file is missing or unreadable."""
    try:
        return evidence_file.read(disk)
    except (EvidenceDamaged, OSError):
        return None


def request_refetch(disk: Disk, accepted_loss: int | None) -> None:
    """Make the node fetch a copy from another node at the next startup.

    If `accepted_loss` is given, delete the evidence and the data of the store immediately. Raise
    `LossNotAccepted` if `accepted_loss` differs from the accepted end, or OSError if the disk fails.
    """
    if accepted_loss is None:
        disk.write(layout.REFETCH, 0, b"")
        disk.sync(layout.REFETCH)
        return
    try:
        claimed = evidence_file.read(disk)
    except EvidenceDamaged:
        claimed = None
    end = 0 if claimed is None else claimed.end
    if accepted_loss != end:
        raise LossNotAccepted(
            f"By its evidence this node has seen the log accepted up to byte {end}, not {accepted_loss}: "
            f"nothing was changed. To give that up: --accept-loss-of {end}."
        )
    disk.delete(layout.EVIDENCE)
    transfer.delete_store(disk)
