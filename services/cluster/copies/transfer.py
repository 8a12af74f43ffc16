"""A node's copy of the store goes to another node: its newest checkpoint, whole or not at all.

    GET /api/cluster/copy   the files, one after the other, of the newest checkpoint of the node that is asked

The stream:

    bytes           field
    8               "TWCOPY01"
    then for each file, and once more for the end:
    4               header_bytes, big-endian
    header_bytes    JSON: path, length, room_bytes; at the end: end (CommitLog offset), segment_bytes, files
    16              BLAKE2b of all bytes of the stream so far, save these sums
    length          the file's first bytes; zeros follow up to room_bytes
    16              again

Whoever receives keeps them apart, in the folder `fetched`, until all of them are on disk. Then they take the
store's place, in steps of which each may be the last before a kill or a power cut:

    files 0, 1, ... --all synced--> fetched/whole --the old store is deleted--> fetched/moving --renamed, one
    by one--> the folder is deleted

    found at a start      what is done
    fetched, no marker    deleted: a copy that is not whole counts for nothing
    fetched/whole         the old store is deleted (again), and the copy moved
    fetched/moving        what has not been moved is moved
    fetched/whole, spoiled by the disk    as no marker: the store stays
    fetched/moving, the same              the store is deleted, as no list tells which files are missing

What an earlier attempt has renamed is seen where it is now, and may be in memory only: the attempt was killed
before the sync of the folder, or that sync failed. So a start syncs the folder of a marker that it finds, and
all folders of the copy's files before the marker goes.

Files of two nodes are never mixed. Queues and key index are derived, and come along where that is cheaper
than to make them anew (`services.store.copying_derived`).

Cost: the store goes over the network once, and lies on the disk twice until it is whole. Weak spot: the files
are checked on their way, so what the sender's disk has spoiled comes too; whoever receives reads the log
through before it is used (`services.cluster.node`), drops a key index that is spoiled, and holds queues to
the CRCs in the snapshot.
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

from commitlog import imported, layout, snapshot, store_format
from commitlog.disk import Disk
from commitlog.errors import StoreDamaged
from commitlog.snapshot import Snapshot
from consumequeue import dispatch, keyindex
from services.broker.broker import SHARED
from services.cluster.errors import CopyRefused
from services.cluster.peers import SECRET, OtherCertificate, connected_to
from services.store.copying import FileCopy, hold_store
from services.store.copying_derived import HeldDerived
from services.store.reading import StoreFiles
from sharedlog.fold import Fold

PATH: Final = "/api/cluster/copy"
READ_SECONDS: Final = 30.0
"""How long the other node may send nothing."""
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
"""All that a store holds, save what says whose it is, and up to where it has seen the log accepted."""
_PATH: Final = re.compile(
    rf"(?:{layout.COMMITLOG}|{layout.SNAPSHOTS}|{layout.KEEP}|{layout.TIMERS}|{layout.TIMER_NAMES}"
    rf"|{layout.TIMER_ENDS}|{layout.KEYINDEX})/[0-9a-z.-]{{1,64}}|{imported.PATH}|{layout.HOLES}|{layout.QUEUES_WHOLE}"
    rf"|{layout.CONSUMEQUEUE}/(?!\.\.?/)[^/\0]{{1,255}}/[0-9]{{1,10}}/[0-9]{{{layout.OFFSET_DIGITS}}}"
)


class FetchedCopy:
    """A copy that is whole and has not taken the store's place: files 0, 1, ... have these paths there."""

    def __init__(self, disk: Disk, paths: list[str], end: int) -> None:
        self._disk, self._numbers, self.end = disk, {path: n for n, path in enumerate(paths)}, end

    def fold(self) -> Fold:
        """Return the fold of its checkpoint; raise `CopyRefused`."""
        found = self._snapshot()
        if found is None or SHARED not in found.parts:
            raise CopyRefused(f"The copy has no checkpoint at byte {self.end}.")
        return Fold.thaw(found.parts[SHARED])

    def _snapshot(self) -> Snapshot | None:
        kept = f"{layout.FETCHED}/{self._numbers.get(snapshot.path_of(self.end))}"
        return snapshot.decode(self._disk.read(kept, 0, max(0, self._disk.size(kept))), self.end)

    def same_bytes_before(self, end: int, bytes_max: int) -> bool:
        """Return whether its log and this store's have the same bytes before `end`, at least one record's.

        That is all that both begin before, up to `bytes_max`. False where they have no bytes in common.
        """
        theirs = {layout.segment_path(first): first for first in self._firsts}
        start = max(0, end - bytes_max, min(self._firsts, default=end))
        at, is_blank = max(start, min(layout.segment_offsets(self._disk), default=end)), True
        while at < end:
            first, following = self._around(at, end)
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
    def _firsts(self) -> list[int]:
        """The first offsets of the segments of its log."""
        found = (path.partition(f"{layout.COMMITLOG}/")[2] for path in self._numbers)
        return [int(one) for one in found if one.isdecimal()]

    def _around(self, offset: int, end: int) -> tuple[int, int]:
        """Return where this store's segment begins in which a log offset lies, and the next one, or `end`."""
        firsts = layout.segment_offsets(self._disk)
        return max(one for one in firsts if one <= offset), min(
            (one for one in firsts if one > offset), default=end
        )


