"""Adds a node to its cluster from a store snapshot (`store snapshot`) and later shared log records.

    checkpoint in the snapshot          --> offset N of the next shared log record
    shared log records from N on        --> store of the node

A snapshot has the store format of a standalone broker. A node therefore does not start from a snapshot by
mistake. The records after the snapshot are read from the shared log or from a backup of the engine.

    log begins after N     records between the snapshot and the start of the log were trimmed (`LogTrimmed`)
    log ends before N      the backup of the engine is older than the snapshot (`Halted`)
    different cluster      the snapshot and the log belong to different clusters (`Halted`)

Data after the checkpoint in the snapshot is ignored, because the shared log contains all accepted data.
Limitation: a snapshot from a different history of the same cluster is detected only when the node reads new
records. The node then halts.
"""

from __future__ import annotations

import json
from pathlib import Path

from commitlog import layout
from commitlog.errors import NotAStore
from commitlog.snapshots import snapshot
from services.broker.broker import SHARED
from services.cluster.founding import lock_store
from services.process.private_files import GROUP_READS, write_whole
from sharedlog.engines import SharedLog, read_genesis
from sharedlog.errors import Halted, LogTrimmed
from sharedlog.fold import Fold


def rejoin_cluster(engine: SharedLog, root: Path, node: str) -> int:
    """Convert the snapshot at `root` into the store of `node`, and return the offset of the next record.

    Raise `NotAStore` if the snapshot contains no checkpoint of a node. Raise `LogTrimmed`, `Halted`,
    `NoCluster`, or `EngineUnavailable` if the node cannot continue from the snapshot. On error, the store is
    unchanged.
    """
    with lock_store(root, is_node=False) as disk:
        start = snapshot.newest(disk)
        if start is None or SHARED not in start.parts:
            raise NotAStore(
                f"{root} has no checkpoint of a node. If it is a young node's, the shared log has all from "
                "its first record on: give the node an empty --store. If it was a broker's alone: tidewheel "
                "cluster create --from takes it."
            )
        fold, cluster = Fold.thaw(start.parts[SHARED]), read_genesis(engine).cluster
        if fold.cluster != cluster:
            raise Halted(f"{root} is of another cluster than {cluster.hex()}, which the shared log is of.")
        _require_joined(engine, fold, root)
        layout.republish_durable(disk, start.offset, may_go_back=True)
        write_whole(
            root / layout.CLUSTER, json.dumps({"cluster": cluster.hex(), "node": node}) + "\n", GROUP_READS
        )
    return fold.next_offset


def _require_joined(engine: SharedLog, fold: Fold, root: Path) -> None:
    first, end = engine.bounds()
    anew = f"begin anew with this one: tidewheel cluster create NEW-URL --from {root}"
    if fold.next_offset < first:
        raise LogTrimmed(
            f"The checkpoint of {root} reads on from record {fold.next_offset}, and the log begins at "
            f"{first}: take a newer copy of a node, or {anew}"
        )
    if fold.next_offset > end:
        raise Halted(
            f"The checkpoint of {root} has read up to record {fold.next_offset - 1}, and the log ends at "
            f"{end - 1}: the engine's backup is older than the copy. To keep what the copy has, {anew}"
        )
