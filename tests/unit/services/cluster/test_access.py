"""The files by which commands reach every node of a cluster."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from services.cluster.access import keep_files_current
from services.settings.config import ClientSettings, load


def test_the_files_follow_what_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"https://10.0.0.1:8088": "PEM a\n"}
    monkeypatch.setenv("TIDEWHEEL_CONFIG", str(tmp_path / "access" / "tidewheel.toml"))
    seen = []

    async def pause(_: float) -> None:
        found = load(ClientSettings)
        assert found.http_ca is not None
        assert found.http_token == tmp_path / "token"
        seen.append((str(found.http), found.http_ca.read_text()))
        if len(seen) == 1:
            known.update({"https://10.0.0.2:8088": "PEM b\n", "http://10.0.0.3:1": ""})
        if len(seen) == 3:
            raise asyncio.CancelledError

    with suppress(asyncio.CancelledError):
        asyncio.run(keep_files_current(tmp_path, tmp_path / "token", lambda: known, pause))
    both = ("https://10.0.0.1:8088,https://10.0.0.2:8088,10.0.0.3:1", "PEM a\nPEM b\n")
    assert seen == [("https://10.0.0.1:8088", "PEM a\n"), both, both]


def test_a_disk_without_room_is_tried_again(tmp_path: Path) -> None:
    store, looks = tmp_path / "missing", 0

    async def pause(_: float) -> None:
        nonlocal looks
        looks += 1
        store.mkdir(exist_ok=True)
        if looks == 2:
            raise asyncio.CancelledError

    with suppress(asyncio.CancelledError):
        asyncio.run(keep_files_current(store, None, lambda: {"http://127.0.0.1:1": ""}, pause))
    assert 'http = "127.0.0.1:1"' in (store / "access" / "tidewheel.toml").read_text()
    assert "http_ca" not in (store / "access" / "tidewheel.toml").read_text()