Require = Callable[[FetchedCopy], None]


class Source(Protocol):
    """Where bytes come from."""

    def read(self, count: int, /) -> bytes:
        """Return up to `count` bytes; none at the end. Raise OSError."""


def stream(root: Path) -> Generator[bytes]:
    """Yield the bytes of the newest checkpoint of the store in `root`; raise a `StoreError`."""
    with ExitStack() as stack:
        held = hold_store(root, stack)
        newest = held.newest
        if newest is None or SHARED not in newest.parts:
            raise CopyRefused("This node has no checkpoint yet. Ask another one, or later.")
        held_derived = HeldDerived(StoreFiles(root), newest, stack)
        count, digest = 0, blake2b(MAGIC, digest_size=_DIGEST_BYTES)
        yield MAGIC
        for file in chain(held.files(newest.offset), held_derived.copies()):
            yield from _sent(file, digest)
            count += 1
        segment_bytes = held.store.segment_bytes
        end = _header({"end": newest.offset, "segment_bytes": segment_bytes, "files": count})
        digest.update(end)
        yield end + digest.digest()


def fetch(url: str, certificate: str, secret: str, disk: Disk, require: Require) -> None:
    """Get the copy of the node whose HTTP interface is `url`; it takes the store's place (`take_over`).

    `certificate` is what that node is known by, where it serves HTTP over TLS; see `receive` for `require`.
    Raise `CopyRefused` if it is not to be had, or OSError of the disk.
    """
    try:
        connection = connected_to(url, certificate, READ_SECONDS)
    except OtherCertificate as error:
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
        receive(_Checked(answer, url), disk, require)
    finally:
        connection.close()


def receive(source: Source, disk: Disk, require: Require = lambda _: None) -> None:
    """Keep a copy apart until it is whole; raise `CopyRefused`, or OSError of the disk.

    `require` raises `CopyRefused` of a copy that must not take the store's place.
    """
    discard(disk)
    received = _Received(source)
    if received.exactly(len(MAGIC)) != MAGIC:
        raise CopyRefused("What was sent is no copy of a store.")
    paths: list[str] = []
    while "path" in (header := received.header()):
        kept = f"{layout.FETCHED}/{len(paths)}"
        _keep(received, header, kept, disk)
        if header["path"].startswith(layout.KEYINDEX) and not keyindex.holds_what_was_written(disk, kept):
            disk.delete(kept)  # spoiled on the sender's disk; an index that lacks a file is made anew
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


def take_over(disk: Disk) -> bool:
    """Let a copy that is whole take the store's place; return whether there was one.

    Raise OSError, or `StoreDamaged` where the disk has spoiled the list of files that are being moved.
    """
    if is_moving(disk):
        disk.sync_folder(layout.FETCHED)
    elif _listed(disk, _WHOLE) is None:
        disk.delete(_WHOLE)
        disk.delete(layout.FETCHED)
        return False
    else:
        _delete_store(disk)
        disk.rename(_WHOLE, _MOVING)
    paths = _listed(disk, _MOVING)
    if paths is None:
        _delete_store(disk)
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
        disk.sync_folder("" if folder == "." else folder)  # its folders may be new, and unsynced, too
    # The marker goes last and alone: a folder may be deleted in part, and then it still says what to do.
    disk.delete(_MOVING)
    disk.delete(layout.FETCHED)
    return True


