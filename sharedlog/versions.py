"""The cluster version, which determines the record formats that are allowed in the shared log.

The cluster version is comparable to `metadata.version` in Kafka.

Nodes are upgraded one at a time, and a reader halts at a record of an unsupported kind or body format. Each
node therefore announces the highest version that it *supports*, and the cluster has a single *finalized*
version. Nodes write no record that requires a version higher than the finalized version.

    version   content
    3         All record kinds and bodies of the first release.
    4         Bodies for deleted, held, and released topics and for retention times, and the items of tasks
              (`services.broker.spine.record_versions`).

Versions lower than 3 predate the first release and have a different record format. A node halts if the
finalized version of the cluster is lower than 3.

    field                                               meaning
    `finalized` in GENESIS and in a checkpoint          the finalized version at this point of the log
    `finalize` in BEAT                                  the finalized version from this record on
    `supports` in EPOCH, CHECKPOINT, and HOLD           the highest version that the writer supports
    `finalized` in CHECKPOINT and HOLD                  the finalized version that the writer has read from
                                                        the log

Rules
1. The leader finalizes a new version only if an operator requests it (`tidewheel cluster set-version`) and
   all nodes with a record in the log support it (`nodes_without_support`). The finalized version never
   decreases, because the log may contain records that require it.
2. A program halts at a finalized version that is missing or that it does not support. It therefore never
   misinterprets a record.
3. A program ignores unknown fields in a JSON body, but halts at an unknown record kind or body version
   (`sharedlog.fold`). `NEEDS` maps each record kind and body version to the required cluster version. Writers
   check the required version before each append.

Limitation: rule 1 does not consider nodes without a record in the log, or nodes that an operator has removed.
Such a node halts under rule 2 if it does not support the finalized version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from commitlog import applied_limits
from sharedlog.record import Kind, SharedRecord

OLDEST: Final = applied_limits.OLDEST
"""The cluster version of the first release."""
SUPPORTED: Final = 4
"""The highest cluster version that this program supports."""
UNSAID: Final = 0
"""The version that is assumed if a version field is missing. All releases write the version fields."""
NEEDS: Final[Mapping[tuple[int, int], int]] = {(kind, 1): OLDEST for kind in Kind}
"""The lowest finalized version at which a record can be written, by record kind and body version."""


def may_write(record: SharedRecord, finalized: int) -> bool:
    """Return whether every node that supports the version `finalized` can read a record."""
    needed = NEEDS.get((record.kind, record.version))
    return needed is not None and needed <= finalized


def nodes_without_support(wanted: int, supports: Mapping[str, int]) -> dict[str, int]:
    """Return the highest supported version of each node that does not support the version `wanted`."""
    return {node: version for node, version in sorted(supports.items()) if version < wanted}


def describe_unsupported(finalized: int) -> str:
    """Return why this program does not support a finalized version, or "" if it is supported."""
    if OLDEST <= finalized <= SUPPORTED:
        return ""
    if finalized < OLDEST:
        return (
            f"the cluster's finalized version is {finalized or 'missing'}: a program from before the first "
            "release made the cluster, and no release reads it. Hand over what waits: tidewheel store export "
            "FOLDER with that program, then tidewheel store import FOLDER --store NEW with this one"
        )
    return (
        f"the cluster's finalized version is {finalized}, and this program supports up to {SUPPORTED}: "
        "install the Tidewheel of the other nodes here and start this one again"
    )
