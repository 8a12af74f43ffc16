"""The `evidence` file, which records the accepted end of a node's log (`services.cluster.evidence`).

The file consists of three slots of 4,096 bytes each, so that no two slots share a disk sector or a memory
page. All fields are big-endian:

    offset width  field
    0      8      "TWEVID01"
    8      8      write number; the valid slot with the highest number is used
    16     16     cluster id                               as in `sharedlog.record`
    32     8      end: accepted CommitLog offset           `Fold.end`
    40     8      chain at that offset                     `Fold.chain`
    48     8      epoch                                    `Fold.epoch`
    56     8      shared log offset of the newest leader   `Fold.last_led`
                  record
    64     4      CRC-32 of that record                    `Fold.last_led`
    68     4      CRC-32 of the preceding 68 bytes

Rules
1. A node writes a slot after each accepted flush, BEAT or EPOCH record. The log bytes up to `end` are written
   before the slot. A slot write is not synced immediately.
2. Once per second, the node syncs the log files and then the `evidence` file. The most recently written slot
   is then durable.
3. A durable slot is not overwritten until another slot has become durable. All writes between two syncs go to
   the same slot. Writes during a sync go to the third slot. A power failure can therefore damage at most two
   slots.
4. When a node opens its store, it atomically replaces the `evidence` file with a synced one, because the last
   writes of a killed process may exist only in the page cache. After a failed sync
   (`services.cluster.replica`), the node reopens its store.

If the process is killed, only the evidence for the current flush is lost. After a power failure, the file may
lack the slot writes of the last second and of one sync. The operating system may also write a slot to disk
before the log bytes that the slot covers. The accepted end in that slot is then beyond the last valid record
of the log. After a restart, the node rewrites the missing bytes from the shared log, whereas `cluster
restore` reports them as missing. No accepted record is lost as long as the engine retains all accepted
records.

Cost: one 72-byte write per flush, and two syncs per second. Limitation: if no slot is valid, the accepted end
is unknown. In that case, the node halts (`EvidenceDamaged`), and a restore includes all valid records of the
log.
"""

from __future__ import annotations

import struct
import zlib
from threading import Lock
from typing import Final

from commitlog import layout
from commitlog.disk.disk import Disk
from services.cluster.evidence import Evidence
from sharedlog.errors import Halted

SLOT_BYTES: Final = 4096
SLOT_COUNT: Final = 3
_MAGIC: Final = b"TWEVID01"
_SLOT: Final = struct.Struct(">8sQ16sQQQQI")
_CRC: Final = struct.Struct(">I")
_FRESH: Final = f"{layout.EVIDENCE}.new"


class EvidenceDamaged(Halted):
    """The evidence file is damaged."""


class EvidenceFile:
    """The `evidence` file on `disk`. The methods `write` and `sync` are thread-safe.

    If `evidence` is given, the constructor replaces the file with a new file that contains `evidence`.
    """

    def __init__(self, disk: Disk, evidence: Evidence | None, number: int = 0) -> None:
        self._disk, self._lock = disk, Lock()
        self._number = number
        self._slot = 0
        """The slot to write next. The previous slot is durable or is being synced."""
        self._is_unsynced = False
        """Whether the slot has been written since the last sync."""
        self.written = evidence
        """The evidence last written to the file, or None if there is no file yet."""
        if evidence is not None:
            self._begin(evidence)

    @classmethod
    def open(cls, disk: Disk) -> EvidenceFile:
        """Open the `evidence` file, or prepare to create it on the first write.

        Raise `Halted` if the file is damaged, or OSError if the disk fails.
        """
        number, evidence = _newest(disk)
        return cls(disk, evidence, number)

    def write(self, evidence: Evidence) -> None:
        """Write new evidence. Raise OSError if the disk fails.

        The write is synced only if it creates the file.
        """
        with self._lock:
            if self.written is None:
                self._begin(evidence)
            else:
                self._number += 1
                self._is_unsynced = True
                self._disk.write(layout.EVIDENCE, self._slot * SLOT_BYTES, encode(self._number, evidence))
            self.written = evidence

    def sync(self) -> None:
        """Sync the file if it was written after the last sync.

        Raise `SyncFailed` if the sync fails. The caller must then reopen the file.
        """
        with self._lock:
            if not self._is_unsynced:
                return
            self._slot, self._is_unsynced = (self._slot + 1) % SLOT_COUNT, False
        self._disk.sync(layout.EVIDENCE)

    def _begin(self, evidence: Evidence) -> None:
        """Create or replace the file atomically and durably."""
        self._disk.delete(_FRESH)
        self._number, self._slot = self._number + 1, 0
        slot = encode(self._number, evidence).ljust(SLOT_BYTES, b"\0")
        self._disk.write(_FRESH, 0, SLOT_COUNT * slot)
        self._disk.sync(_FRESH)
        self._disk.rename(_FRESH, layout.EVIDENCE)


def read(disk: Disk) -> Evidence | None:
    """Return the stored evidence, or None if the evidence file is missing.

    Raise `Halted` if the file is damaged, or OSError if it cannot be read.
    """
    return _newest(disk)[1]


def _newest(disk: Disk) -> tuple[int, Evidence | None]:
    size = disk.size(layout.EVIDENCE)
    if size < 0:
        return 0, None
    stored = disk.read(layout.EVIDENCE, 0, size)
    slots = (decode(stored[at : at + SLOT_BYTES]) for at in range(0, SLOT_COUNT * SLOT_BYTES, SLOT_BYTES))
    sound = [one for one in slots if one is not None]
    if not sound:
        raise EvidenceDamaged(
            f"No slot of the file {layout.EVIDENCE} is what was written ({size} bytes), so how far the log "
            "was accepted is not known here. To go on with another node's copy: tidewheel cluster refetch "
            "--store STORE --accept-loss-of 0. If no node has one, with all that this log shows: tidewheel "
            "cluster restore NEW-URL --from STORE."
        )
    return max(sound)


def encode(number: int, evidence: Evidence) -> bytes:
    """Encode a write number and evidence as a slot."""
    head = _SLOT.pack(_MAGIC, number, *evidence)
    return head + _CRC.pack(zlib.crc32(head))


def decode(slot: bytes) -> tuple[int, Evidence] | None:
    """Decode a slot into its write number and evidence. Return None if the slot is damaged."""
    head, crc = slot[: _SLOT.size], slot[_SLOT.size : _SLOT.size + _CRC.size]
    if len(crc) < _CRC.size or _CRC.unpack(crc)[0] != zlib.crc32(head) or not head.startswith(_MAGIC):
        return None
    _, number, *fields = _SLOT.unpack(head)
    return number, Evidence(*fields)
