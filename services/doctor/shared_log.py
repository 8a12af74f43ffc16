"""Diagnosis of a cluster's shared log: access, content, and settings of its engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from datetime import datetime
from shlex import quote
from typing import Final
from urllib.parse import urlsplit

from services.doctor.finding import Finding, fine, warning, wrong
from sharedlog.engine import Stored
from sharedlog.engines import KAFKA, SharedLog, engine_of, read_genesis, without_password
from sharedlog.errors import EngineRefused, EngineUnavailable, Halted, NoCluster
from sharedlog.faults import READ_BYTES
from sharedlog.holdings import Holdings
from sharedlog.password_file import PARAMETER
from sharedlog.record import CorruptRecord, ForeignRecord, Kind, SharedRecord, decode
from sharedlog.scrub import CheckResult, count_range, read_range

OURS: Final = ("log", PARAMETER)
"""URL parameters that other clients of the engine do not understand."""
READS: Final = 16
"""Number of reads of `sharedlog.scrub.READ_BYTES` bytes.

The leader continues the verification (see its metrics).
"""
CLOCK_OFF_MS: Final = 2_000
BEATS: Final = 20
"""Number of the newest records that are searched for a BEAT record."""
WORDS: Final = 2_000
"""Number of the newest records that are searched for reports of nodes."""
AFTER_WORD: Final = (
    "It gets the leader's copy. See whether the leader finds the record broken, and refuses answers until "
    "then: tidewheel cluster status"
)
AFTER_LOSS: Final = (
    "Keep the --store of every node: what the log lacks may be there. See which nodes halt: tidewheel "
    "cluster status. To begin anew with what one has: tidewheel cluster restore NEW-URL --from STORE"
)


def examined(url: str) -> Iterator[Finding]:
    """Repeat the steps of a node that connects to the shared log. Raises `ConfigurationError`."""
    with closing(engine_of(url)) as engine:
        shown = without_password(url)
        try:
            settings = [wrong("settings", one, "") for one in _asked(engine.check_settings)]
            settings += [warning("settings", one, "") for one in _asked(engine.list_risky_settings)]
        except EngineUnavailable as error:
            yield wrong("connect", error.detail, _by_hand(shown))
            return
        yield fine("connect", f"{shown} answers")
        yield from _clock(engine)
        try:
            is_ours = yield from _log(engine, shown)
        except (EngineUnavailable, EngineRefused, Halted) as error:
            yield wrong("cluster", error.detail, "")
            is_ours = True
    if is_ours:
        yield from settings or [fine("settings", "as they must be")]


def _clock(engine: SharedLog) -> Iterator[Finding]:
    """Compare the engine's clock with the clock of this machine, and with the leader's clock if it is known.

    Yields nothing if the clocks agree or the engine has no clock.
    """
    began_ms = time.time_ns() // 1_000_000
    try:
        engine_ms = engine.check_session()
    except (EngineUnavailable, EngineRefused, Halted) as error:
        yield wrong("session", error.detail, "")
        return
    ended_ms = time.time_ns() // 1_000_000
    if engine_ms is None:
        return
    ahead_ms = engine_ms - min(max(engine_ms, began_ms), ended_ms)
    if abs(ahead_ms) <= CLOCK_OFF_MS:
        return
    leader_ms = _ahead_of_leader_ms(engine)
    whose = "set one of the two right; cluster status of the nodes tells which"
    if leader_ms is not None:
        agrees = abs(leader_ms - ahead_ms) <= CLOCK_OFF_MS
        whose = "and of the leader's: set the engine's right" if agrees else "set this machine's right"
    which = "ahead of" if ahead_ms > 0 else "behind"
    yield wrong("clock", f"the engine's is {abs(ahead_ms) / 1000:.1f} s {which} this machine's, {whose}", "")


def _ahead_of_leader_ms(engine: SharedLog) -> int | None:
    """Return the offset of the engine's clock from the leader's clock at the newest record, or None if it is
    unknown.
    """
    with suppress(EngineUnavailable, EngineRefused, Halted):
        _, end = engine.bounds()
        for one in engine.read(max(0, end - BEATS), 1 << 20)[::-1]:
            record = _decoded(one)
            if isinstance(record, SharedRecord) and record.kind == Kind.BEAT and "clock_ms" in record.facts:
                return one.appended_ms - int(record.facts["clock_ms"])
    return None


def _asked(ask: Callable[[], list[str]]) -> list[str]:
    """Return the engine's messages about its settings, or nothing if there is no log."""
    try:
        return ask()
    except NoCluster:
        return []


