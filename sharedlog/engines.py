"""Engines by their URLs, and how a cluster begins in one.

postgresql://USER@HOST:PORT/DATABASE?log=NAME    tables NAME_head and NAME_record (`sharedlog.postgres`);
                                                 NAME is `tidewheel` unless it is given
"""

from __future__ import annotations

import secrets
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from sharedlog.engine import Engine, Head
from sharedlog.errors import NoCluster
from sharedlog.fold import Position
from sharedlog.postgres import PostgresLog
from sharedlog.record import CHAIN_AT_GENESIS, ID_BYTES, NOBODY, Kind, SharedRecord, body_of, decode, encode
from tidewheel.errors import ConfigurationError
from tidewheel.extras import require

POSTGRES: Final = ("postgresql", "postgres")
LOG_USUAL: Final = "tidewheel"
NOWHERE: Final = Head(0, NOBODY, Position(0, CHAIN_AT_GENESIS))


def engine_of(url: str) -> PostgresLog:
    """Return the engine that a URL names; raise `ConfigurationError`, or `LibraryMissing`."""
    parts = urlsplit(url)
    if parts.scheme not in POSTGRES or not parts.path.strip("/"):
        raise ConfigurationError(
            f"{without_password(url)!r} names no shared log: give postgresql://USER@HOST:PORT/DATABASE."
        )
    require("postgres")
    given = dict(parse_qsl(parts.query))
    name = given.pop("log", LOG_USUAL)
    if not (name.isidentifier() and name.isascii()):
        raise ConfigurationError(f"log={name} in the URL: use letters, digits and _ for a shared log's name.")
    return PostgresLog(urlunsplit(parts._replace(query=urlencode(given))), name)


def create(engine: PostgresLog, facts: dict[str, Any]) -> bytes:
    """Make a shared log with its GENESIS; return the cluster's id. Raise `ClusterExists` or `Unknown`."""
    cluster = secrets.token_bytes(ID_BYTES)
    genesis = SharedRecord(cluster, Kind.GENESIS, 0, NOBODY, 0, CHAIN_AT_GENESIS, body_of(facts))
    engine.found(NOWHERE)
    engine.append_if(NOWHERE, [encode(genesis)], NOWHERE)
    return cluster


def genesis_of(engine: Engine) -> SharedRecord:
    """Return the GENESIS of a shared log; raise `NoCluster` if it does not begin with one, or `Unknown`."""
    found = engine.read(0, 1)
    if not found or found[0].offset > 0:
        raise NoCluster("No record lies there: tidewheel cluster create URL makes one.")
    record = decode(found[0].stored, None)
    if record.kind != Kind.GENESIS:
        raise NoCluster("The shared log does not begin with a GENESIS: its first records are gone.")
    return record


def without_password(url: str) -> str:
    """Return a URL as it may be shown."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    user = parts.username
    return urlunsplit(parts._replace(netloc=f"{user}@{host}" if user else host))
