"""The page that shows what a command of a row of `tidewheel status` prints.

The rows of the overview name commands (`services.status.judgement`). A link leads to the page with the same
content, or, where the row calls for an action, to the page with its form.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

PAGES: Final = (
    (r"group (?:lag|show) (?P<name>\S.*)", "/groups/one?name={name}"),
    (r"group ls", "/groups"),
    (r"timer summary", "/timers"),
    (r"txn ls --state expired", "/transactions?state=EXPIRED"),
    (r"txn (?:ls|producers)", "/transactions"),
    (r"dlq ls (?P<name>\S.*)", "/dead-letters/group?group={name}"),
    (r"dlq ls", "/dead-letters"),
    (r"topic show (?P<name>\S.*)", "/topics/change?name={name}#release"),
    (r"audit (?:ls|show) --out .*", "/audits/run"),
    (r"audit ls", "/audits"),
    (r"refused", "/refused"),
    (r"cluster .*", "/cluster"),
)
"""Patterns of commands, without `tidewheel`, and paths; the first that matches counts."""


def page_of(command: str) -> str:
    """Return the path of the page for a command; empty if no page shows it."""
    said = command.removeprefix("tidewheel ")
    for pattern, path in PAGES:
        if found := re.fullmatch(pattern, said):
            return path.format(**{name: quote(text, safe="") for name, text in found.groupdict().items()})
    return ""
