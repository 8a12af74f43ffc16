"""`tidewheel serve` of a node that takes, tells of and trims checkpoints all the time."""

from __future__ import annotations

from commitlog import limits
from services.cluster import node

limits.SNAPSHOT_LOG_BYTES = 64 * 1024
limits.SNAPSHOT_LOG_BYTES_MAX = 4 * limits.SNAPSHOT_LOG_BYTES
node.CHECKPOINT_RECORDS = 40
node.LOOK_SECONDS = 0.2
node.COPY_AGAIN_SECONDS = 0.5

from services.cli.main import main  # noqa: E402 -- the limits are set before anything reads them

main()
