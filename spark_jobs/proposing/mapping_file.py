"""A proposal as the TOML file of `--mapping`: one name per line, its meaning and reason in a comment."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from spark_jobs.inputs.mapping_docs import MEANINGS
from spark_jobs.proposing.proposal import Choice, Proposal
from tidewheel.errors import ConfigurationError


def refuse_existing(path: Path, is_overwriting: bool) -> None:
    """Raise `ConfigurationError` if the path exists, except for a file that is to be overwritten."""
    if path.exists() and not (is_overwriting and path.is_file()):
        what = "a folder" if path.is_dir() else "there already, and you may have changed it"
        replacing = "" if path.is_dir() else ", or --overwrite to replace it"
        raise ConfigurationError(f"{path} is {what}. Give another name by --mapping{replacing}.")


def write(path: Path, proposal: Proposal, sources: str) -> None:
    """Write the file. `sources` names its inputs. Raise `ConfigurationError` if it cannot be written."""
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
    """Return a text or a list of texts in TOML, which is JSON except that TOML requires U+007F escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _said(choice: Choice) -> str:
    """Return the meaning of a name, and the reason for its value if there is one."""
    meant = MEANINGS[choice.section][choice.name]
    return f"{meant} -- {choice.why}" if choice.why else meant


def _one_line(words: str) -> str:
    """Return text with unprintable characters, which a comment cannot contain, replaced by blanks."""
    return "".join(letter if letter.isprintable() else " " for letter in words)
