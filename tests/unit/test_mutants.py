"""`make mutants`: the faults that it puts in, and that it puts them into a copy."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from tests.mutants import run
from tests.mutants.mutating import KINDS, Mutant, drawn, is_fault, mutants_of

ROOT = Path(__file__).parents[2]

SAMPLES = [
    ("comparison", "a < b", {"a <= b"}),
    ("comparison", "a in b", {"a not in b"}),
    ("comparison", "a is b", {"a is not b"}),
    ("comparison", "0 < a <= b", {"0 <= a <= b", "0 < a < b"}),
    ("condition", "x = a and b", {"x = (a or b)", "x = (a)", "x = (b)"}),
    ("condition", "x = a or b or c", {"x = (a and b and c)", "x = (a or b)", "x = (a or c)", "x = (b or c)"}),
    ("condition", "if a:\n    f()", {"if (not (a)):\n    f()"}),
    ("condition", "while not a:\n    f()", {"while (a):\n    f()"}),
    ("condition", "x = [a for a in b if a]", {"x = [a for a in b if (not (a))]"}),
    ("condition", "x = a if b else c", {"x = a if (not (b)) else c"}),
    ("constant", "x = 3", {"x = 4", "x = 2"}),
    ("constant", "x = 4096", {"x = 8192"}),
    ("constant", "x = True", {"x = False"}),
    ("constant", "x = 0.5", {"x = 1.0"}),
    ("operator", "x = a + b", {"x = (a - b)"}),
    ("operator", "x = (a + b) * c", {"x = ((a + b) // c)", "x = ((a - b)) * c"}),
    ("operator", "a += b", {"a -= b"}),
    ("operator", "x = a & b", {"x = (a | b)"}),
    ("statement", "f(a)", {"pass"}),
    ("statement", "a.b = c", {"pass"}),
    ("statement", "a[b] = c", {"pass"}),
    ("statement", "def f():\n    return", {"def f():\n    pass"}),
    ("statement", "for a in b:\n    continue", {"for a in b:\n    pass"}),
    ("statement", "raise E('é') from None", {"pass"}),
    ("argument", "x = a.get(b, c)", {"x = a.get(b)"}),
    ("argument", "x = f(b=c)", {"x = f()"}),
    ("argument", "x = f(a, b=c, d=e)", {"x = f(a, d=e)", "x = f(a, b=c)"}),
    ("argument", "x = f(b=c, d=e)", {"x = f(d=e)", "x = f(b=c)"}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "source", "faults"), SAMPLES)
def test_each_kind_of_fault(kind: str, source: str, faults: set[str]) -> None:
    made = [one for one in mutants_of("a.py", source.encode()) if one.kind == kind]
    found = {ast.unparse(ast.parse(one.applied(source.encode()))) for one in made}
    assert found == {ast.unparse(ast.parse(fault)) for fault in faults} - {ast.unparse(ast.parse(source))}


@pytest.mark.parametrize(
    "source",
    [
        '"""A text."""',
        "x = 'text'",
        "x = a",
        "x = f(a)",
        "x = f(a, b)",
        "x = zip(a, b, strict=f())",
        "x = a / b",
        "x = f(*a, **b)",
        "x = f'{a + 1}'",
        "assert a < 3, f(a, 3)",
        "x: Literal[1] = a",
        "def f(a: Literal[1]) -> Literal[2]: ...",
        "@f(a=True)\nclass A: ...",
        "x = int | None",
    ],
)
def test_what_is_left_alone(source: str) -> None:
    assert mutants_of("a.py", source.encode()) == []


def test_bytes_before_and_behind_stay_as_they_are() -> None:
    source = 'def f(é):\n    # "é"\n    return (next(é,  é <\n        7)) # é\n'.encode()
    assert {
        one.applied(source).decode() for one in mutants_of("a.py", source) if one.kind != "statement"
    } == {
        'def f(é):\n    # "é"\n    return (next(é,  é <= 7)) # é\n',
        'def f(é):\n    # "é"\n    return (next(é,  é <\n        8)) # é\n',
        'def f(é):\n    # "é"\n    return (next(é,  é <\n        6)) # é\n',
        'def f(é):\n    # "é"\n    return (next(é)) # é\n',
    }


def test_the_diff_and_the_place_show_the_fault() -> None:
    source = b"def f(a):\n    return a + 1\n"
    mutant = next(one for one in mutants_of("a/b.py", source) if one.kind == "operator")
    assert mutant.place(source) == "a/b.py:2"
    assert mutant.diff(source) == (
        "--- a/a/b.py\n+++ b/a/b.py\n@@ -1,2 +1,2 @@\n def f(a):\n-    return a + 1\n+    return (a - 1)\n"
    )


def sources(room: str) -> dict[str, bytes]:
    return {f"{path.relative_to(ROOT)}": path.read_bytes() for path in (ROOT / room).rglob("*.py")}


@pytest.mark.parametrize("room", ["txn", "sharedlog"])
def test_the_same_seed_draws_the_same_faults_of_every_kind(room: str) -> None:
    own = sources(room)
    first = drawn(own, 40, "1")
    assert first == drawn(dict(reversed(own.items())), 40, "1")
    assert first[:20] == drawn(own, 20, "1")
    assert first != drawn(own, 40, "2")
    assert len({*first}) == 40
    assert {one.kind for one in first} == {*KINDS}
    assert all(is_fault(one, own[one.path]) for one in first)


def test_every_fault_of_a_source_can_be_drawn() -> None:
    source = b"def f(a):\n    g(a, a < 3)\n"
    many = {"a.py": source}
    assert {*drawn(many, 100, "1")} == {one for one in mutants_of("a.py", source) if is_fault(one, source)}


def test_what_is_no_python_or_the_same_program_is_no_fault() -> None:
    assert not is_fault(Mutant("a.py", 0, 1, "constant", "("), b"x = 1")
    assert not is_fault(Mutant("a.py", 4, 5, "constant", "(1)"), b"x = 1")
    assert is_fault(Mutant("a.py", 4, 5, "constant", "2"), b"x = 1")


COUNTING = '''
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def count(most: int) -> int:
    """Count up."""
    n = 0
    while n < most:
        n += 1
    return n


def unseen(a: int) -> int:
    """No test calls this."""
    return a * a
'''


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A tree with a room, `counting`: its own test sees `add`, the room's others and a simulation `count`."""
    files = {
        "counting/__init__.py": "",
        "counting/sums.py": COUNTING,
        "counting/generated/code.py": "x = 1",
        "tests/unit/counting/test_sums.py": (
            "from counting.sums import add\n\ndef test_add():\n    assert add(2, 2) == 4 != add(3, 3)\n"
        ),
        "tests/unit/counting/test_others.py": (
            "from counting.sums import count\n\ndef test_none():\n    assert count(0) == 0\n"
        ),
        "tests/simulation/conftest.py": (ROOT / "tests/simulation/conftest.py")
        .read_text()
        .split("@pytest.fixture")[0]
        .replace("from commitlog import", "# ")
        .replace("from services.", "# "),
        "tests/simulation/test_counts.py": (
            "from counting.sums import count\n\ndef test_seed(seed):\n    assert count(seed) == seed\n"
        ),
        ".gitignore": "__pycache__\n",
    }
    root = tmp_path / "project"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    return root


