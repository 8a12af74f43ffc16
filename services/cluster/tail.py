"""The tail of a node's log: the bytes that the shared log has not confirmed yet.

    checkpoint                   accepted end                       end of the log files
        |------- accepted ----------|--- written, possibly accepted ----|000
        ^ each flush from the shared log is compared with these bytes and then written at its offset

While a node reads the shared log, the accepted flushes confirm or replace the tail piece by piece. This
module compares each accepted flush with the tail, and `services.cluster.evidence` selects the action:

    advance, write   write the flush at its offset, and clear the rest of a segment that the flush closes
    set aside        copy the valid records from the offset on, up to ASIDE_BYTES_MAX bytes, to the file
                     `aside/<20 digits of the offset>`, sync it, and truncate; only the newest file is kept
    truncate (CUT)   delete later segments in reverse order, truncate the segment at the offset, and
                     reallocate its space

Bytes that match a flush are rewritten, because they may exist only in the page cache. The comparison ends
when the tail has been truncated or the end of the log files is reached.

Cost: one disk read for each flush after the checkpoint. Limitation: only the newest `aside` file is kept. It
ends before the first damaged record or, in a restore, after the last valid record.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

import structlog

from commitlog import layout
from commitlog.disk.disk import Disk
from commitlog.log import imported
from commitlog.log.recovery import LogScan, holds_other
from commitlog.log.segments import Segments
from commitlog.records import record
from services.cluster.evidence import CopyProof, DiskComparison, EvidenceVerdict
from sharedlog.record import SharedRecord

ASIDE_BYTES_MAX: Final = 64 * 1024 * 1024
_CHUNK_BYTES: Final = 4 * 1024 * 1024
_HEAD: Final = struct.Struct(">II")

log = structlog.get_logger()


class Tail:
    """The tail of a log after the checkpoint at `end_offset`. The segment size is `segment_bytes`."""

    def __init__(self, disk: Disk, segment_bytes: int, end_offset: int) -> None:
        self._disk, self._segment_bytes = disk, segment_bytes
        self._segments = Segments.of(disk, segment_bytes)
        self._imported_until = imported.read(disk)
        self._end = self._files_end()
        """The end offset of the log files. Flushes after this offset need no comparison."""
        self.has_bytes = self._end > end_offset
        """Whether the tail contains bytes that have not been compared yet."""

    def prepare_flush(self, flush: Sequence[SharedRecord], proof: CopyProof) -> None:
        """Compare the next accepted flush with the tail, and prepare the log files for writing.

        Raise `Halted` if the tail belongs to another history, or OSError if the disk fails.
        """
        if not self.has_bytes:
            return
        in_place, offset = self._compare(flush)
        verdict = proof.verdict_at(in_place, offset)
        if verdict is EvidenceVerdict.WRITE:
            self._clear_closed(flush)
        elif verdict in (EvidenceVerdict.SET_ASIDE, EvidenceVerdict.CUT):
            self.truncate_at(offset)
        self.has_bytes = self.has_bytes and self._end > flush[-1].end

    def truncate_at(self, offset: int, sound_until: int | None = None) -> None:
        """Truncate the tail at `offset`, which is the accepted end, and set later valid records aside.

        The range of records to set aside ends at `sound_until`, by default at the first damaged record. Raise
        OSError if the disk fails.
        """
        if not self.has_bytes:
            return
        if offset < self._end:
            if sound_until is None:
                scan = LogScan(self._disk, self._segment_bytes, offset)
                scan.check()
                sound_until = scan.end_offset
            if sound_until > offset:
                self._set_aside(offset, sound_until)
        for first in reversed([one for one in self._segments.first_offsets if one >= offset]):
            self._disk.delete(layout.segment_path(first))
        self._disk.sync_folder(layout.COMMITLOG)
        self._clear_from(offset)
        self.has_bytes = False

    def _files_end(self) -> int:
        firsts = self._segments.first_offsets
        last_bytes = self._disk.size(layout.segment_path(firsts[-1])) if firsts else 0
        return max(self._segments.end_offset, firsts[-1] + last_bytes) if firsts else 0

    def _compare(self, flush: Sequence[SharedRecord]) -> tuple[DiskComparison, int]:
        """Compare a flush with the log files, and return the outcome and the first offset that differs.

        If there is no difference, the offset is the end of the flush.
        """
        unsound_at: int | None = None
        differing = (part for part in flush if not self._is_equal(part))
        for offset, piece, zeros in (one for part in differing for one in _split_records(part)):
            path, position = self._place(offset)
            if self._disk.read(path, position, len(piece)) == piece and self._is_zero(
                path, position, piece, zeros
            ):
                continue
            if self._has_other_record(path, position, offset, piece):
                return DiskComparison.OTHER, offset
            unsound_at = offset if unsound_at is None else unsound_at
        return (
            (DiskComparison.EQUAL, flush[-1].end)
            if unsound_at is None
            else (DiskComparison.UNSOUND, unsound_at)
        )

    def _is_equal(self, part: SharedRecord) -> bool:
        """Return whether the bytes on disk match the bytes in `part`.

        Return False if `part` has trailing zeros or extends past the end of a segment.
        """
        path, position = self._place(part.start)
        is_in_one = not part.zeros and part.end <= self._segments.end_of(part.start)
        return is_in_one and self._disk.read(path, position, len(part.body)) == part.body

    def _place(self, offset: int) -> tuple[str, int]:
        firsts = self._segments.first_offsets
        return (
            self._segments.place(offset)
            if firsts and offset >= firsts[0]
            else (layout.segment_path(offset), 0)
        )

    def _is_zero(self, path: str, position: int, piece: bytes, zeros: int) -> bool:
        """Return whether the `zeros` bytes after a record are all zero or past the end of the file."""
        at, end = position + len(piece), position + len(piece) + zeros
        chunks = range(at, end, _CHUNK_BYTES)
        return not any(
            self._disk.read(path, one, min(_CHUNK_BYTES, end - one)).strip(b"\0") for one in chunks
        )

    def _has_other_record(self, path: str, position: int, offset: int, piece: bytes) -> bool:
        if self._disk.size(path) <= position or self._disk.read(path, position, len(piece)) == piece:
            return False
        return holds_other(self._disk.view(path), position, offset, self._imported_until)

    def _clear_closed(self, flush: Sequence[SharedRecord]) -> None:
        """Clear the unused space in each segment that a flush closes."""
        for part in flush:
            if part.zeros:
                self._clear_from(part.end - part.zeros)

    def _clear_from(self, offset: int) -> None:
        """Clear the segment that contains `offset`, from that offset to the end of the segment.

        Do nothing if the segment starts at `offset`.
        """
        firsts = self._segments.first_offsets
        if not firsts or offset <= self._segments.first_of(offset):
            return
        path, position = self._segments.place(offset)
        file_bytes = self._disk.size(path)
        if position < file_bytes:
            self._disk.truncate(path, position)
            self._disk.allocate(path, file_bytes)

    def _set_aside(self, offset: int, end_offset: int) -> None:
        """Copy records that may not have been accepted to the `aside` folder. Log any disk error."""
        path = f"{layout.ASIDE}/{offset:0{layout.OFFSET_DIGITS}d}"
        self._disk.delete(layout.ASIDE)
        end = min(end_offset, offset + ASIDE_BYTES_MAX)
        try:
            at = offset
            while at < end:
                segment, position = self._segments.place(at)
                until = min(end, self._segments.end_of(at), at + _CHUNK_BYTES)
                self._disk.write(path, at - offset, self._disk.read(segment, position, until - at))
                at = until
            self._disk.sync(path)
        except OSError as error:
            with suppress(OSError):
                self._disk.delete(layout.ASIDE)
            log.warning("the tail was not set aside", offset=offset, end_offset=end_offset, reason=str(error))
            return
        log.warning("records that were not seen accepted are set aside", path=path, end_offset=end)


def _split_records(part: SharedRecord) -> Iterator[tuple[int, bytes, int]]:
    """Yield the log offset, the bytes, and the number of trailing zeros of each record in `part`.

    The records include blank records.
    """
    at, body = 0, part.body
    while at < len(body):
        length, magic = _HEAD.unpack_from(body, at)
        if magic == record.MAGIC_BLANK:
            length = record.BLANK_BYTES
        end = at + length
        yield part.start + at, body[at:end], part.zeros if end == len(body) else 0
        at = end
