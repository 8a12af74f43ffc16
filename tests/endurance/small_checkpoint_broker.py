"""`tidewheel serve` that takes a checkpoint every 256 KiB of log, so that deaths meet many of them."""

from __future__ import annotations

from commitlog import limits

limits.SNAPSHOT_LOG_BYTES = 256 * 1024
limits.SNAPSHOT_LOG_BYTES_MAX = 2 * limits.SNAPSHOT_LOG_BYTES

from services.cli.main import main  # noqa: E402 -- the limits are set before anything reads them

main()
