"""Which epochs of a cluster a log covers, in words; nothing is said of a store that was always alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_BEFORE = {None: ", and the end of an earlier one", 0: ", and what a broker alone stored before"}


def epochs_in_words(epochs: list[dict[str, Any]], when: Callable[[int], str]) -> str:
    """Return a sentence for epochs (`commitlog.epochs`) as a summary has them; empty if there are none.

    `when` shows a time.
    """
    known = [one for one in epochs if one["number"]]
    if not known:
        return ""
    ends = [known[0], known[-1]][: len(known)]
    numbers = " to ".join(str(one["number"]) for one in ends)
    began = "".join(
        f"; epoch {one['number']} began {when(one['began_ms'])}{_led(one)}"
        for one in ends
        if one["began_ms"] is not None
    )
    before = _BEFORE.get(epochs[0]["number"], "")
    return f"The log covers epoch{'s' * (len(ends) - 1)} {numbers}{before}{began}."


def _led(one: dict[str, Any]) -> str:
    """Say who led an epoch, where that is known."""
    return f", led by {one['node']}" if one["node"] else ""
