"""Describes the cluster epochs of a log in a sentence. A store that was never in a cluster has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_BEFORE = {None: ", and the end of an earlier one", 0: ", and what a broker alone stored before"}


def epochs_in_words(epochs: list[dict[str, Any]], when: Callable[[int], str]) -> str:
    """Return a sentence with the first and last known epoch, or "" if no epoch is known.

    `epochs` has the fields of `commitlog.epochs.EpochRange`, as in a summary. `when` formats a time (ms since
    1970).
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
    """Return the phrase that names the leader of an epoch, or "" if it is unknown."""
    return f", led by {one['node']}" if one["node"] else ""
