"""The file `evidence`: what a node has seen accepted, on its disk (`services.cluster.evidence`).

The file has three slots of 4,096 bytes, so that no two lie in one sector or page. A slot, big-endian:

    offset width  field
    0      8      "TWEVID01"
    8      8      number of the write; the sound slot with the largest counts
    16     16     cluster id                               as in `sharedlog.record`
    32     8      end: CommitLog offset that was accepted  `Fold.end`
    40     8      chain there                              `Fold.chain`
    48     8      epoch                                    `Fold.epoch`
    56     8      offset in the shared log of the newest   `Fold.last_led`
                  record of a leader
    64     4      CRC-32 of that record's bytes            likewise
    68     4      CRC-32 of the 68 bytes before

Rules
1. Leader and follower write after each flush and each BEAT that the shared log has accepted, unsynced, once
   the bytes up to `end` are in the log's files.
2. Once a second the log's files and then this file are synced. The slot that was written is on disk then.
3. A slot that is on disk stays as it is until another one is: writes between two syncs go to one slot, those
   during a sync to the third. So a power cut may tear two slots, and the third is sound.
4. An opening writes the file anew beside it, synced, and renames it: what a dead process wrote may be in
   memory only. A sync that failed ends the copy (`services.cluster.replica`), and so leads to an opening.

What a stop takes: of a killed process nothing, but of the flush under way. A power cut takes what was written
since the last sync, a second and the time of one sync: the evidence is older then, or, where the system wrote
its slot before the log, names an end beyond the last sound record. Both are told from a sound copy: bytes
below the end that are no record are written again from the shared log, and `cluster restore` says what is
missing of them. While the engine keeps its promise nothing of that is lost.

Cost: one write of 72 bytes a flush, two syncs a second. Weak spot: with all slots damaged a node does not
know what it had accepted, and halts (`EvidenceSpoiled`); a restore takes all sound records then.
"""

from __future__ import annotations

import struct
import zlib
from threading import Lock
from typing import Final

from commitlog import layout
from commitlog.disk import Disk
from services.cluster.evidence import Evidence
from sharedlog.errors import Halted

SLOT_BYTES: Final = 4096
SLOT_COUNT: Final = 3
_MAGIC: Final = b"TWEVID01"
_SLOT: Final = struct.Struct(">8sQ16sQQQQI")
_CRC: Final = struct.Struct(">I")
_FRESH: Final = f"{layout.EVIDENCE}.new"


class EvidenceSpoiled(Halted):
    """The file that says what a node has seen accepted is damaged."""


class EvidenceFile:
    """The file on `disk`, made anew with what it held; `write` and `sync` may be called by two threads."""

    def __init__(self, disk: Disk, evidence: Evidence | None, number: int = 0) -> None:
        self._disk, self._lock = disk, Lock()
        self._number = number
        self._slot = 0
        """Where writes go. The one before it is on disk, or the sync that takes it there is under way."""
        self._is_unsynced = False
        """Whether the slot was written since it became that; a sync of nothing must not go on to the next."""
        self.written = evidence
        """What was written last."""
        if evidence is not None:
            self._begin(evidence)

    @classmethod
    def open(cls, disk: Disk) -> EvidenceFile:
        """Return the file of a store, which may have none yet; raise `Halted`, or OSError."""
        number, evidence = _newest(disk)
        return cls(disk, evidence, number)

    def write(self, evidence: Evidence) -> None:
        """Keep new evidence, unsynced; raise OSError."""
        with self._lock:
            if self.written is None:
                self._begin(evidence)
            else:
                self._number += 1
                self._is_unsynced = True
                self._disk.write(layout.EVIDENCE, self._slot * SLOT_BYTES, encode(self._number, evidence))
            self.written = evidence

    def sync(self) -> None:
        """Take what was written to disk; raise `SyncFailed`, after which the file is to be opened anew."""
        with self._lock:
            if not self._is_unsynced:
                return
            self._slot, self._is_unsynced = (self._slot + 1) % SLOT_COUNT, False
        self._disk.sync(layout.EVIDENCE)

    def _begin(self, evidence: Evidence) -> None:
        """Make the file, durably; the process may end anywhere in this."""
        self._disk.delete(_FRESH)
        self._number, self._slot = self._number + 1, 0
        slot = encode(self._number, evidence).ljust(SLOT_BYTES, b"\0")
        self._disk.write(_FRESH, 0, SLOT_COUNT * slot)
        self._disk.sync(_FRESH)
        self._disk.rename(_FRESH, layout.EVIDENCE)


def read(disk: Disk) -> Evidence | None:
    """Return what the file of a store says; None if there is no file. Raise `Halted`, or OSError."""
    return _newest(disk)[1]


def _newest(disk: Disk) -> tuple[int, Evidence | None]:
    size = disk.size(layout.EVIDENCE)
    if size < 0:
        return 0, None
    stored = disk.read(layout.EVIDENCE, 0, size)
    slots = (decode(stored[at : at + SLOT_BYTES]) for at in range(0, SLOT_COUNT * SLOT_BYTES, SLOT_BYTES))
    sound = [one for one in slots if one is not None]
    if not sound:
        raise EvidenceSpoiled(
            f"No slot of the file {layout.EVIDENCE} is what was written ({size} bytes), so how far the log "
            "was accepted is not known here. To go on with another node's copy: tidewheel cluster refetch "
            "--store STORE --accept-loss-of 0. If no node has one, with all that this log shows: tidewheel "
            "cluster restore NEW-URL --from STORE."
        )
    return max(sound)


def encode(number: int, evidence: Evidence) -> bytes:
    """Return the bytes of a slot."""
    head = _SLOT.pack(_MAGIC, number, *evidence)
    return head + _CRC.pack(zlib.crc32(head))


def decode(slot: bytes) -> tuple[int, Evidence] | None:
    """Return the number and the content of a slot; None if it is not what was written."""
    head, crc = slot[: _SLOT.size], slot[_SLOT.size : _SLOT.size + _CRC.size]
    if len(crc) < _CRC.size or _CRC.unpack(crc)[0] != zlib.crc32(head) or not head.startswith(_MAGIC):
        return None
    _, number, *fields = _SLOT.unpack(head)
    return number, Evidence(*fields)
