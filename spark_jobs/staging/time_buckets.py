"""Resolution of counts over time: minutes, or seconds if all times are within a short span.

By minute, a log of one minute would be a single bar of a chart. By second, a log of a year would have 30
million rows. The resolution of a batch and of a part depends on its span, so seconds in parts of a long
log only refine its minutes.

Cost: per part, kind, and topic, at most FINE_SPAN_MS / SECOND_MS + 1 rows by second, or one row per minute
with records.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from spark_jobs.log.columns.ragged import Integers

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60_000
FINE_SPAN_MS: Final = 1_350_000
"""Maximum span of times that are counted by second: 22.5 minutes, or 90 bars of 15 s."""


def bucket_starts(times_ms: Integers) -> Integers:
    """Return the start of the second, or minute, of each time, in ms since 1970."""
    is_fine = len(times_ms) > 0 and int(np.ptp(times_ms)) <= FINE_SPAN_MS
    starts: Integers = times_ms - times_ms % (SECOND_MS if is_fine else MINUTE_MS)
    return starts
