"""ARCHITECTURE.md and CHANGING.md say what is so: folders, floors, files and names are those of the code."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
CHANGING = (ROOT / "docs" / "CHANGING.md").read_text()
PACKAGES = ("tidewheel", "commitlog", "consumequeue", "timingwheel", "txn", "sharedlog", "spark_jobs")
TICKED = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"[\w./-]+\.(py|c|md|toml)")
MEMBER = re.compile(r"([A-Z]\w+)\.(\w+)")
IDENTIFIER = re.compile(r"_?[A-Za-z]\w*_\w+|[A-Z]{4,}")
QUESTION = re.compile(r"^\d+\. .+\?.*(?:\n +.+)*", re.MULTILINE)
WORD_COLUMNS_MAX, CELL_CHARACTERS_MAX, QUESTION_COUNT, ANSWER_FILES_MAX = 110, 300, 10, 3
ROOM = re.compile(r"\b(?:services/\w+|" + "|".join(PACKAGES) + r")\b")


def part(heading: str, text: str = TEXT) -> str:
    """Return the text below a heading of the second level."""
    return text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]


@cache
def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for path in listed.stdout.splitlines() if (ROOT / path).exists()]


@cache
def members() -> dict[str, set[str]]:
    """Return the methods and attributes of each class of the product."""
    found: dict[str, set[str]] = {}
    for path in tracked():
        if not path.endswith(".py") or path.startswith(("tests/", "benchmarks/")):
            continue
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, set()).update(names_in(node))
    return found


def names_in(definition: ast.ClassDef) -> set[str]:
    defined = {
        node.name for node in definition.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    attributes = (node for node in ast.walk(definition) if isinstance(node, ast.Attribute))
    stored = {node.attr for node in attributes if isinstance(node.ctx, ast.Store)}
    fields = {
        node.target.id
        for node in definition.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    return defined | stored | fields


@cache
def identifiers() -> set[str]:
    """Return every word of the product's sources and of the names of its tests' functions."""
    found: set[str] = set()
    for path in tracked():
        if path.endswith(".py") and not path.startswith("tests/"):
            found.update(re.findall(r"\w+", (ROOT / path).read_text()))
        elif path.endswith(".py"):
            found.update(re.findall(r"^def (test_\w+)", (ROOT / path).read_text(), re.MULTILINE))
    return found


def is_there(name: str) -> bool:
    return any(path == name or path.endswith(f"/{name}") for path in tracked())


def ticked(pattern: re.Pattern[str], *texts: str) -> list[str]:
    """Return what the texts have in backticks and is all of a pattern; of a call its name."""
    return sorted(
        {one for text in texts for one in TICKED.findall(text) if pattern.fullmatch(one.split("(")[0])}
    )


@pytest.mark.parametrize("name", ticked(FILE, TEXT, CHANGING))
def test_every_file_is_there(name: str) -> None:
    assert is_there(name)


@pytest.mark.parametrize("name", ticked(MEMBER, TEXT, CHANGING))
def test_every_member_is_there(name: str) -> None:
    owner, member = name.split("(")[0].split(".")
    assert member in members().get(owner, ())


@pytest.mark.parametrize("name", ticked(IDENTIFIER, TEXT, CHANGING))
def test_every_identifier_is_in_the_sources(name: str) -> None:
    assert name.split("(")[0] in identifiers()


@pytest.mark.parametrize("name", ticked(re.compile(r"[A-Z]\w+[a-z]"), CHANGING))
def test_every_class_is_there(name: str) -> None:
    assert name in members()


def test_the_words_are_short_and_in_order() -> None:
    rows = [line for line in part("Words").splitlines() if line.startswith("| ")][1:]
    words = [line.split("|")[1].strip() for line in rows]
    assert words == sorted(words)
    assert [line for line in rows if len(line) > WORD_COLUMNS_MAX] == []


def test_cells_of_tables_are_short() -> None:
    cells = [cell for line in TEXT.splitlines() if line.startswith("|") for cell in line.split(" | ")]
    assert [cell for cell in cells if len(cell) > CELL_CHARACTERS_MAX] == []


def test_each_of_the_ten_questions_is_answered_by_few_files() -> None:
    questions = QUESTION.findall(part("Ten questions", CHANGING))
    assert len(questions) == QUESTION_COUNT
    for question in questions:
        assert 1 <= len(ticked(FILE, question)) <= ANSWER_FILES_MAX, question


def test_the_folder_table_has_every_package_and_every_room_of_services() -> None:
    rows = set(re.findall(r"^\| `([\w/]+)/` \|", part("Floors"), re.MULTILINE))
    rooms = {path.parent.relative_to(ROOT).as_posix() for path in (ROOT / "services").glob("*/__init__.py")}
    assert rows == {*PACKAGES, *rooms}


def test_the_floors_are_those_that_imports_are_held_to() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(one["layers"] for one in contracts if one["name"] == "imports go down the floors")
    held = [{room.strip().replace(".", "/") for room in layer.split("|")} for layer in layers]
    drawn = [set(ROOM.findall(line)) for line in part("Floors").split("```")[1].splitlines()[1:]]
    assert [floor - {"spark_jobs"} for floor in drawn if floor] == held


def test_pytest_looks_into_every_folder_of_unit_tests(pytestconfig: pytest.Config) -> None:
    """A pattern without a slash leaves out each folder of that name, wherever it is."""
    files = [Path(one) for one in tracked() if re.fullmatch(r"tests/(unit|simulation)/.*test_\w+\.py", one)]
    folders = {folder for file in files for folder in file.parents if folder.parts}
    assert Path("tests/unit/services/cluster") in folders
    for pattern in pytestconfig.getini("norecursedirs"):
        form = f"*/{pattern}"
        left_out = [str(one) for one in folders if fnmatch(f"/{one}", form)]
        assert not left_out, f"make test leaves out {left_out} for {pattern}"
