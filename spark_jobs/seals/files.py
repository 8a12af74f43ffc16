"""Files of seals: the contents of closed windows, chained so that changes and gaps are detected.

    <out>/seals/00000003/seal.json            counts and digests of each stage of each window
    <out>/seals/00000003/identities.parquet   the identities: `identities.IDENTITIES`
    <out>/seals/00000003/open.parquet         the orders that were open at its end: `OPEN`
    <out>/seals/00000003/corrections.parquet  if earlier windows were corrected: `CORRECTIONS`

Rules:
- A seal begins at the end of the previous one, and contains its digest. A digest is the SHA-256 of the seal's
  JSON without the digest, with sorted keys and no blanks. A change of one seal therefore requires a change of
  all later ones.
- A seal is written into a temporary folder, which is renamed when complete.
- Windows without events are not listed. The first seal covers everything before its end.

Limitation: the chain does not show that the newest seals were deleted, or that a seal and all later ones were
rewritten.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from commitlog.errors import StoreDamaged
from spark_jobs.seals.identities import Contents
from tidewheel.errors import RefusedByState

SEALS: Final = "seals"
_DIGITS: Final = 8
_NEW: Final = ".new"

OPEN: Final = pa.schema(
    [("order_id", pa.string()), ("first_ms", pa.int64()), ("waits_for", pa.list_(pa.string()))]
)
"""first_ms: the time of the order's first event."""

CORRECTIONS: Final = pa.schema(
    [
        ("window_ms", pa.int64()),
        ("stage", pa.string()),
        ("was", pa.large_string()),
        ("is", pa.large_string()),
    ]
)
"""An identity that differs from the sealed one. `was` is null if it is new, `is` if it is gone."""

Windows = dict[int, dict[str, Contents]]
"""Contents by start of window and stage."""


@dataclass(frozen=True, slots=True)
class Account:
    """Orders from seal to seal: carried + entered = closed + vanished + open."""

    carried: int = 0
    entered: int = 0
    closed: int = 0
    vanished: int = 0
    open: int = 0
    digest: str = ""
    """SHA-256 of the sorted IDs of the open orders, each followed by a newline."""


@dataclass(frozen=True, slots=True)
class Seal:
    """Closed windows, [from_ms, to_ms). `corrected` replaces contents of the windows of earlier seals.

    covered_from_ms: the log was complete from this time, 0 if nothing was deleted. has_currency: whether the
    identities of its windows contain the currency of totals. before: the digest of the previous seal.
    """

    number: int
    run_id: str
    written_ms: int
    window_ms: int
    watermark_ms: int
    covered_from_ms: int
    from_ms: int
    to_ms: int
    before: str | None
    account: Account
    windows: Windows = field(default_factory=dict)
    corrected: Windows = field(default_factory=dict)
    has_currency: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the seal as JSON values, with its digest."""
        plain = {name: getattr(self, name) for name in _PLAIN}
        plain |= {"account": asdict(self.account)}
        plain |= {name: _listed(getattr(self, name)) for name in ("windows", "corrected")}
        return plain | {"digest": _digest(plain)}

    @property
    def digest(self) -> str:
        """Return the seal's digest (64 hexadecimal digits), which the next seal contains."""
        return str(self.as_json()["digest"])

    @property
    def identities_count(self) -> int:
        """Return the number of identities in its windows."""
        return sum(stage.count for stages in self.windows.values() for stage in stages.values())


_PLAIN: Final = (
    "number", "run_id", "written_ms", "window_ms", "watermark_ms", "covered_from_ms", "from_ms", "to_ms",
    "before", "has_currency",
)  # fmt: skip


