"""To read a shared log: its records in order, each as the fold says what came of it.

A record that does not match its CRC is read again, up to `fold.READS_MAX` times; below the log's first record
nothing can be read any more, and only a checkpoint helps (`Trimmed`). Who has no fold yet takes the records
as they are (`records`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from sharedlog.engine import Engine, Stored
from sharedlog.errors import Halted, Trimmed
from sharedlog.fold import Fold, Outcome, Step
from sharedlog.record import Foreign, Garbled, SharedRecord, decode

READ_BYTES: Final = 4 * 1024 * 1024


def steps(engine: Engine, fold: Fold) -> Iterator[tuple[Stored, Step]]:
    """Yield the records that are there now, from the fold's next one on, with what became of them.

    Raise `Unknown`, `Halted`, or `Trimmed` if the next one was trimmed.
    """
    while found := engine.read(fold.next_offset, READ_BYTES):
        if found[0].offset > fold.next_offset:
            _require_not_trimmed(engine, fold)
        for one in found:
            step = fold.take(one.offset, one.stored)
            if step.outcome is Outcome.READ_AGAIN:
                break
            yield one, step


def read_to(engine: Engine, fold: Fold, until: int) -> None:
    """Let the fold take all records before an offset; raise `Unknown`, `Halted` or `Trimmed`."""
    if fold.next_offset >= until:
        return
    for _ in steps(engine, fold):
        if fold.next_offset >= until:
            return
    raise Halted(
        f"Record {until - 1} of the shared log was accepted and is gone: the engine has lost its end."
    )


def records(engine: Engine, cluster: bytes | None = None) -> Iterator[SharedRecord]:
    """Yield the records that are there now, from the first that is left, whatever came of them.

    Records of other clusters than `cluster` (None: of no cluster) are left out, and what does not match its
    CRC. Raise `Unknown`.
    """
    next_offset, _ = engine.bounds()
    while found := engine.read(next_offset, READ_BYTES):
        for one in found:
            with suppress(Foreign, Garbled):
                yield decode(one.stored, cluster)
        next_offset = found[-1].offset + 1


def _require_not_trimmed(engine: Engine, fold: Fold) -> None:
    """Raise `Trimmed` if the log begins behind the fold's next record; else its offsets have a gap."""
    first, _ = engine.bounds()
    if first > fold.next_offset:
        raise Trimmed(
            f"The shared log begins at record {first}, and this node has read up to {fold.next_offset}: it "
            "needs the checkpoint of another node."
        )
