"""Tests that the limits used by `apply` do not change, so that older programs drop the same rows."""

from __future__ import annotations

import pytest

from commitlog.applied_limits import BY_VERSION, OLDEST, row_of
from sharedlog.versions import SUPPORTED
from tests.applied import limited

ROWS = {3: (600_000, 1_000_000, 4, 10_000, 10_000, 86_400_000, 10_000)}
"""A new row is added together with its version. Existing rows are never changed, because nodes with these
versions use them."""


def test_rows_are_as_they_were_written_down() -> None:
    assert {version: tuple(row) for version, row in BY_VERSION.items()} == ROWS


def test_no_row_is_of_a_version_that_this_program_does_not_support() -> None:
    assert min(BY_VERSION) == OLDEST
    assert max(BY_VERSION) <= SUPPORTED


def test_a_version_without_a_row_has_that_of_the_highest_below(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, version=5)
    assert [row_of(version) for version in (3, 4, 5, 6)] == [3, 3, 5, 5]
    with pytest.raises(AssertionError, match="of no log"):
        row_of(OLDEST - 1)
