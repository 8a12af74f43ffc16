"""To replace a node's copy by another's, as an operator orders; without a loss, unless that is accepted.

refetch                     the file `refetch` is written; the copy goes once another one covers its evidence
refetch, loss accepted      evidence and copy go at once; the byte must be the one up to which, by the
                            evidence, the log was accepted (0: the evidence is spoiled, or there is none)
"""

from __future__ import annotations

from commitlog import layout
from commitlog.disk import Disk
from services.cluster import evidence_file, transfer
from services.cluster.errors import LossNotAccepted
from services.cluster.evidence_file import EvidenceSpoiled


def refetch(disk: Disk, accepted_loss: int | None) -> None:
    """Let the store's node get another's copy at its next start; raise `LossNotAccepted`, or OSError."""
    if accepted_loss is None:
        disk.write(layout.REFETCH, 0, b"")
        disk.sync(layout.REFETCH)
        return
    try:
        claimed = evidence_file.read(disk)
    except EvidenceSpoiled:
        claimed = None
    end = 0 if claimed is None else claimed.end
    if accepted_loss != end:
        raise LossNotAccepted(
            f"By its evidence this node has seen the log accepted up to byte {end}, not {accepted_loss}: "
            f"nothing was changed. To give that up: --accept-loss-of {end}."
        )
    disk.delete(layout.EVIDENCE)
    transfer.wipe(disk)
