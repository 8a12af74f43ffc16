"""What one step of an examination has found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """How a step ended: fine; fine for some clients; wrong."""

    FINE = "ok"
    WARNING = "look"
    WRONG = "WRONG"


@dataclass(frozen=True, slots=True)
class Finding:
    """One step: its name, how it ended, what was seen, and what to do about it (empty if nothing)."""

    step: str
    verdict: Verdict
    seen: str
    advice: str = ""


def fine(step: str, seen: str) -> Finding:
    """Make a finding that all is as it should be."""
    return Finding(step, Verdict.FINE, seen)


def warning(step: str, seen: str, advice: str) -> Finding:
    """Make a finding that some clients cannot work with."""
    return Finding(step, Verdict.WARNING, seen, advice)


def wrong(step: str, seen: str, advice: str) -> Finding:
    """Make a finding that no client can work with."""
    return Finding(step, Verdict.WRONG, seen, advice)
