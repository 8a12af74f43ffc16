"""How finely counts over time are kept: by the minute, or by the second where all of them lie close together.

A log of a minute would be one bar of a chart; one of a year by the second would be 30 million rows. Batches
and parts are floored by their own span, so what is kept by the second of a long log only refines its minutes.

Cost: of a part at most FINE_SPAN_MS / SECOND_MS rows for each kind and topic.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from spark_jobs.log.ragged import Integers

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60_000
FINE_SPAN_MS: Final = 1_350_000
"""Times that lie at most so far apart are counted by the second: 22.5 minutes, 90 bars of 15 s."""


def bucket_starts(times_ms: Integers) -> Integers:
    """Return the start (ms) of the bucket of each time (ms since 1970): its second, or its minute."""
    is_fine = len(times_ms) > 0 and int(np.ptp(times_ms)) <= FINE_SPAN_MS
    starts: Integers = times_ms - times_ms % (SECOND_MS if is_fine else MINUTE_MS)
    return starts
