"""The result of one step of an examination."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """Result of a step: no problem, a problem for some clients, or a problem for all clients."""

    FINE = "ok"
    WARNING = "look"
    WRONG = "WRONG"


@dataclass(frozen=True, slots=True)
class Finding:
    """The name of a step, its verdict, the observation, and the advice (which may be empty)."""

    step: str
    verdict: Verdict
    seen: str
    advice: str = ""


def fine(step: str, seen: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(step, Verdict.FINE, seen)


def warning(step: str, seen: str, advice: str) -> Finding:
    """Return a finding about a problem for some clients."""
    return Finding(step, Verdict.WARNING, seen, advice)


def wrong(step: str, seen: str, advice: str) -> Finding:
    """Return a finding about a problem for all clients."""
    return Finding(step, Verdict.WRONG, seen, advice)
