"""The durable tables are changed only while a record is applied, or a snapshot thawed.

Read from the syntax trees: what a part changes of its tables it changes in these, or in functions that are
called by none but these.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[4]
# fmt: off
MUTATORS: Final = {
    "add", "add_delivered_ends", "add_end", "add_half", "add_names", "append", "appendleft", "asked",
    "record_late_request", "clear", "discard", "end", "extend", "finish", "forget", "insert", "pop",
    "popitem", "popleft", "put", "put_many", "remove", "reopen", "set", "setdefault", "skip_to", "stored",
    "take", "update",
}
"""Methods that change what they are called on: those of containers and of tables."""
# fmt: on

TABLES: Final = {
    "services/broker/spine/access.py": {"_users", "rights"},
    "services/broker/halves/half_receipts.py": {"_rows"},
    "services/broker/schedules/schedules.py": {"_by_name", "_by_number", "_deleted_cursors_ms"},
    "services/broker/spine/topics.py": {"_topics"},
    "services/broker/halves/transactions.py": {"outcomes", "receipts"},
    "services/broker/groups/groups.py": {"_members", "_policies", "_offsets"},
    "services/broker/timers/timers.py": {"ends", "lost", "pending_by_topic"},
    "services/broker/spine/store.py": {"_next_offsets"},
    "services/broker/spine/epoch.py": {"_log"},
}

ROOTS: Final = {
    "__init__",
    "apply",
    "thaw",
}
OTHERS: Final = {
    ("transactions.py", "publish"): "what is forgotten by age was published by then",
    ("groups.py", "_offsets_to_change"): "an untouched row is no part of the state",
    ("topics.py", "infer_topic"): "the broker's apply calls it with every record",
    ("topics.py", "infer_hold"): "the broker's apply calls it with every held timer",
    ("half_receipts.py", "add_half"): "the apply of transactions calls it",
    ("store.py", "reserve_offset"): "apply calls it, and that of groups for records that damage has taken",
}
"""What changes a table besides, and why it may."""


def functions(path: str) -> dict[str, ast.FunctionDef]:
    tree = ast.parse((ROOT / path).read_text())
    classes = [one for one in tree.body if isinstance(one, ast.ClassDef)]
    return {one.name: one for part in classes for one in part.body if isinstance(one, ast.FunctionDef)}


def is_table(node: ast.expr, tables: set[str]) -> bool:
    """Whether an expression is one of the tables, or something in one."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        return node.attr in tables
    return isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)) and is_table(
        node.func if isinstance(node, ast.Call) else node.value, tables
    )


def changes(function: ast.FunctionDef, tables: set[str]) -> Iterator[int]:
    """Yields the lines on which a function changes a table."""
    for node in ast.walk(function):
        targets: list[ast.expr] = []
        if isinstance(node, (ast.Assign, ast.Delete)):
            targets = node.targets
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            targets = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            targets = [node.func.value] if node.func.attr in MUTATORS else []
        yield from (node.lineno for target in targets if is_table(target, tables))


def callers(name: str, found: dict[str, ast.FunctionDef]) -> set[str]:
    return {
        one.name
        for one in found.values()
        for node in ast.walk(one)
        if isinstance(node, ast.Attribute) and node.attr == name and one.name != name
    }


def is_applied(name: str, path: str, found: dict[str, ast.FunctionDef]) -> bool:
    """Whether a function runs only while something is applied or thawed."""
    if name in ROOTS or (Path(path).name, name) in OTHERS:
        return True
    by = callers(name, found) if name.startswith("_") else set()
    return bool(by) and all(is_applied(one, path, found) for one in by)


@pytest.mark.parametrize("path", TABLES)
def test_a_table_is_changed_only_while_a_record_is_applied_or_a_snapshot_thawed(path: str) -> None:
    found, tables = functions(path), TABLES[path]
    changing = {name: [*changes(one, tables)] for name, one in found.items()}
    changing = {name: lines for name, lines in changing.items() if lines}
    assert changing, "this test looks at something"
    assert {name: lines for name, lines in changing.items() if not is_applied(name, path, found)} == {}
