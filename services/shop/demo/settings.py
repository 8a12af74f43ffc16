"""The settings of a demo run and the paths of its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tidewheel.errors import ConfigurationError

MADE_UP_INVOICES = 400


@dataclass(slots=True, frozen=True)
class DemoSettings:
    """The options of `tidewheel demo`. None means that an option was not given."""

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
    """The paths of a run in its output directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = root / "store"
        """The broker's store."""
        self.orders_database = root / "orders.db"
        """The order service's SQLite file."""
        self.pushes_database = root / "pushes.db"
        """The push service's SQLite file."""
        self.redis = root / "redis"
        """The data of the bundled Redis server."""
        self.logs = root / "logs"
        """One log file per process."""
        self.home = root / "home"
        """HOME of the child processes. The official client writes its log to `~/logs`."""
        self.audit = root / "audit"
        """The output of the audit."""
        self.refused_rows = root / "refused-rows.csv"
        """The refused rows of the input."""
        self.faults = root / "faults.jsonl"
        """One JSON line per injected fault."""
        self.summary = root / "summary.json"
        """The summary as JSON."""

    def prepare(self) -> None:
        """Create the directories of a new run.

        Raises:
            ConfigurationError: If the output directory is not empty or cannot be created.
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
    """The progress display of a run."""

    def begin(self, phase: str, steps: int | None = None) -> None:
        """Begin a phase of `steps` steps. None means that the number is unknown."""

    def advance(self) -> None:
        """Advance the phase by one step."""

    def say(self, sentence: str) -> None:
        """Print a sentence on a separate line."""