def _log(engine: SharedLog, shown: str) -> Generator[Finding, None, bool]:
    """Examine the records, and whether another record would be accepted.

    Returns False if the log does not belong to a cluster. Raise `EngineUnavailable` or `Halted`.
    """
    try:
        first, end = engine.bounds()
        found = engine.read(first, 1)[:1] if end > first else []
        with suppress(
            EngineUnavailable
        ):  # the last record is missing; the count reports other missing records
            found += engine.read(end - 1, 1)[:1] if found else []
    except NoCluster as error:
        yield wrong("cluster", error.detail, f"To begin one: tidewheel cluster create {quote(shown)}")
        return True
    if not found and engine.count_rows(0).faults:
        yield from _records(engine, b"")
        return True
    begin = _decoded(found[0]) if found else "missing"
    if isinstance(begin, str):
        advice = f"Name another log, or remove this one and run: tidewheel cluster create {quote(shown)}"
        yield wrong("cluster", f"the first record is {begin}", advice)
        return False
    if len(found) < 2:
        yield wrong("cluster", f"record {end - 1}, the last one, is not there", AFTER_LOSS)
        yield from _records(engine, begin.cluster)
        return True
    if first > 0:
        try:
            read_genesis(engine)
        except NoCluster as error:
            yield wrong("cluster", error.detail, AFTER_LOSS)
            return True
    cluster = f"{begin.cluster.hex()}: records {first} ({_when(found[0])}) to {end - 1} ({_when(found[1])})"
    newest = _decoded(found[1])
    if isinstance(newest, str):
        yield warning(
            "cluster", f"{cluster}, the last {newest}", "Nodes step over it; let nobody else write there."
        )
    else:
        yield fine("cluster", f"{cluster}, the last a {_kind(newest)} of epoch {newest.epoch}")
    yield from _records(engine, begin.cluster)
    yield _written(engine)
    return True


def _records(engine: SharedLog, cluster: bytes) -> Iterator[Finding]:
    """Count the records of the log, and read the first of them.

    Raises `EngineUnavailable` or `EngineRefused`.
    """
    faults, counting = list[str](), CheckResult([], 0, is_whole=False)
    while not counting.is_whole:
        counting = count_range(engine, counting.next_record)
        faults += counting.faults
    reading = CheckResult([], 0, is_whole=False)
    with suppress(*((EngineUnavailable, Halted) if faults else ())):  # if the end of the log is lost
        for _ in range(READS):
            if not reading.is_whole:
                reading = read_range(engine, cluster, reading.next_record)
                faults += reading.faults
    words = [] if faults else list(_words(engine, cluster))
    if not faults and not words:
        upto = "each" if reading.is_whole else f"those before {reading.next_record}"
        yield fine("records", f"each is there once, and {upto} matches its CRC")
    yield from words
    for one in dict.fromkeys(faults):
        yield wrong("records", one, AFTER_LOSS)


def _words(engine: SharedLog, cluster: bytes) -> Iterator[Finding]:
    """Yield the newest records in which nodes report that they cannot read further.

    Raise `EngineUnavailable` or `EngineRefused`.
    """
    holdings, (first, end) = Holdings(), engine.bounds()
    at = max(first, end - WORDS)
    for _ in range(READS):
        for one in engine.read(at, READ_BYTES):
            record, at = _decoded(one), one.offset + 1
            if isinstance(record, str) or record.cluster != cluster:
                continue
            if record.kind in (Kind.CHECKPOINT, Kind.HOLD) and "node" in record.facts:
                holdings.apply_record(record.facts)
            elif record.kind == Kind.BEAT and "forget" in record.facts:
                holdings.remove_node(record.facts["forget"])
    for node, where in holdings.unreadable.items():
        yield wrong(
            "records", f"node {node} cannot read on at record {where.record}: {where.why}", AFTER_WORD
        )


def _written(engine: SharedLog) -> Finding:
    try:
        engine.check_append()
    except (EngineRefused, EngineUnavailable) as error:
        return wrong("write", f"no record would be taken: {error.detail}", "")
    return fine("write", "this user may append; nothing was left there")


def _decoded(stored: Stored) -> SharedRecord | str:
    """Return a cluster record, or a description of other data."""
    try:
        return decode(stored.stored, None)
    except (ForeignRecord, CorruptRecord) as error:
        return str(error)


def _kind(record: SharedRecord) -> str:
    return Kind(record.kind).name if record.kind in Kind.__members__.values() else f"kind {record.kind}"


def _when(stored: Stored) -> str:
    return datetime.fromtimestamp(stored.appended_ms / 1000).isoformat(" ", "seconds")


def _by_hand(shown: str) -> str:
    """Return a command that tries the failed step with the engine's own tool."""
    parts = urlsplit(shown)
    if parts.scheme == KAFKA:
        servers = parts.netloc.rpartition("@")[2]
        return f"By hand: kafka-broker-api-versions.sh --bootstrap-server {servers}"
    given = "&".join(one for one in parts.query.split("&") if one.partition("=")[0] not in OURS)
    url = shown.partition("?")[0] + (f"?{given}" if given else "")
    return f"By hand: psql {quote(url)} (a password goes into ~/.pgpass)"
