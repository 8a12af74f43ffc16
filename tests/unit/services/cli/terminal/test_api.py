"""What a broker refuses keeps its code and exit code on its way to a command."""

from __future__ import annotations

import ast
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from services.cli.terminal.api import broker_at, refused_with
from tidewheel.errors import AnswerLate, BrokerUnreachable

ROOT = Path(__file__).parents[5]
ROOMS = ("tidewheel", "commitlog", "consumequeue", "txn", "services")
NOT_OF_A_BROKER = ("services/http/", "services/process/", "services/server/", "services/settings/")


def codes_of(path: Path) -> list[str]:
    """Return the codes of the error classes in a file."""
    classes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
    return [
        node.value.value if isinstance(node.value, ast.Constant) else node.value.elts[0].value  # type: ignore[attr-defined]
        for one in classes
        for node in one.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).strip("()").startswith("code")
    ]


def files() -> list[str]:
    found = [path for room in ROOMS for path in (ROOT / room).rglob("errors.py")]
    names = sorted(path.relative_to(ROOT).as_posix() for path in found)
    return [name for name in names if not name.startswith(NOT_OF_A_BROKER)]


@pytest.fixture(scope="module")
def known() -> dict[str, str]:
    """The class that a process which has imported nothing else finds for each code."""
    asked = [code for name in files() for code in codes_of(ROOT / name)]
    look = (
        "import json, sys; from services.cli.terminal.api import error_class; "
        "print(json.dumps({code: error_class(code).code for code in sys.argv[1:]}))"
    )
    said = subprocess.run(
        [sys.executable, "-c", look, *asked], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found: dict[str, str] = json.loads(said.stdout)
    return found


def test_a_code_of_a_newer_broker_keeps_its_words() -> None:
    error = refused_with(
        {"code": "TW-999", "detail": "It is full.", "message": "The moon cannot be sent. It is full."}
    )
    assert (error.code, str(error), error.exit_code) == ("TW-999", "The moon cannot be sent. It is full.", 1)


@pytest.mark.parametrize("name", files())
def test_every_error_of_a_broker_is_known_to_commands(name: str, known: dict[str, str]) -> None:
    codes = codes_of(ROOT / name)
    assert codes
    assert [known[code] for code in codes] == codes


def test_a_broker_that_has_the_request_and_says_nothing_is_told_from_one_that_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        api = broker_at(f"127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(AnswerLate, match="See whether it was done before you ask again") as raised:
            api.post("messages", body={}, wait_seconds=0.05)
    assert raised.value.exit_code == 3
    with pytest.raises(BrokerUnreachable, match="There is no Tidewheel HTTP interface"):
        api.post("messages", body={}, wait_seconds=5)
