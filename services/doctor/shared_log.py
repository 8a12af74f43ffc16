"""A cluster's shared log: can it be reached and written, what lies there, is its engine set as it must be?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime
from shlex import quote
from urllib.parse import urlsplit

from services.doctor.finding import Finding, fine, warning, wrong
from sharedlog.engine import Stored
from sharedlog.engines import KAFKA, SharedLog, engine_of, without_password
from sharedlog.errors import Halted, NoCluster, Refused, Unknown
from sharedlog.record import Foreign, Garbled, Kind, decode


def examined(url: str) -> Iterator[Finding]:
    """Go the way of a node to the shared log that a URL names; raise `ConfigurationError`."""
    with closing(engine_of(url)) as engine:
        shown = without_password(url)
        try:
            settings = [wrong("settings", one, "") for one in _asked(engine.trouble)]
            settings += [warning("settings", one, "") for one in _asked(engine.notes)]
        except Unknown as error:
            yield wrong("connect", error.detail, _by_hand(shown))
            return
        yield fine("connect", f"{shown} answers")
        try:
            yield from _log(engine, shown)
        except (Unknown, Halted) as error:
            yield wrong("cluster", error.detail, "")
    yield from settings or [fine("settings", "as they must be")]


def _asked(ask: Callable[[], list[str]]) -> list[str]:
    """Return what an engine says of its settings; nothing of a log that is not there."""
    try:
        return ask()
    except NoCluster:
        return []


def _log(engine: SharedLog, shown: str) -> Iterator[Finding]:
    """Look at the records, and whether another would be taken; raise `Unknown` or `Halted`."""
    try:
        first, end = engine.bounds()
        found = [engine.read(offset, 1)[0] for offset in (first, end - 1)] if end > first else []
    except NoCluster as error:
        yield wrong("cluster", error.detail, f"To begin one: tidewheel cluster create {quote(shown)}")
        return
    if not found:
        yield wrong("cluster", "It has no record: nobody finished making it.", "Name another log in the URL.")
        return
    yield _cluster(*found)
    try:
        engine.try_append()
        yield fine("write", "this user may append; nothing was left there")
    except (Refused, Unknown) as error:
        yield wrong("write", f"no record would be taken: {error.detail}", "")


def _cluster(first: Stored, last: Stored) -> Finding:
    """Say of which cluster the first and the last record are."""
    try:
        begin, newest = decode(first.stored, None), decode(last.stored, None)
    except (Foreign, Garbled) as error:
        return wrong("cluster", f"Not every record is of a cluster: {error}.", "Name another log in the URL.")
    kind = Kind(newest.kind).name if newest.kind in Kind.__members__.values() else f"kind {newest.kind}"
    return fine(
        "cluster",
        f"{begin.cluster.hex()}: records {first.offset} ({_when(first)}) to {last.offset} ({_when(last)}), "
        f"the last a {kind} of epoch {newest.epoch}",
    )


def _when(stored: Stored) -> str:
    return datetime.fromtimestamp(stored.appended_ms / 1000).isoformat(" ", "seconds")


def _by_hand(shown: str) -> str:
    """Return how to try without us what did not succeed."""
    parts = urlsplit(shown)
    if parts.scheme == KAFKA:
        servers = parts.netloc.rpartition("@")[2]
        return f"By hand: kafka-broker-api-versions.sh --bootstrap-server {servers}"
    given = "&".join(one for one in parts.query.split("&") if not one.startswith("log="))
    url = shown.partition("?")[0] + (f"?{given}" if given else "")
    return f"By hand: psql {quote(url)} (a password goes into ~/.pgpass)"
