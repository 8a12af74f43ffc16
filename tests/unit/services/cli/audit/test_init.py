"""Which orders the first audit looks at: those of the log's end that it can judge."""

from __future__ import annotations

import pytest

from services.cli.audit.init import first_audited_ms
from spark_jobs.proposing.facts import LogFacts

HOUR_MS, MINUTE_MS = 3_600_000, 60_000
LAST_MS = 1_795_870_000_000


@pytest.mark.parametrize(
    ("first_ms", "is_whole", "from_ms"),
    [
        (LAST_MS - 2 * HOUR_MS, True, LAST_MS - HOUR_MS),
        (LAST_MS - 5 * MINUTE_MS, True, LAST_MS - 6 * MINUTE_MS),
        (LAST_MS - 5 * MINUTE_MS, False, LAST_MS - 4 * MINUTE_MS + 1),
        (0, False, LAST_MS - HOUR_MS),
    ],
)
def test_no_order_older_than_the_log_is_audited_first(first_ms: int, is_whole: bool, from_ms: int) -> None:
    """The log begins, or was deleted up to, its first record; the grace is a minute."""
    log = LogFacts((), 1, LAST_MS, is_whole, first_ms)
    assert first_audited_ms(log, HOUR_MS) == from_ms
