"""The cluster version, which determines the record formats allowed in the shared log.

It is similar to Kafka's `metadata.version`.

Nodes are upgraded one at a time, and a reader halts at a record kind or body format that it does not support.
Each node therefore announces the highest version that it *supports*, and the cluster has a single *finalized*
version. No node writes a record that requires a higher version.

    version   content
    3         all kinds and bodies of the first release
    4         bodies of topics that are deleted, held, or have a retention, and the items of tasks
              (`services.broker.spine.record_versions`)

Lower versions predate the first release and used a different record format. A node halts if its cluster has
one of these versions.

    field                                               meaning
    GENESIS, a checkpoint's fold: `finalized`           the finalized version at that point
    BEAT: `finalize`                                    the finalized version from this record on
    EPOCH, CHECKPOINT, HOLD: `supports`                 the highest version that the writing node supports
    CHECKPOINT, HOLD: `finalized`                       the finalized version as far as that node has read

Rules
1. The leader finalizes a new version only at an operator's request (`tidewheel cluster set-version`), and
   only if all nodes with a record in the log support it (`nodes_without_support`). The finalized version
   never decreases, because the log may contain records that require it.
2. A program that does not support the finalized version halts when it reads the version, before it can
   misread a record. A program also halts if the finalized version is missing.
3. A program ignores unknown fields in a JSON body, but halts at an unknown record kind or body version
   (`sharedlog.fold`). `NEEDS` maps each kind and body version to the cluster version that it requires. A
   writer checks it before each append.

Limitation: rule 1 does not cover nodes without a record in the log or nodes that an operator has removed.
They halt under rule 2.
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
"""Version if a version field is missing. All releases write these fields."""
NEEDS: Final[Mapping[tuple[int, int], int]] = {(kind, 1): OLDEST for kind in Kind}
"""Finalized version required to write a record, by record kind and body version."""


def may_write(record: SharedRecord, finalized: int) -> bool:
    """Return whether all nodes can read a record at this finalized version."""
    needed = NEEDS.get((record.kind, record.version))
    return needed is not None and needed <= finalized


def nodes_without_support(wanted: int, supports: Mapping[str, int]) -> dict[str, int]:
    """Return the nodes that do not support `wanted`, each with its highest version."""
    return {node: version for node, version in sorted(supports.items()) if version < wanted}


def describe_unsupported(finalized: int) -> str:
    """Return the reason why this program does not support a finalized version, or "" if it does."""
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
