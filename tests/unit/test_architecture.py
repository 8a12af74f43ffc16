"""ARCHITECTURE.md says what is so: its folders, floors, files and names are those of the code."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
PACKAGES = ("tidewheel", "commitlog", "consumequeue", "timingwheel", "txn", "spark_jobs")
TICKED = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"[\w./-]+\.(py|c|md|toml)")
MEMBER = re.compile(r"([A-Z]\w+)\.(\w+)")
ROOM = re.compile(r"\b(?:services/\w+|" + "|".join(PACKAGES) + r")\b")


def part(heading: str) -> str:
    """Return the text below a heading of the second level."""
    return TEXT.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]


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


def is_there(name: str) -> bool:
    return any(path == name or path.endswith(f"/{name}") for path in tracked())


@pytest.mark.parametrize("name", sorted({one for one in TICKED.findall(TEXT) if FILE.fullmatch(one)}))
def test_every_file_is_there(name: str) -> None:
    assert is_there(name)


@pytest.mark.parametrize(
    "name", sorted({one for one in TICKED.findall(TEXT) if MEMBER.fullmatch(one.split("(")[0])})
)
def test_every_member_is_there(name: str) -> None:
    owner, member = name.split("(")[0].split(".")
    assert member in members().get(owner, ())


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
