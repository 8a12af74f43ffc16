"""Transfers the newest checkpoint of a node to another node, which installs only a complete copy.

The response to `GET /api/cluster/copy` contains the files of the newest checkpoint in the following format:

    bytes           field
    8               "TWCOPY01"
    for each file, and once more for the end:
    4               header_bytes, big-endian
    header_bytes    JSON: path, length, room_bytes; at the end: end (CommitLog offset), segment_bytes, files
    16              BLAKE2b checksum of all preceding bytes of the stream except the checksums
    length          the first bytes of the file; the receiver pads the file with zeros to room_bytes
    16              BLAKE2b checksum, as above

The receiver first writes all files to the folder `fetched`. The files then replace the store in several
steps. The replacement is resumed after a process kill or a power failure:

    files 0, 1, ...    --all files synced-->      fetched/whole
    fetched/whole      --old store deleted-->     fetched/moving
    fetched/moving     --all files renamed-->     folder deleted

    found at startup                      action
    fetched without a marker              delete the incomplete copy
    fetched/whole                         delete the old store (again), and move the copy
    fetched/moving                        move the remaining files
    damaged fetched/whole                 delete the copy, and keep the store
    damaged fetched/moving                delete the store, because its missing files are unknown

If a previous process was killed before a folder was synced, renames in that folder may be visible but not
durable. If the marker `fetched/moving` exists at startup, the node therefore first syncs the folder
`fetched`. Before deleting the marker, the node syncs every folder to which a file was moved.

A store never contains files from two nodes. Queues and the key index are derived data, and are transferred
only if the transfer is cheaper than a rebuild (`services.store.copying.derived`).

Cost: the store is sent over the network once. During the transfer, the receiver needs disk space for both
stores. Limitation: the checksums protect only the transfer and do not detect damage on the sender's disk. On
opening the copy (`copies.copying`), the receiver verifies the log, deletes a damaged key index, and verifies
queues against the CRCs in the snapshot.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, suppress
from hashlib import blake2b
from http.client import HTTPException
from itertools import chain
from pathlib import Path
from typing import Any, Final, Protocol

from commitlog import layout, store_format
from commitlog.disk.disk import Disk
from commitlog.errors import StoreDamaged
from commitlog.log import imported
from commitlog.snapshots import snapshot
from commitlog.snapshots.snapshot import Snapshot
from consumequeue import dispatch
from consumequeue.indexes import keyindex
from services.broker.broker import SHARED
from services.cluster.errors import CopyRefused
from services.cluster.peers import SECRET, CertificateMismatch, connect_to
from services.store.copying.copying import FileCopy, hold_store
from services.store.copying.derived import HeldDerived
from services.store.read_only.reading import StoreFiles
from sharedlog.fold import Fold

PATH: Final = "/api/cluster/copy"
READ_SECONDS: Final = 30.0
"""Timeout in seconds of each read from the other node."""
MAGIC: Final = b"TWCOPY01"
_HEADER_BYTES: Final = struct.Struct(">I")
_HEADER_BYTES_MAX: Final = 64 * 1024
_DIGEST_BYTES: Final = 16
_CHUNK_BYTES: Final = 1024 * 1024
_WHOLE: Final = f"{layout.FETCHED}/whole"
_MOVING: Final = f"{layout.FETCHED}/moving"
_REPLACED: Final = (
    *(layout.COMMITLOG, layout.CONSUMEQUEUE, layout.QUEUES_WHOLE, layout.KEYINDEX, layout.SNAPSHOTS),
    *(layout.TIMERS, layout.TIMER_NAMES, layout.TIMER_ENDS, layout.KEEP, layout.RESERVE, layout.DURABLE),
    *(imported.PATH, layout.HOLES, layout.REFETCH),
)
"""The files and folders of a store that a copy replaces. The identity and the evidence are kept."""
_PATH: Final = re.compile(
    rf"(?:{layout.COMMITLOG}|{layout.SNAPSHOTS}|{layout.KEEP}|{layout.TIMERS}|{layout.TIMER_NAMES}"
    rf"|{layout.TIMER_ENDS}|{layout.KEYINDEX})/[0-9a-z.-]{{1,64}}|{imported.PATH}|{layout.HOLES}|{layout.QUEUES_WHOLE}"
    rf"|{layout.CONSUMEQUEUE}/(?!\.\.?/)[^/\0]{{1,255}}/[0-9]{{1,10}}/[0-9]{{{layout.OFFSET_DIGITS}}}"
)


class FetchedCopy:
    """A complete copy in the folder `fetched`. The list `paths` contains the final paths of the files."""

    def __init__(self, disk: Disk, paths: list[str], end: int) -> None:
        self._disk, self._numbers, self.end = disk, {path: n for n, path in enumerate(paths)}, end

    def fold(self) -> Fold:
        """Return the `Fold` in the checkpoint of the copy. Raise `CopyRefused` if there is no checkpoint."""
        found = self._snapshot()
        if found is None or SHARED not in found.parts:
            raise CopyRefused(f"The copy has no checkpoint at byte {self.end}.")
        return Fold.thaw(found.parts[SHARED])

    def _snapshot(self) -> Snapshot | None:
        kept = f"{layout.FETCHED}/{self._numbers.get(snapshot.path_of(self.end))}"
        return snapshot.decode(self._disk.read(kept, 0, max(0, self._disk.size(kept))), self.end)

    def has_same_bytes_before(self, end: int, bytes_max: int) -> bool:
        """Return whether the copy and the store contain the same log bytes before `end`.

        At most the last `bytes_max` bytes that both logs contain are compared. Return False if no bytes can
        be compared or if all compared bytes are zero.
        """
        theirs = {layout.segment_path(first): first for first in self._segment_offsets}
        start = max(0, end - bytes_max, min(self._segment_offsets, default=end))
        at, is_blank = max(start, min(layout.segment_offsets(self._disk), default=end)), True
        while at < end:
            first, following = self._segment_bounds(at, end)
            if (path := layout.segment_path(first)) not in theirs:
                return False
            until = min(end, following)
            ours = self._disk.read(path, at - first, until - at)
            kept = f"{layout.FETCHED}/{self._numbers[path]}"
            if len(ours) < until - at or ours != self._disk.read(kept, at - first, until - at):
                return False
            at, is_blank = until, is_blank and not ours.strip(b"\0")
        return not is_blank

    @property
    def _segment_offsets(self) -> list[int]:
        """Return the start offsets of the log segments in the copy."""
        found = (path.partition(f"{layout.COMMITLOG}/")[2] for path in self._numbers)
        return [int(one) for one in found if one.isdecimal()]

    def _segment_bounds(self, offset: int, end: int) -> tuple[int, int]:
        """Return the start offsets of the store segment that contains `offset` and of the next segment.

        The second value is `end` if there is no next segment.
        """
        firsts = layout.segment_offsets(self._disk)
        return max(one for one in firsts if one <= offset), min(
            (one for one in firsts if one > offset), default=end
        )


Require = Callable[[FetchedCopy], None]


class Source(Protocol):
    """A byte source for a copy stream."""

    def read(self, count: int, /) -> bytes:
        """Return up to `count` bytes, or b"" at the end. Raise OSError if the source fails."""


def stream_copy(root: Path) -> Generator[bytes]:
    """Yield the bytes of a copy stream with the newest checkpoint in the store at `root`.

    Raise a `StoreError` if the store cannot be read, or `CopyRefused` if there is no checkpoint of a node.
    """
    with ExitStack() as stack:
        held = hold_store(root, stack)
        newest = held.newest
        if newest is None or SHARED not in newest.parts:
            raise CopyRefused("This node has no checkpoint yet. Ask another one, or later.")
        held_derived = HeldDerived(StoreFiles(root), newest, stack)
        count, digest = 0, blake2b(MAGIC, digest_size=_DIGEST_BYTES)
        yield MAGIC
        for file in chain(held.files(newest.offset), held_derived.copies()):
            yield from _file_stream(file, digest)
            count += 1
        segment_bytes = held.store.segment_bytes
        end = _header({"end": newest.offset, "segment_bytes": segment_bytes, "files": count})
        digest.update(end)
        yield end + digest.digest()


def fetch_copy(url: str, certificate: str, secret: str, disk: Disk, require: Require) -> None:
    """Fetch a copy through the HTTP interface at `url`. Call `install_copy` later to replace the store.

    `certificate` is the other node's certificate, or "" for plaintext HTTP. `require` is described in
    `receive_copy`. Raise `CopyRefused` if no copy is available, or OSError if the disk fails.
    """
    try:
        connection = connect_to(url, certificate, READ_SECONDS)
    except CertificateMismatch as error:
        raise CopyRefused(str(error)) from error
    except OSError as error:
        raise CopyRefused(f"{url} does not answer ({error}).") from error
    try:
        try:
            connection.request("GET", PATH, headers={SECRET: secret})
            answer = connection.getresponse()
            if answer.status != 200:
                said = answer.read(1_000).decode(errors="replace").strip()
                raise CopyRefused(f"{url} gives no copy ({answer.status}): {said}")
        except (OSError, HTTPException) as error:
            raise CopyRefused(f"{url} does not answer ({error or type(error).__name__}).") from error
        receive_copy(_NetworkSource(answer, url), disk, require)
    finally:
        connection.close()


def receive_copy(source: Source, disk: Disk, require: Require = lambda _: None) -> None:
    """Write a complete copy from `source` to the folder `fetched` of the store.

    `require` must raise `CopyRefused` if the copy must not replace the store. Raise `CopyRefused` if the copy
    is incomplete or damaged, or OSError if the disk fails.
    """
    delete_pending_copy(disk)
    received = _CopyReader(source)
    if received.read_exactly(len(MAGIC)) != MAGIC:
        raise CopyRefused("What was sent is no copy of a store.")
    paths: list[str] = []
    while "path" in (header := received.header()):
        kept = f"{layout.FETCHED}/{len(paths)}"
        _receive_file(received, header, kept, disk)
        if header["path"].startswith(layout.KEYINDEX) and not keyindex.is_undamaged_run(disk, kept):
            disk.delete(kept)  # damaged on the sender's disk; the receiver rebuilds the index
        paths.append(header["path"])
    if header["files"] != len(paths):
        raise CopyRefused(f"The copy has {len(paths)} files, and {header['files']} were sent.")
    copy = FetchedCopy(disk, paths, header["end"])
    require(copy)
    for path, content in (
        (layout.DURABLE, layout.durable_lines(header["end"])),
        (layout.FORMAT, store_format.encode(header["segment_bytes"])),
    ):
        _write(disk, f"{layout.FETCHED}/{len(paths)}", content)
        paths.append(path)
    _write(disk, f"{_WHOLE}.new", json.dumps(paths).encode())
    disk.rename(f"{_WHOLE}.new", _WHOLE)


def install_copy(disk: Disk) -> bool:
    """Replace the store with the pending copy if it is complete.

    Return whether the store was replaced. Raise `StoreDamaged` if the file list of a partly installed copy is
    damaged, or OSError if the disk fails.
    """
    if is_moving(disk):
        disk.sync_folder(layout.FETCHED)
    elif _read_file_list(disk, _WHOLE) is None:
        disk.delete(_WHOLE)
        disk.delete(layout.FETCHED)
        return False
    else:
        _delete_replaced_files(disk)
        disk.rename(_WHOLE, _MOVING)
    paths = _read_file_list(disk, _MOVING)
    if paths is None:
        _delete_replaced_files(disk)
        disk.delete(_MOVING)
        disk.delete(layout.FETCHED)
        raise StoreDamaged(
            f"{_MOVING} does not list the files of the copy that was taking the store's place: the store was "
            "deleted, and needs the copy of another node."
        )
    for number, path in enumerate(paths):
        if disk.size(f"{layout.FETCHED}/{number}") >= 0:
            disk.rename(f"{layout.FETCHED}/{number}", path)
    for folder in sorted({above.as_posix() for path in paths for above in Path(path).parents}):
        disk.sync_folder("" if folder == "." else folder)  # subfolders may be new and not yet durable
    # Delete the marker first, because the deletion of the folder can be interrupted.
    disk.delete(_MOVING)
    disk.delete(layout.FETCHED)
    return True


def _delete_replaced_files(disk: Disk) -> None:
    """Delete the store data that a copy replaces. Queue files that cannot be deleted are moved aside."""
    for path in _REPLACED:
        if path == layout.CONSUMEQUEUE:
            dispatch.delete_files(disk)
        else:
            disk.delete(path)


def _read_file_list(disk: Disk, path: str) -> list[str] | None:
    """Return the file list in a marker file, or None if the marker is missing or invalid."""
    if (size := disk.size(path)) < 0:
        return None
    try:
        found = json.loads(disk.read(path, 0, size))
    except ValueError:
        return None
    is_list = isinstance(found, list) and all(isinstance(one, str) and _may_be_moved(one) for one in found)
    return found if is_list else None


def _may_be_moved(path: str) -> bool:
    return path in (layout.DURABLE, layout.FORMAT) or _PATH.fullmatch(path) is not None


def is_moving(disk: Disk) -> bool:
    """Return whether the replacement of the store with a copy has begun but is not complete."""
    return disk.size(_MOVING) >= 0


def pending_copy_end(disk: Disk) -> int:
    """Return the end offset of the log in a complete pending copy, or -1 if there is none."""
    found = (one.partition(f"{layout.SNAPSHOTS}/")[2] for one in _read_file_list(disk, _WHOLE) or [])
    return max((int(one) for one in found if one.isdecimal()), default=-1)


def delete_store(disk: Disk) -> None:
    """Delete the data of the store. Raise OSError if the disk fails."""
    if is_moving(disk):  # complete an interrupted move first, because the moved files resemble a store
        with suppress(StoreDamaged):
            install_copy(disk)
    delete_pending_copy(disk)
    _delete_replaced_files(disk)


def delete_pending_copy(disk: Disk) -> None:
    """Delete the pending copy. The marker is deleted first, because the deletion can be interrupted."""
    assert disk.size(_MOVING) < 0, "a copy that is moving is the store"
    disk.delete(_WHOLE)
    disk.delete(layout.FETCHED)


def _file_stream(file: FileCopy, digest: blake2b) -> Iterator[bytes]:
    header, count = _header({"path": file.path, "length": file.length, "room_bytes": file.room_bytes}), 0
    digest.update(header)
    yield header + digest.digest()
    for _, chunk in file.chunks:
        digest.update(chunk)
        count += len(chunk)
        yield chunk
    if count != file.length:
        raise CopyRefused(f"{file.path} has {count} bytes of {file.length}: it was cut meanwhile.")
    yield digest.digest()


def _header(facts: dict[str, Any]) -> bytes:
    encoded = json.dumps(facts).encode()
    return _HEADER_BYTES.pack(len(encoded)) + encoded


def _receive_file(received: _CopyReader, header: dict[str, Any], path: str, disk: Disk) -> None:
    """Write one file of a copy to `path`, verify its checksum, and sync the file."""
    if not _PATH.fullmatch(header["path"]):
        raise CopyRefused(f"The copy has a file {header['path']!r}, which no store has.")
    if header["room_bytes"]:
        disk.allocate(path, header["room_bytes"])
    disk.write(path, 0, b"")  # create the file even if it is empty
    position = 0
    while position < header["length"]:
        chunk = received.read_exactly(min(_CHUNK_BYTES, header["length"] - position))
        disk.write(path, position, chunk)
        position += len(chunk)
    received.check(header["path"])
    disk.sync(path)


def _write(disk: Disk, path: str, content: bytes) -> None:
    disk.write(path, 0, content)
    disk.sync(path)


class _CopyReader:
    """Reads a copy stream and computes its running checksum."""

    def __init__(self, source: Source) -> None:
        self._source, self._digest = source, blake2b(digest_size=_DIGEST_BYTES)

    def header(self) -> dict[str, Any]:
        """Return the next header. Raise `CopyRefused` if it is damaged."""
        (count,) = _HEADER_BYTES.unpack(self.read_exactly(_HEADER_BYTES.size))
        if count > _HEADER_BYTES_MAX:
            raise CopyRefused(f"The copy has a header of {count} bytes: it was spoiled on its way.")
        encoded = self.read_exactly(count)
        self.check("a header")
        header: dict[str, Any] = json.loads(encoded)
        return header

    def read_exactly(self, count: int) -> bytes:
        """Return the next `count` bytes. Raise `CopyRefused` if the stream ends early."""
        found = self._bytes(count)
        self._digest.update(found)
        return found

    def check(self, what: str) -> None:
        """Read a checksum. Raise `CopyRefused` if it does not match the received bytes."""
        if self._bytes(_DIGEST_BYTES) != self._digest.digest():
            raise CopyRefused(f"The copy was spoiled on its way, up to {what}.")

    def _bytes(self, count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            chunk = self._source.read(count - len(found))
            if not chunk:
                raise CopyRefused("The copy ends amid a file: the other node has stopped sending.")
            found += chunk
        return bytes(found)


class _NetworkSource:
    """Reads a copy stream from an HTTP response. A network error is raised as `CopyRefused`."""

    def __init__(self, answer: Source, url: str) -> None:
        self._answer, self._url = answer, url

    def read(self, count: int, /) -> bytes:
        """Return up to `count` bytes of the response, or b"" at its end."""
        try:
            return self._answer.read(count)
        except (OSError, HTTPException) as error:
            raise CopyRefused(f"{self._url} stopped sending ({error or type(error).__name__}).") from error
