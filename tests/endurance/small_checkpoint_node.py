"""`tidewheel serve` of a node that takes, tells of and trims checkpoints all the time.

`SUPPORTED_VERSION` is the version of records that it supports, if another than this program's.
"""

from __future__ import annotations

import os

from sharedlog import versions

# Set before any reader is imported; it is Final (misc) for all others than this stand-in of the next release.
versions.SUPPORTED = int(os.environ.get("SUPPORTED_VERSION", versions.SUPPORTED))  # type: ignore[misc]

from commitlog import limits  # noqa: E402
from services.cluster import node_actions  # noqa: E402
from services.cluster.election import table as election_table  # noqa: E402
from services.cluster.election.table import Wait  # noqa: E402

RECORDS = int(os.environ.get("CHECKPOINT_RECORDS", "40"))
limits.SNAPSHOT_LOG_BYTES = RECORDS * 2_048
limits.SNAPSHOT_LOG_BYTES_MAX = 4 * limits.SNAPSHOT_LOG_BYTES
node_actions.CHECKPOINT_RECORDS = RECORDS
election_table.HEALTH_CHECK_SECONDS = 0.2
election_table.WAIT_SECONDS[Wait.COPY_AGAIN] = 0.5

from services.cli.main import main  # noqa: E402 -- the limits are set before anything reads them

main()
