"""Defines the version of a cluster, which limits the record formats in its log.

The cluster version is similar to `metadata.version` in Kafka.

Nodes are upgraded one at a time, and a reader halts at a record kind or body format that it does not support.
Therefore, each program announces the highest version that it *supports*. The cluster has a single *finalized*
version. No node writes a record that requires a higher version.

    version   content
    3         all kinds and bodies of the first release

Lower version numbers belong to programs before the first release, which use a different record format. A node
halts if the version of its cluster is lower than that of the first release.

    field                                               meaning
    GENESIS, a checkpoint's fold: `finalized`           the finalized version at that point
    BEAT: `finalize`                                    the finalized version from this record on
    EPOCH, CHECKPOINT, HOLD: `supports`                 the highest version that the writing node supports
    CHECKPOINT, HOLD: `finalized`                       the finalized version as far as that node has read

Rules
1. The leader finalizes a new version only when an operator requests it (`tidewheel cluster set-version`), and
   only if all nodes in the log support it (`nodes_without_support`). The finalized version never decreases,
   because the log may contain records that require it.
2. A program that does not support the finalized version halts as soon as it reads this version, before it can
   misinterpret any record. A program also halts if the finalized version is missing.
3. A program ignores unknown fields in a JSON body, but halts at an unknown record kind or body version
   (`sharedlog.fold`). `NEEDS` specifies the cluster version required by each kind and body version. A writer
   checks this version before each append.

Limitation: Rule 1 does not cover nodes that have no record in the log or were removed by an operator.
However, rule 2 stops such nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from commitlog import applied_limits
from sharedlog.record import Kind, SharedRecord

OLDEST: Final = applied_limits.OLDEST
"""The version used by the first release."""
SUPPORTED: Final = 3
"""The highest version that this program supports."""
UNSAID: Final = 0
"""The version that is assumed if the version field is missing. All releases write this field."""
NEEDS: Final[Mapping[tuple[int, int], int]] = {(kind, 1): OLDEST for kind in Kind}
"""The finalized version that is required to write a record, keyed by record kind and body version."""


def may_write(record: SharedRecord, finalized: int) -> bool:
    """Return whether all nodes of a cluster with the version `finalized` can read a record."""
    needed = NEEDS.get((record.kind, record.version))
    return needed is not None and needed <= finalized


def nodes_without_support(wanted: int, supports: Mapping[str, int]) -> dict[str, int]:
    """Return the highest supported version of each node that does not support the version `wanted`."""
    return {node: version for node, version in sorted(supports.items()) if version < wanted}


def describe_unsupported(finalized: int) -> str:
    """Return a reason if this program does not support a finalized version, or "" if it does."""
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