def content(root: Path) -> dict[str, bytes]:
    return {f"{path}": path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def asked(**others: object) -> Namespace:
    return Namespace(**{"seed": 1, "count": 50, "seeds": 3, "first_seed": 2, "only": "", **others})


def test_each_fault_is_killed_by_the_first_tests_that_see_it(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a time limit of seconds: one fault is a loop without an end."""
    monkeypatch.setattr(run, "LIMIT_SECONDS_MIN", 2)
    wanted = {
        "-    return a + b\n+    return (a - b)": "mirror",
        "-    while n < most:\n+    while n <= most:": "room",
        "-        n += 1\n+        n += 2": "simulation",
        "-        n += 1\n+        pass": run.TIME_LIMIT,
        "-    return a * a\n+    return (a // a)": run.SURVIVED,
    }
    source = {"counting/sums.py": (project / "counting/sums.py").read_bytes()}
    every = {one.diff(source[one.path]): one for one in drawn(source, 99, "1")}
    chosen = [next(every[diff] for diff in every if changed in diff) for changed in wanted]
    monkeypatch.setattr(run, "drawn", lambda *_: chosen)
    before = content(project)
    told = run.mutate(project, "counting", ("test_counts.py",), asked())
    assert content(project) == before
    assert (told["drawn"], told["killed"]) == (5, 4)
    assert told["killed_by"] == dict.fromkeys(["mirror", "room", "simulation", run.TIME_LIMIT], 1)
    assert told["kinds"] == {
        "comparison": "1 of 1",
        "constant": "1 of 1",
        "operator": "1 of 2",
        "statement": "1 of 1",
    }
    (survivor,) = told["survived"]
    assert (survivor["place"], survivor["kind"]) == ("counting/sums.py:17", "operator")
    assert "+    return (a // a)" in survivor["diff"]
    assert survivor["diff"] in capsys.readouterr().err
    json.dumps(told)


def test_a_suite_that_fails_by_itself_measures_nothing(project: Path) -> None:
    (project / "tests/unit/counting/test_more.py").write_text("def test_wrong():\n    assert 2 + 2 == 5\n")
    with pytest.raises(run.SuiteFails, match=r"(?s)room of counting fails without a fault.*2 \+ 2"):
        run.mutate(project, "counting", (), asked())


def test_the_tree_is_sound_when_it_is_killed_with_a_fault_in_place(project: Path, tmp_path: Path) -> None:
    """Also what is not committed, and a file that is deleted, which git still lists."""
    subprocess.run(["git", "add", "-A"], cwd=project, check=True)
    (project / "counting/generated/code.py").unlink()
    before = content(project)
    code = (
        "import sys; from pathlib import Path; from tests.mutants import run\n"
        "run.ROOMS = {'counting': ()}\n"
        "run.main(['counting', '--seed', '1'], Path(sys.argv[1]))"
    )
    command = [sys.executable, "-c", code, f"{project}"]
    with subprocess.Popen(
        command,
        env=os.environ | {"PYTHONPATH": f"{ROOT}", "TMPDIR": f"{tmp_path}"},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert any(line.startswith("counting: 1 of ") for line in process.stderr)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert content(project) == before


@pytest.mark.parametrize("room", run.ROOMS)
def test_every_room_has_unit_tests_and_its_simulations_are_there(room: str) -> None:
    made = run.stages(ROOT, room, run.ROOMS[room], 0, 3)
    assert made[0].name == "room"
    assert all((ROOT / name).exists() for stage in made for name in stage.tests)


def test_the_tests_of_a_module_are_those_of_its_name() -> None:
    folder = "tests/unit/consumequeue/indexes"
    assert run.mirrored(ROOT, "consumequeue/indexes/timerindex.py") == tuple(
        f"{folder}/test_timerindex{end}.py" for end in ("", "_recent", "_runs")
    )
    assert run.mirrored(ROOT, "consumequeue/indexes/timerindex_fact.py") == ()


def test_a_room_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run.main(["elsewhere"])
    assert "no room elsewhere; there are: timingwheel" in capsys.readouterr().err
