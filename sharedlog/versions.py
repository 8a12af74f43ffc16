"""The version of a cluster: the record formats that its log may contain, as `metadata.version` in Kafka.

Nodes are upgraded one at a time, and a reader halts at a kind or body format that it does not support. So
each program announces the highest version that it *supports*, and the cluster has one *finalized* version: no
node writes a record that needs a higher one.

    version   what comes with it
    3         all kinds and bodies of the first release

Lower numbers belong to programs before the first release, whose records differ: such a cluster is refused.

    where it is stored                                  what it means
    GENESIS, a checkpoint's fold: `finalized`           the finalized version at that point
    BEAT: `finalize`                                    the finalized version from this record on
    EPOCH, CHECKPOINT, HOLD: `supports`                 the highest version that the writing node supports
    CHECKPOINT, HOLD: `finalized`                       the finalized version as far as that node has read

Rules
1. The leader finalizes a new version by order of an operator (`tidewheel cluster set-version`), and only if
   all nodes in the log support it (`missing`). The finalized version never decreases, since the log may
   contain records that need it.
2. A program that does not support the finalized version, or finds none, halts when it reads that version,
   before it can misread a record.
3. A program ignores an unknown field of a JSON body, but halts at an unknown kind or body version
   (`sharedlog.fold`). Each of these needs a version here (`NEEDS`), which a writer compares first.

Limitation: a node unknown to the log, or forgotten by it, is not checked in rule 1; rule 2 covers it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from commitlog import applied_limits
from sharedlog.record import Kind, SharedRecord

OLDEST: Final = applied_limits.OLDEST
"""The version of the first release."""
SUPPORTED: Final = 3
"""The highest version that this program supports."""
UNSAID: Final = 0
"""The version of a record without one; no release writes such a record."""
NEEDS: Final[Mapping[tuple[int, int], int]] = {(kind, 1): OLDEST for kind in Kind}
"""The version that must be finalized for a kind with a version of its body to be written."""


def may_write(record: SharedRecord, finalized: int) -> bool:
    """Return whether all nodes of a cluster with this finalized version can read a record."""
    needed = NEEDS.get((record.kind, record.version))
    return needed is not None and needed <= finalized


def missing(wanted: int, supports: Mapping[str, int]) -> dict[str, int]:
    """Return the nodes that do not support a version, with the versions that they support."""
    return {node: version for node, version in sorted(supports.items()) if version < wanted}


def unsupported(finalized: int) -> str:
    """Return why a program does not join a cluster with this finalized version; empty if it may."""
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
