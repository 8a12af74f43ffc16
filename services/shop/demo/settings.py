"""What a run of the demo is asked to do, and where it keeps things."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tidewheel.errors import ConfigurationError

MADE_UP_INVOICES = 400


@dataclass(slots=True, frozen=True)
class DemoSettings:
    """The options of `tidewheel demo`; None means that the option was not given."""

    out: Path
    orders: Path | None = None
    count: int | None = None
    pay_ratio: float = 0.7
    timeout_s: float = 8
    seed: int = 1
    faults: bool = False
    sabotage: tuple[str, ...] = ()
    bugs: tuple[str, ...] = ()
    redis_url: str | None = None


class Layout:
    """The files of a run under its out folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = root / "store"
        """The broker's store."""
        self.orders_database = root / "orders.db"
        """The order service's SQLite file."""
        self.pushes_database = root / "pushes.db"
        """The push service's SQLite file."""
        self.redis = root / "redis"
        """The bundled Redis's data."""
        self.logs = root / "logs"
        """One log per process."""
        self.home = root / "home"
        """The children's HOME: the official client writes its own log under `~/logs`."""
        self.audit = root / "audit"
        """What the audit writes."""
        self.refused_rows = root / "refused-rows.csv"
        """The refused rows of the input, one by one."""
        self.faults = root / "faults.jsonl"
        """One line of JSON for each injected fault."""
        self.summary = root / "summary.json"
        """The summary as JSON."""

    def prepare(self) -> None:
        """Make the folders of a new run.

        Raises:
            ConfigurationError: when the out folder holds anything, or cannot be made.
        """
        try:
            if self.root.exists() and any(self.root.iterdir()):
                raise ConfigurationError(
                    f"--out {self.root} is not empty. Name a folder that is new or empty."
                )
            for folder in (self.root, self.logs, self.home):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"--out {self.root} cannot be used: {error.strerror}.") from error


class Reporter(Protocol):
    """How a run shows its progress."""

    def begin(self, phase: str, steps: int | None = None) -> None:
        """Begin a phase of `steps` steps, None where the count is not known."""

    def advance(self) -> None:
        """Count one more step of the phase as done."""

    def say(self, sentence: str) -> None:
        """Show a sentence on a line of its own."""
