"""The cluster's version: what may be written into its log, as Kafka's `metadata.version` says it for Kafka's.

Nodes are upgraded one after the other, so for a while some know kinds and bodies that others do not, at which
a reader that knows no better halts. So a program tells up to which version it *supports* records, the cluster
has one version that is *finalized*, and nobody writes what the finalized one has not got.

    version   what comes with it
    3         all kinds and bodies of the first release

Lower numbers are of programs before the first release, which wrote other records: such a cluster is refused.

    where it stands                                     what it says
    GENESIS, a checkpoint's fold: `finalized`           the finalized version there
    BEAT: `finalize`                                    it is another one from here on
    EPOCH, CHECKPOINT, HOLD: `supports`                 what the writing node supports
    CHECKPOINT, HOLD: `finalized`                       the finalized version as far as that node has read

Rules
1. A new version is finalized by the leader, because an operator wants it (`tidewheel cluster set-version`),
   and only if all nodes of which the log tells support it (`missing`). It never goes down: there may be
   records of it.
2. A program that does not support the finalized version, or finds none, halts where it reads of it, before
   it can misread anything: it does not join, or goes on no more.
3. A fact in a JSON body that a program does not know it ignores; a kind or a version of a body it cannot
   (`sharedlog.fold` halts), so these need a version here (`NEEDS`), which whoever writes has looked up.

Weak spot: a node that the log has not heard of, or has forgotten, is not asked for; rule 2 is for that one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from commitlog import applied_limits
from sharedlog.record import Kind, SharedRecord

OLDEST: Final = applied_limits.OLDEST
"""The version of the first release."""
SUPPORTED: Final = 3
"""Up to which version this program supports records."""
UNSAID: Final = 0
"""The version of a record that names none: no release writes such."""
NEEDS: Final[Mapping[tuple[int, int], int]] = {(kind, 1): OLDEST for kind in Kind}
"""The version that must be finalized for a kind with a version of its body to be written."""


def may_write(record: SharedRecord, finalized: int) -> bool:
    """Return whether all nodes of a cluster with this finalized version can read a record."""
    needed = NEEDS.get((record.kind, record.version))
    return needed is not None and needed <= finalized


def missing(wanted: int, supports: Mapping[str, int]) -> dict[str, int]:
    """Return the nodes that do not support a version, and what they do, given what each supports."""
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
