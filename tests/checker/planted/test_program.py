"""The checker shares no code with the product, and reports unreadable inputs."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from tests.checker_process import CHECKER, judged
from tests.history_file import HistoryFile, write_log

PROGRAM = sorted(CHECKER.parent.glob("*.py"))


@pytest.mark.parametrize("path", PROGRAM, ids=lambda one: one.name)
def test_no_file_of_it_imports_anything_but_the_standard_library_and_its_own(path: Path) -> None:
    own = {one.stem for one in PROGRAM}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "an import of what lies beside a package"
            names = [node.module or ""]
        else:
            continue
        assert {name.partition(".")[0] for name in names} <= (own | sys.stdlib_module_names) - {"importlib"}


def test_no_file_of_it_loads_code_by_its_name() -> None:
    nodes = [node for path in PROGRAM for node in ast.walk(ast.parse(path.read_text()))]
    words = {node.id for node in nodes if isinstance(node, ast.Name)}
    assert words.isdisjoint({"__import__", "exec", "eval"})


def files(folder: Path) -> tuple[Path, Path]:
    """Write a history without a call, and a log without a record."""
    history, log = folder / "history.jsonl", folder / "log.bin"
    HistoryFile().write(history)
    write_log(log, 0, [])
    return history, log


def test_nothing_is_wrong_with_nothing(tmp_path: Path) -> None:
    code, report = judged(*files(tmp_path))
    assert (code, report["sound"]) == (0, True)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 1: JSONDecodeError"),
        ('{"type": "ok", "call": 1}', "line 1: KeyError 1"),
        ('{"type": "invoke", "call": 1, "verb": "recall", "id": "M"}', "a recall without topic"),
        ('{"type": "word"}', "'word' is no type of line"),
    ],
)
def test_a_history_that_is_none_is_refused_with_a_sentence(line: str, said: str, tmp_path: Path) -> None:
    history, log = files(tmp_path)
    history.write_text(f"{line}\n")
    code, report = judged(history, log)
    assert code == 2
    assert said in report["said"]


def test_a_log_that_is_none_is_refused_with_a_sentence(tmp_path: Path) -> None:
    history, log = files(tmp_path)
    log.write_bytes(b"SQLite format 3")
    code, report = judged(history, log)
    assert code == 2
    assert "it is no raw log" in report["said"]


def test_a_log_that_ends_amid_a_record_is_refused(tmp_path: Path) -> None:
    history, log = files(tmp_path)
    write_log(log, 0, [(0, 0, b"some bytes")])
    log.write_bytes(log.read_bytes()[:-1])
    assert judged(history, log)[0] == 2


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    code, report = judged(tmp_path / "none", tmp_path / "none")
    assert code == 2
    assert "cannot be read" in report["said"]
