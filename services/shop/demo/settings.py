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


@dataclass(slots=True, frozen=True)
class Layout:
    """The files of a run under its out folder."""

    root: Path

    @property
    def store(self) -> Path:
        """The broker's store."""
        return self.root / "store"

    @property
    def orders_database(self) -> Path:
        """The order service's SQLite file."""
        return self.root / "orders.db"

    @property
    def pushes_database(self) -> Path:
        """The push service's SQLite file."""
        return self.root / "pushes.db"

    @property
    def redis(self) -> Path:
        """The bundled Redis's data."""
        return self.root / "redis"

    @property
    def logs(self) -> Path:
        """One log per process."""
        return self.root / "logs"

    @property
    def home(self) -> Path:
        """The children's HOME: the official client writes its own log under `~/logs`."""
        return self.root / "home"

    @property
    def audit(self) -> Path:
        """What the audit writes."""
        return self.root / "audit"

    @property
    def refused_rows(self) -> Path:
        """The refused rows of the input, one by one."""
        return self.root / "refused-rows.csv"

    @property
    def faults(self) -> Path:
        """One line of JSON for each injected fault."""
        return self.root / "faults.jsonl"

    @property
    def summary(self) -> Path:
        """The summary as JSON."""
        return self.root / "summary.json"

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
        """A new phase begins; `steps` is how far it has to go, where that is known."""

    def advance(self) -> None:
        """One more step of the phase is done."""

    def say(self, sentence: str) -> None:
        """Something worth a line."""
