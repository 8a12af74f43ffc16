"""What a stranger wrote into messages, on the terminal of an operator and in the log of the broker."""

from __future__ import annotations

import io
import json
import re
import unicodedata
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, Final

import pytest

from services.cli.main import main
from tidewheel import Client
from tidewheel.testing.process import BrokerProcess

HOSTILE: Final = (
    "\x1b]0;owned\x07\x1b[2J\rTW-000 all is well\n12:00:00.000      0@0  forged\x9b31m\u202egnp.exe"
)
FORGED: Final = re.compile(r"^(12:00:00|TW-000)", re.MULTILINE)


class Terminal(io.StringIO):
    """What is shown to a person."""

    def isatty(self) -> bool:
        return True


def typed(*words: str, stream: io.StringIO) -> str:
    """What a command prints to a stream, as it ends."""
    with redirect_stdout(stream), redirect_stderr(stream), pytest.raises(SystemExit):
        main(words)
    return stream.getvalue()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with a message, a timer and a dead letter of a stranger's."""
    process = BrokerProcess(tmp_path_factory.mktemp("hostile"), ("--invisible-ms-min", "0"))
    process.start()
    fields: dict[str, Any] = {"keys": ["order:7"], "properties": {"note": "\u202egnp.exe"}}
    with Client(process.http, token="") as client:
        client.send("orders", HOSTILE, **fields)
        client.send("deadlines", HOSTILE, delay="30m", key="pay", **fields)
        [message] = client.receive("orders", "shop")
        message.reject("poison")
    yield process
    process.stop()


COMMANDS: Final = (
    ("dlq", "ls", "shop"),
    ("dlq", "show", "shop", "0"),
    ("tail", "orders", "--from-start", "--limit", "1"),
    ("msg", "show", "order:7", "--topic", "orders"),
    ("timer", "show", "--topic", "deadlines", "--timer-key", "pay"),
    ("timer", "ls"),
    ("explain", "order:7"),
    ("msg", "show", HOSTILE, "--topic", "orders"),
    ("group", "show", HOSTILE),
)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: " ".join(words[:2]))
def test_no_command_moves_the_cursor_or_forges_a_line(
    broker: BrokerProcess, command: tuple[str, ...]
) -> None:
    shown = typed(*command, "--http", broker.http, stream=Terminal())
    plain = re.sub("\x1b\\[[01]m", "", shown)  # a heading is bold
    assert plain.strip()
    assert not FORGED.search(plain), plain
    odd = {one for one in plain if not one.isprintable() and unicodedata.category(one) != "Zs"}
    assert odd <= {"\n"}, plain


def test_json_is_as_it_is(broker: BrokerProcess) -> None:
    shown = typed(
        "msg", "show", "order:7", "--topic", "orders", "--json", "--http", broker.http, stream=Terminal()
    )
    assert json.loads(shown)[0]["body"] == HOSTILE
