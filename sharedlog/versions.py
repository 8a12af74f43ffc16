"""The version of a cluster, which limits the record formats in its log, like `metadata.version` in Kafka.

Nodes are upgraded one at a time, and a reader halts at a kind or body format that it does not support.
Therefore, each program announces the highest version that it *supports*, the cluster has one *finalized*
version, and no node writes a record that needs a version higher than the finalized version.

    version   content
    3         all kinds and bodies of the first release

Lower version numbers belong to programs before the first release, whose records differ. A cluster with a
lower version is refused.

    field                                               meaning
    GENESIS, a checkpoint's fold: `finalized`           the finalized version at that point
    BEAT: `finalize`                                    the finalized version from this record on
    EPOCH, CHECKPOINT, HOLD: `supports`                 the highest version that the writing node supports
    CHECKPOINT, HOLD: `finalized`                       the finalized version as far as that node has read

Rules
1. The leader finalizes a new version at the command of an operator (`tidewheel cluster set-version`), and
   only if all nodes in the log support the version (`nodes_without_support`). The finalized version never
   decreases, since the log may contain records that need the version.
2. A program that does not support the finalized version halts when it reads the version, before it can
   misread a record. A program also halts if the finalized version is missing.
3. A program ignores an unknown field of a JSON body, but halts at an unknown kind or body version
   (`sharedlog.fold`). `NEEDS` lists the version that a kind or body version needs, and a writer compares this
   version before writing.

Limitation: rule 1 does not check nodes that are unknown to the log or forgotten, but rule 2 covers them.
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
"""The version of a record that contains no version. No release writes such a record."""
NEEDS: Final[Mapping[tuple[int, int], int]] = {(kind, 1): OLDEST for kind in Kind}
"""The version that must be finalized before a kind with a body version may be written."""


def may_write(record: SharedRecord, finalized: int) -> bool:
    """Return whether all nodes of a cluster with this finalized version can read a record."""
    needed = NEEDS.get((record.kind, record.version))
    return needed is not None and needed <= finalized


def nodes_without_support(wanted: int, supports: Mapping[str, int]) -> dict[str, int]:
    """Return the nodes that do not support a version, with the versions that they support."""
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
