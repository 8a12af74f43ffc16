"""No assert changes state, and the broker does not start where Python leaves assertions out."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from commitlog.errors import AssertionsOff

ROOT = Path(__file__).parents[2]
ROOMS = (
    "commitlog", "consumequeue", "services", "sharedlog", "spark_jobs", "tidewheel", "timingwheel", "txn",
    "benchmarks",
)  # fmt: skip
READING = frozenset(
    (
        "all", "any", "bool", "int", "isinstance", "len", "map", "max", "min", "set", "sorted", "sum",
        "dataclasses.replace", "replace", "get_origin",
        ".all", ".array_equal", ".bincount", ".max", ".sum", ".unique",  # NumPy
        ".done", ".isdigit", ".isdisjoint", ".isidentifier", ".keys", ".startswith",
        ".FromString", ".monotonic", ".poll", ".zcard",  # of libraries that benchmarks use
    )
)  # fmt: skip
"""Calls of Python and its libraries that change nothing."""
OWN = {
    "._sound_from": "consumequeue/runs/run_store.py",
    ".count": "services/auth/rights.py",
    ".tokens": "services/broker/spine/access.py",
    ".gauges": "services/broker/broker.py",
    ".has_more": "services/broker/groups/exhausted_messages.py",
    ".has_won": "sharedlog/leading.py",
    ".is_done": "consumequeue/groups/offsets.py",
    ".is_free": "consumequeue/groups/in_flight.py",
    "may_write": "sharedlog/versions.py",
    ".size": "commitlog/disk/real_disk.py",
}
"""Calls of our own, and the file that defines what is called: they are held to change nothing either."""
STRIPPED = (("-O",), ("-OO",))


@cache
def files() -> list[Path]:
    found = (path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    return sorted(path for path in found if "generated" not in path.parts)


def asserts(source: str) -> Iterator[ast.Assert]:
    return (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assert))


def called(call: ast.Call) -> str:
    return f".{call.func.attr}" if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)


def effects(node: ast.AST) -> list[str]:
    """Return what in an expression may change state: bindings, waits, calls that are on no list."""
    return [ast.unparse(one) for one in ast.walk(node) if has_effect(one)]


def has_effect(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return called(node) not in READING | OWN.keys()
    return isinstance(node, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom)


def changes(function: ast.AST) -> list[str]:
    """Return what of a function changes more than its own names."""
    return [ast.unparse(one) for one in ast.walk(function) if is_change(one)]


def is_change(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute | ast.Subscript):
        return isinstance(node.ctx, ast.Store | ast.Del)
    if isinstance(node, ast.Expr):  # a call whose answer is not used was made for its effect
        return isinstance(node.value, ast.Call)
    return isinstance(node, ast.Global | ast.Nonlocal)


def functions(source: str) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef))


@cache
def properties() -> dict[str, list[str]]:
    """Return what the properties of the tree change, by their names."""
    found: dict[str, list[str]] = {}
    for path in files():
        for function in functions(path.read_text()):
            if any(ast.unparse(one) in ("property", "cached_property") for one in function.decorator_list):
                found.setdefault(function.name, []).extend(changes(function))
    return found


def test_no_assert_changes_state() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{one.lineno}: {effect}"
        for path in files()
        for one in asserts(path.read_text())
        for effect in effects(one.test)
    ]
    assert not found, f"left out by python -O; take it out of the assert, or list what only reads: {found}"


def test_no_property_that_an_assert_reads_changes_state() -> None:
    read = {
        one.attr
        for path in files()
        for each in asserts(path.read_text())
        for one in ast.walk(each.test)
        if isinstance(one, ast.Attribute)
    }
    found = {name: changed for name, changed in properties().items() if name in read and changed}
    assert not found


@pytest.mark.parametrize(("call", "path"), OWN.items())
def test_what_asserts_call_of_our_own_only_reads(call: str, path: str) -> None:
    defined = [one for one in functions((ROOT / path).read_text()) if one.name == call.strip(".")]
    assert defined
    assert not [changed for one in defined for changed in changes(one)]


@pytest.mark.parametrize(
    "condition",
    ["self._log.gather(one)", "ran.pop('bytes') > 0", "(x := 1)", "all(take(one) for one in many)"],
)
def test_an_effect_is_found(condition: str) -> None:
    (one,) = asserts(f"assert {condition}")
    assert effects(one.test)


def python(*arguments: str, **told: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT, env=os.environ | told, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("flags", [*STRIPPED, ()])
@pytest.mark.parametrize("module", ["tidewheel", "services.cli.main"])
def test_a_command_without_assertions_is_refused(flags: tuple[str, ...], module: str, tmp_path: Path) -> None:
    told = {} if flags else {"PYTHONOPTIMIZE": "1"}
    store = tmp_path / "store"
    ended = python(*flags, "-m", module, "serve", "--store", str(store), **told)
    assert ended.returncode == AssertionsOff.exit_code
    assert ended.stdout == ""
    assert ended.stderr.startswith("TW-128 ")
    assert "PYTHONOPTIMIZE" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert not store.exists()


def test_the_installed_command_without_assertions_is_refused() -> None:
    ended = python("-O", str(Path(sys.executable).with_name("tidewheel")), "version")
    assert (ended.returncode, ended.stdout) == (AssertionsOff.exit_code, "")
    assert "unset PYTHONOPTIMIZE" in ended.stderr


@pytest.mark.parametrize("flags", STRIPPED)
def test_a_core_without_assertions_is_refused(flags: tuple[str, ...]) -> None:
    ended = python(
        *flags,
        "-c",
        "from services.broker.broker import Broker; "
        "from services.broker.spine.settings import BrokerSettings; "
        "from tests.memory_disk import MemoryDisk; Broker.open(MemoryDisk(), BrokerSettings(), 0)",
    )
    assert ended.returncode != 0
    assert "AssertionsOff" in ended.stderr
    assert "unset PYTHONOPTIMIZE" in ended.stderr


@pytest.mark.parametrize("flags", STRIPPED)
def test_what_applications_import_works_without_assertions(flags: tuple[str, ...]) -> None:
    """An application may run with -O, and with -OO, where a class has no docstring to make a sentence of."""
    folder = ROOT / "tidewheel"
    files = (path.relative_to(folder).with_suffix("") for path in folder.rglob("*.py"))
    modules = sorted(".".join(path.parts) for path in files if not path.stem.startswith("__"))
    ended = python(
        *flags,
        "-c",
        f"import importlib; [importlib.import_module(f'tidewheel.{{one}}') for one in {modules}]; "
        "from tidewheel.errors import NotFound; print(NotFound('Look there.'))",
    )
    assert ended.stderr == ""
    assert "Look there." in ended.stdout


def test_what_applications_import_rests_on_no_assert() -> None:
    found = [path for path in (ROOT / "tidewheel").rglob("*.py") if [*asserts(path.read_text())]]
    assert not found
