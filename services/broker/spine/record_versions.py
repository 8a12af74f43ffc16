"""Refuse operations that write records unsupported by older nodes in the cluster.

During an upgrade of a cluster, nodes of different releases read the same log. An older release halts at a
record body that it does not support, or applies the record incorrectly. For example, an older leader would
deliver the timers of a held topic. Such a record is therefore written only if the newest epoch record in the
log contains at least the version listed below. The version in an epoch record is a finalized version
(`sharedlog.versions`).

    record                                                       version   below this version
    TW_SYS_TOPIC with "deleted", "held", or "released"           4         the operation is refused
    TW_SYS_TOPIC with "retention_ms"                             4         the operation is refused
    timer with TW_HELD (only if a topic is held)                 4         no topic is held
    TW_SYS_TASK                                                  4         the items of tasks are not stored

A store outside a cluster has no epoch, and is read only by the program that writes it. The version of the
epoch record applies, not the newest finalized version, because a cluster that is restored from a copy of the
log starts with at least the version of the epoch record.

Limitation: a version that is finalized during an epoch takes effect only in the next epoch.
"""

from __future__ import annotations

from typing import Final

from services.broker.spine.errors import VersionNotFinalized
from services.broker.spine.store import Store

TOPIC_CHANGES: Final = 4
"""The version required to delete a topic, to hold or release its timers, or to set its retention."""
TASK_ITEMS: Final = 4
"""The version required for the records that list the items of tasks."""


def may_write(store: Store, needed: int) -> bool:
    """Return whether all nodes that read the log support records of version `needed`."""
    return store.log.epoch == 0 or store.version >= needed


def require(store: Store, needed: int, what: str) -> None:
    """Raise `VersionNotFinalized` if a node that reads the log may not support records of version `needed`.

    `what` is the subject of the error message, such as "A hold".
    """
    if not may_write(store, needed):
        raise VersionNotFinalized(
            f"{what} requires version {needed}, and version {store.version} is in effect: an older node "
            "could not read the records. Upgrade all nodes, finalize the version (tidewheel cluster "
            "set-version), and let another node lead (tidewheel cluster move)."
        )
