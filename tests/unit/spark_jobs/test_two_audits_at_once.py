"""Two audits at once: neither writes into what the other one writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_jobs.layout import RunFolders
from spark_jobs.main import _make_folder
from spark_jobs.seals.files import Account, Seal, SealFolder
from tidewheel.errors import ConfigurationError, RefusedByState


def seal(run_id: str) -> Seal:
    return Seal(
        number=1,
        run_id=run_id,
        written_ms=1,
        window_ms=300_000,
        watermark_ms=600_000,
        covered_from_ms=0,
        from_ms=0,
        to_ms=300_000,
        before=None,
        account=Account(),
        windows={},
        corrected={},
        has_currency=False,
    )


def test_two_seals_at_once_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second to begin deleted the folder of the first and went on in it: the first then closed the books
    with the identities of the other, and every audit after that ended as damaged.
    """
    folder = SealFolder(tmp_path)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    first = folder.begin(1)
    (first / "identities.parquet").write_text("of the first")
    monkeypatch.setattr(os, "getpid", lambda: 2)
    second = folder.begin(1)
    (second / "identities.parquet").write_text("of the second")
    folder.finish(first, seal("first"))
    assert folder.path(1, "identities.parquet").read_text() == "of the first"
    with pytest.raises(RefusedByState, match="sealed by another process"):
        folder.finish(second, seal("second"))
    assert [one.run_id for one in folder.read()] == ["first"]
    assert [path.name for path in folder.folder.iterdir()] == ["00000001"]


def test_two_runs_of_one_second_do_not_share_a_folder(tmp_path: Path) -> None:
    """Two audits that cron starts at 02:00:00 had one id: the orders of one were replaced by the other's, and
    the findings of both were counted together.
    """
    run = RunFolders(tmp_path, "20261128T020000Z")
    _make_folder(run.folder)
    with pytest.raises(ConfigurationError, match="another audit that has begun at the same moment"):
        _make_folder(run.folder)
