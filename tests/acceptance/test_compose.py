"""The compose files of docs/compose: without Docker, what they tell Tidewheel and sh to do is read."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from services.cli.root import root
from services.cli.settings.setting_options import given
from services.server.authentication import check_exposure
from services.settings.config import ServeSettings, load

FOLDER = Path(__file__).parents[2] / "docs" / "compose"
FILES = sorted(FOLDER.glob("*.yaml"))
COMMANDS = {
    f"{path.stem}, {words[1]} {number}": words
    for path in FILES
    for number, line in enumerate(re.findall(r"^ +command: (.+)$", path.read_text(), re.MULTILINE))
    if (words := shlex.split(line))
}
IMAGES = {"postgres:17", "apache/kafka:4.1.1", "tidewheel-postgres", "tidewheel-kafka"}


def parsed(words: list[str]) -> Any:
    """The context in which a command would run, its options read."""
    name, command, rest, context = words[0], root(), words[1:], None
    while True:
        context = command.make_context(name, list(rest), parent=context)
        if not hasattr(command, "resolve_command"):
            return context
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])


@pytest.mark.parametrize("name", COMMANDS)
def test_tidewheel_takes_each_command_as_it_stands(name: str) -> None:
    words = COMMANDS[name]
    context = parsed(words)
    if words[1] == "serve":
        check_exposure(load(ServeSettings, None, **given(context, context.params)))
    with pytest.raises(Exception, match="No such option"):
        parsed([*words, "--no-such-option"])


@pytest.mark.parametrize("path", FILES, ids=str)
def test_the_nodes_of_a_file_are_of_the_cluster_that_it_makes(path: Path) -> None:
    mine = [words for name, words in COMMANDS.items() if name.startswith(f"{path.stem},")]
    (made,) = (words[3] for words in mine if words[1:3] == ["cluster", "create"])
    nodes = [parsed(words).params for words in mine if words[1] == "serve"]
    assert [one["node"] for one in nodes] == ["a", "b"]
    assert {one["cluster"] for one in nodes} == {made}
    assert {str(one["listen"]) for one in nodes} == {"a:8081", "b:8081"}
    assert set(re.findall(r"^ +image: (\S+)$", path.read_text(), re.MULTILINE)) <= IMAGES


def test_there_is_a_file_for_each_engine_and_the_page_names_them() -> None:
    page = (FOLDER.parent / "cluster.md").read_text()
    assert [path.stem for path in FILES] == ["kafka", "postgresql"]
    for path in FILES:
        assert f"docs/compose/{path.name}" in page


def test_what_sh_is_to_run_is_no_nonsense() -> None:
    text = (FOLDER / "postgresql.yaml").read_text()
    scripts = re.findall(r"^( *)(?:- \||content: \|)\n((?:\1 +.*\n)+)", text, re.MULTILINE)
    assert len(scripts) == 2
    for _, script in scripts:
        ran = subprocess.run(("sh", "-n"), input=dedent(script).replace("$$", "$"), text=True, check=False)
        assert ran.returncode == 0