class SealFolder:
    """The seals in an output folder (`--out`)."""

    def __init__(self, out: Path) -> None:
        self.folder = out / SEALS

    def path(self, number: int, name: str) -> Path:
        """Return the path of a file of a seal."""
        return self.folder / f"{number:0{_DIGITS}d}" / name

    def read(self) -> list[Seal]:
        """Return all seals, oldest first.

        Raise `StoreDamaged` if one is unreadable, changed, or missing before another one.
        """
        found = sorted(path for path in self.folder.glob("[0-9]" * _DIGITS) if path.is_dir())
        seals: list[Seal] = []
        for number, path in enumerate(found, 1):
            seals.append(_read(path, number, seals[-1] if seals else None))
        return seals

    def newest_end_ms(self) -> int | None:
        """Return the end of the newest seal, without a check of the chain.

        Return None without a seal, or if it cannot be read.
        """
        found = sorted(self.folder.glob("[0-9]" * _DIGITS + "/seal.json"))
        try:
            return int(json.loads(found[-1].read_text())["to_ms"]) if found else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def begin(self, number: int) -> Path:
        """Create and return an empty folder for the files of a seal.

        Its name contains the process ID, because another process may write the same seal.
        """
        fresh = self.folder / f"{number:0{_DIGITS}d}.{os.getpid()}{_NEW}"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        return fresh

    def finish(self, fresh: Path, seal: Seal) -> None:
        """Write seal.json into a folder of `begin`, and rename the folder to that of the seal.

        Raise `RefusedByState` if another process has written this seal. Other temporary folders of the same
        seal, whether abandoned or in use, are deleted.
        """
        whole = self.path(seal.number, "seal.json").parent
        try:
            (fresh / "seal.json").write_text(json.dumps(seal.as_json(), indent=1) + "\n")
            fresh.rename(whole)
        except OSError as error:
            if not whole.exists():
                raise
            raise RefusedByState(f"{whole} has been sealed by another process. Seal again.") from error
        for other in self.folder.glob(f"{whole.name}*{_NEW}"):
            shutil.rmtree(other, ignore_errors=True)


def _read(folder: Path, number: int, before: Seal | None) -> Seal:
    try:
        plain = json.loads((folder / "seal.json").read_text())
        seal = _as_seal(plain)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _broken(folder, f"it cannot be read ({error})") from error
    if plain.get("digest") != seal.digest:
        raise _broken(folder, "its contents do not have the digest that it names")
    if (seal.number, folder.name) != (number, f"{number:0{_DIGITS}d}"):
        raise _broken(folder, f"seal {number} is missing before it")
    if seal.before != (before.digest if before else None):
        raise _broken(folder, "it does not name the digest of the seal before it")
    return seal


def _broken(folder: Path, why: str) -> StoreDamaged:
    return StoreDamaged(
        f"The seal {folder}: {why}. Restore the seals from a backup; "
        f"to begin anew, move {folder.parent} away and seal again."
    )


def not_as_sealed(file: Path, seal: Seal) -> StoreDamaged:
    """Return the error for a file of a seal whose contents do not match the seal."""
    return StoreDamaged(f"{file} does not hold what seal {seal.number} says. Restore it from a backup.")


def unreadable(file: Path, error: Exception) -> StoreDamaged:
    """Return the error for a file of a seal that cannot be read."""
    return StoreDamaged(f"{file} cannot be read ({error}). Restore it from a backup.")


def _as_seal(plain: dict[str, Any]) -> Seal:
    return Seal(
        **{name: plain[name] for name in _PLAIN},
        account=Account(**plain["account"]),
        windows=_by_start(plain["windows"]),
        corrected=_by_start(plain["corrected"]),
    )


def _listed(windows: Windows) -> list[dict[str, Any]]:
    return [
        {"start_ms": start_ms, "stages": {name: asdict(stages[name]) for name in sorted(stages)}}
        for start_ms, stages in sorted(windows.items())
    ]


def _by_start(listed: list[dict[str, Any]]) -> Windows:
    return {
        one["start_ms"]: {name: Contents(**stage) for name, stage in one["stages"].items()} for one in listed
    }


def _digest(plain: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def expected(seals: list[Seal]) -> Windows:
    """Return the contents of each sealed window, with all corrections."""
    windows: Windows = {}
    for seal in seals:
        windows |= seal.windows
        for start_ms, stages in seal.corrected.items():
            windows[start_ms] = windows.get(start_ms, {}) | stages
    return windows