def _delete_store(disk: Disk) -> None:
    """Delete what a copy replaces; files of queues that the disk does not let go may stay aside."""
    for path in _REPLACED:
        if path == layout.CONSUMEQUEUE:
            dispatch.delete_files(disk)
        else:
            disk.delete(path)


def _listed(disk: Disk, path: str) -> list[str] | None:
    """Return the files of the copy that a marker lists; None without one, or if it lists none."""
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
    """Return whether a copy has begun to take the store's place."""
    return disk.size(_MOVING) >= 0


def waiting_end(disk: Disk) -> int:
    """Return where the log of a copy ends that is whole and waits for the store's place; -1 without one."""
    found = (one.partition(f"{layout.SNAPSHOTS}/")[2] for one in _listed(disk, _WHOLE) or [])
    return max((int(one) for one in found if one.isdecimal()), default=-1)


def wipe(disk: Disk) -> None:
    """Let a node begin without a store; raise OSError."""
    if is_moving(disk):  # killed amid a move: the rest first, as what is left would be a store
        with suppress(StoreDamaged):
            take_over(disk)
    discard(disk)
    _delete_store(disk)


def discard(disk: Disk) -> None:
    """Forget a copy that nobody wants; its marker goes first, for a folder may be deleted in part."""
    assert disk.size(_MOVING) < 0, "a copy that is moving is the store"
    disk.delete(_WHOLE)
    disk.delete(layout.FETCHED)


def _sent(file: FileCopy, digest: blake2b) -> Iterator[bytes]:
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


def _keep(received: _Received, header: dict[str, Any], path: str, disk: Disk) -> None:
    """Write a file of the copy, whole and synced."""
    if not _PATH.fullmatch(header["path"]):
        raise CopyRefused(f"The copy has a file {header['path']!r}, which no store has.")
    if header["room_bytes"]:
        disk.allocate(path, header["room_bytes"])
    disk.write(path, 0, b"")  # a file of no bytes is one, too
    position = 0
    while position < header["length"]:
        chunk = received.exactly(min(_CHUNK_BYTES, header["length"] - position))
        disk.write(path, position, chunk)
        position += len(chunk)
    received.check(header["path"])
    disk.sync(path)


def _write(disk: Disk, path: str, content: bytes) -> None:
    disk.write(path, 0, content)
    disk.sync(path)


class _Received:
    """A stream as it comes, and the sum of it."""

    def __init__(self, source: Source) -> None:
        self._source, self._digest = source, blake2b(digest_size=_DIGEST_BYTES)

    def header(self) -> dict[str, Any]:
        """Return the next header."""
        (count,) = _HEADER_BYTES.unpack(self.exactly(_HEADER_BYTES.size))
        if count > _HEADER_BYTES_MAX:
            raise CopyRefused(f"The copy has a header of {count} bytes: it was spoiled on its way.")
        encoded = self.exactly(count)
        self.check("a header")
        header: dict[str, Any] = json.loads(encoded)
        return header

    def exactly(self, count: int) -> bytes:
        """Return the next `count` bytes; raise `CopyRefused` where the copy ends before."""
        found = self._bytes(count)
        self._digest.update(found)
        return found

    def check(self, what: str) -> None:
        """Raise `CopyRefused` if what has come is not what was sent."""
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


class _Checked:
    """An answer over the network, whose failures are told from those of the disk."""

    def __init__(self, answer: Source, url: str) -> None:
        self._answer, self._url = answer, url

    def read(self, count: int, /) -> bytes:
        """Return up to `count` bytes; none at the end."""
        try:
            return self._answer.read(count)
        except (OSError, HTTPException) as error:
            raise CopyRefused(f"{self._url} stopped sending ({error or type(error).__name__}).") from error
