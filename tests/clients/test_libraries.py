"""When a client's program is played, built or left out: with a program that is one file, copied."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.clients.libraries import Library, require


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    monkeypatch.delenv("TIDEWHEEL_BUILD_CLIENTS", raising=False)
    (tmp_path / "source").write_text("first")
    return Library(
        name="copied",
        folder=tmp_path,
        tools=("cp",),
        sources=("sou*",),
        build=("cp", "source", "built"),
        built="built",
        command=("cat", "built"),
    )


def test_what_is_not_built_is_left_out_by_name(library: Library) -> None:
    with pytest.raises(pytest.skip.Exception, match=r"copied's client is left out.*make test-clients"):
        require(library)


def test_what_is_asked_for_is_built_once(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEWHEEL_BUILD_CLIENTS", "1")
    require(library)
    require(replace(library, build=("false",)))


def test_a_build_that_is_older_than_its_source_is_none(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEWHEEL_BUILD_CLIENTS", "1")
    require(library)
    built = (library.folder / "built").stat().st_mtime
    os.utime(library.folder / "source", (built + 1, built + 1))
    assert not library.is_built()


def test_a_tool_that_is_missing_is_named(library: Library) -> None:
    with pytest.raises(pytest.skip.Exception, match="no-such-tool not installed"):
        require(replace(library, tools=("cp", "no-such-tool")))


def test_what_is_asked_for_and_cannot_be_built_fails(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEWHEEL_BUILD_CLIENTS", "1")
    with pytest.raises(pytest.fail.Exception, match="cannot be built"):
        require(replace(library, build=("false",)))
    with pytest.raises(pytest.fail.Exception, match="not installed"):
        require(replace(library, tools=("no-such-tool",)))
