"""What benchmarks import: scripts take parts, parts what lies beside their folders; there is no circle."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
README = (BENCHMARKS / "README.md").read_text()


def modules(folder: Path, pattern: str) -> dict[str, Path]:
    """Return the files below a folder by the names under which they are imported."""
    found = [path for path in folder.glob(pattern) if path.name != "__init__.py"]
    return {path.relative_to(folder).with_suffix("").as_posix().replace("/", "."): path for path in found}


SCRIPTS = modules(BENCHMARKS, "*.py")
PARTS = modules(BENCHMARKS, "parts/**/*.py")
PEERS = modules(BENCHMARKS / "peers", "*.py")


def imported(path: Path) -> set[str]:
    """Return all that a file imports, wherever in the file, for types too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_there_is_no_circle() -> None:
    for known in (SCRIPTS | PARTS, PEERS):
        graph = {name: imported(path) & known.keys() for name, path in known.items()}
        assert set(TopologicalSorter(graph).static_order()) == known.keys()


def test_no_file_imports_a_script() -> None:
    importers = {name: imported(path) & SCRIPTS.keys() for name, path in (SCRIPTS | PARTS).items()}
    assert {name: found for name, found in importers.items() if found} == {}


def test_what_the_parts_share_imports_none_of_their_folders() -> None:
    shared = {name for name, path in PARTS.items() if path.parent.name == "parts"}
    assert all(imported(PARTS[name]) & PARTS.keys() <= shared for name in shared)


def test_the_readme_lists_every_script() -> None:
    of_peers = [f"peers/{name}.py" for name, path in PEERS.items() if "__main__" in path.read_text()]
    assert "peers/rocketmq.py" in of_peers
    listed = [*(f"{name}.py" for name in SCRIPTS), *of_peers]
    assert [name for name in listed if f"| `{name}` |" not in README] == []
