"""Times and texts for people."""

from __future__ import annotations

import pytest

from tidewheel.printable import utc


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_795_966_428_463, "2026-11-29T15:33:48.463Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (253_402_300_800_000, "253402300800000 ms since 1970"),
        (-(1 << 63), "-9223372036854775808 ms since 1970"),
    ],
)
def test_a_time_is_shown_in_utc_or_in_milliseconds(time_ms: int, text: str) -> None:
    assert utc(time_ms) == text
