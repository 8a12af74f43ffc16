"""`tidewheel serve` of a node that takes, tells of and trims checkpoints all the time."""

from __future__ import annotations

import os

from commitlog import limits
from services.cluster import node

RECORDS = int(os.environ.get("CHECKPOINT_RECORDS", "40"))
limits.SNAPSHOT_LOG_BYTES = RECORDS * 2_048
limits.SNAPSHOT_LOG_BYTES_MAX = 4 * limits.SNAPSHOT_LOG_BYTES
node.CHECKPOINT_RECORDS = RECORDS
node.LOOK_SECONDS = 0.2
node.COPY_AGAIN_SECONDS = 0.5

from services.cli.main import main  # noqa: E402 -- the limits are set before anything reads them

main()
