"""`tidewheel serve` of a node that takes, tells of and trims checkpoints all the time."""

from __future__ import annotations

import os

from commitlog import limits
from services.cluster import acts
from services.cluster.election import table as election_table
from services.cluster.election.table import Wait

RECORDS = int(os.environ.get("CHECKPOINT_RECORDS", "40"))
limits.SNAPSHOT_LOG_BYTES = RECORDS * 2_048
limits.SNAPSHOT_LOG_BYTES_MAX = 4 * limits.SNAPSHOT_LOG_BYTES
acts.CHECKPOINT_RECORDS = RECORDS
election_table.LOOK_SECONDS = 0.2
election_table.SECONDS[Wait.COPY_AGAIN] = 0.5

from services.cli.main import main  # noqa: E402 -- the limits are set before anything reads them

main()
