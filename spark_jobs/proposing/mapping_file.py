"""A proposal as the file that `--mapping` takes: each name on a line of its own, its reason beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from spark_jobs.inputs.mapping_docs import MEANINGS
from spark_jobs.proposing.proposal import Choice, Proposal
from tidewheel.errors import ConfigurationError


def refuse_existing(path: Path, is_overwriting: bool) -> None:
    """Raise `ConfigurationError` if a file is there and nobody said that it may go."""
    if path.exists() and not (is_overwriting and path.is_file()):
        what = "a folder" if path.is_dir() else "there already, and you may have changed it"
        replacing = "" if path.is_dir() else ", or --overwrite to replace it"
        raise ConfigurationError(f"{path} is {what}. Give another name by --mapping{replacing}.")


def write(path: Path, proposal: Proposal, sources: str) -> None:
    """Write the file; `sources` says of what it was made. Raise `ConfigurationError`."""
    try:
        path.write_text(text(proposal, sources), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be written ({error.strerror}). Correct --mapping."
        ) from error


def text(proposal: Proposal, sources: str) -> str:
    """Return the text of the file."""
    return "\n".join(_lines(proposal, sources)) + "\n"


def _lines(proposal: Proposal, sources: str) -> Iterator[str]:
    yield f"# Proposed by tidewheel audit init from {_one_line(sources)}"
    yield "# Correct what is wrong; what a name means: tidewheel audit mapping"
    for doubt in proposal.doubts:
        yield f"# ! {_one_line(doubt.said)}"
    section = ""
    for choice in proposal.choices:
        if choice.section != section:
            section = choice.section
            yield ""
            yield f"[{section}]"
        yield f"{choice.name} = {_as_toml(choice.value)}  # {_one_line(_said(choice))}"


def _as_toml(value: str | list[str]) -> str:
    """Return a text, or several, as TOML has them: as JSON, but for one letter that it wants escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _said(choice: Choice) -> str:
    """Return what a name means, and why it is thought to be that."""
    meant = MEANINGS[choice.section][choice.name]
    return f"{meant} -- {choice.why}" if choice.why else meant


def _one_line(words: str) -> str:
    """Return words without what ends a comment or is not allowed in one."""
    return "".join(letter if letter.isprintable() else " " for letter in words)
