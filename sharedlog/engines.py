"""Creates shared logs, and the engine for a shared log URL.

postgresql://USER@HOST:PORT/DATABASE?log=NAME    The tables NAME_head and NAME_record (`sharedlog.postgres`).
                                                 The default NAME is `tidewheel`.
kafka://HOST:PORT,HOST:PORT/TOPIC                The topic TOPIC (`sharedlog.kafka`). USER:PASSWORD@ can
                                                 precede the hosts. The settings in `KAFKA_SETTINGS` can be
                                                 given as URL parameters.
?password_file=PATH                              A file that contains the password, for either engine. The
                                                 file is read for each new connection.
"""

from __future__ import annotations

import re
import secrets
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from sharedlog.engine import Engine, Head
from sharedlog.errors import NoCluster
from sharedlog.fold import Position
from sharedlog.kafka import KafkaLog
from sharedlog.password_file import PARAMETER, PasswordFile
from sharedlog.postgres import PostgresLog
from sharedlog.reading import records
from sharedlog.record import CHAIN_AT_GENESIS, ID_BYTES, NOBODY, Kind, SharedRecord, encode, encode_facts
from sharedlog.versions import SUPPORTED
from tidewheel.errors import ConfigurationError
from tidewheel.extras import require

POSTGRES: Final = ("postgresql", "postgres")
KAFKA: Final = "kafka"
KAFKA_SETTINGS: Final = (
    *("security.protocol", "sasl.mechanism", "ssl.ca.location", "ssl.certificate.location"),
    *("ssl.key.location", "ssl.endpoint.identification.algorithm", "broker.address.family"),
)
"""The librdkafka settings that are allowed as URL parameters."""
LOG_USUAL: Final = "tidewheel"
EMPTY_HEAD: Final = Head(0, NOBODY, Position(0, CHAIN_AT_GENESIS))
URL_FORMS: Final = "postgresql://USER@HOST:PORT/DATABASE or kafka://HOST:PORT,HOST:PORT/TOPIC"
_SERVER: Final = re.compile(r"([\w.-]+|\[[0-9a-fA-F:.]+\]):\d{1,5}")
_QUOTED: Final = re.compile(r'"[^"]{2,}"')
_HOSTS: Final = re.compile(r"(?:(?:\[[^]]*\]|[^:@/?,[]*)(?::[0-9]+)?,?)+(?:[/?]|$)")
"""Matches the list of hosts, with optional ports, in a URL that contains no user name."""
_SECRET: Final = ("password", "sslpassword")
_TOPIC: Final = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")

SharedLog: TypeAlias = PostgresLog | KafkaLog
"""An engine that a URL can specify."""


def engine_of(url: str) -> SharedLog:
    """Return the engine for a shared log URL.

    Raise `ConfigurationError` if the URL is invalid, or `LibraryMissing` if the client library of the engine
    is not installed.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigurationError(
            f"The URL of the shared log cannot be read ({error}): give {URL_FORMS}."
        ) from None
    if parts.scheme == KAFKA:
        return _make_kafka_log(parts)
    if parts.scheme not in POSTGRES or not parts.path.strip("/"):
        raise ConfigurationError(f"{without_password(url)!r} names no shared log: give {URL_FORMS}.")
    require("postgres")
    given = dict(parse_qsl(parts.query))
    name, file = given.pop("log", LOG_USUAL), _pop_password_file(given)
    if not (name.isidentifier() and name.isascii()):
        raise ConfigurationError(f"log={name} in the URL: use letters, digits and _ for a shared log's name.")
    if parts.netloc.count("@") > 1:
        raise ConfigurationError("Two @ stand in the URL of the shared log: write that of a password as %40.")
    conninfo = _join_url(parts._replace(query=urlencode(given)))
    if "password" in _parse_conninfo(conninfo) and file is not None:
        raise _make_password_conflict()
    return PostgresLog(conninfo, name, file)


def _pop_password_file(given: dict[str, str]) -> PasswordFile | None:
    """Remove the password file from the URL parameters, and return it.

    Return None if the parameters specify no password file.
    """
    path = given.pop(PARAMETER, None)
    return None if path is None else PasswordFile(path)


def _make_password_conflict() -> ConfigurationError:
    return ConfigurationError(
        f"The URL of the shared log has a password and a {PARAMETER}: give one of them. What is in the file "
        "can be changed without a restart."
    )


def _parse_conninfo(conninfo: str) -> dict[str, Any]:
    """Return the connection parameters in a URL, as parsed by libpq.

    Raise `ConfigurationError` if libpq rejects the URL. The error message omits text that libpq quotes,
    because that text can contain a password.
    """
    import psycopg

    try:
        return psycopg.conninfo.conninfo_to_dict(conninfo)
    except psycopg.Error as error:
        said = _QUOTED.sub("...", str(error).strip())
        raise ConfigurationError(
            f"The URL of the shared log cannot be read ({said}): give {URL_FORMS}, and what is special in a "
            "password as %40 and the like."
        ) from None


def _make_kafka_log(parts: SplitResult) -> KafkaLog:
    """Return the engine for a `kafka://` URL."""
    login, _, servers = parts.netloc.rpartition("@")
    topic, given = parts.path.removeprefix("/"), dict(parse_qsl(parts.query, keep_blank_values=True))
    file = _pop_password_file(given)
    for server in servers.split(","):
        if not _SERVER.fullmatch(server):
            raise ConfigurationError(
                f"{server!r} in the URL is no server of Kafka: give kafka://HOST:PORT,HOST:PORT/TOPIC."
            )
    if not _TOPIC.fullmatch(topic):
        raise ConfigurationError(
            f"{topic!r} in the URL is no topic: name one behind the servers, of letters, digits, '.', '_' "
            "and '-'. It is the shared log, and `tidewheel cluster create URL` makes it."
        )
    if others := sorted(given.keys() - set(KAFKA_SETTINGS)):
        raise ConfigurationError(
            f"{others[0]} in the URL: it takes {', '.join((*KAFKA_SETTINGS, PARAMETER))} only."
        )
    if login:
        user, has_password, password = login.partition(":")
        if has_password and file is not None:
            raise _make_password_conflict()
        given |= {"sasl.username": unquote(user)} | ({} if file else {"sasl.password": unquote(password)})
    elif file is not None:
        raise ConfigurationError(f"{PARAMETER} in the URL is of no user: give kafka://USER@HOST:PORT/TOPIC.")
    require("kafka")
    return KafkaLog(servers, topic, given, file)


def create(engine: SharedLog, facts: dict[str, Any]) -> bytes:
    """Create a shared log, and append a GENESIS record with the newest cluster version and `facts`.

    Return the generated cluster ID. Raise `ClusterExists` if the log exists, or `EngineUnavailable` if the
    engine does not respond.
    """
    cluster = secrets.token_bytes(ID_BYTES)
    body = encode_facts(facts | {"finalized": SUPPORTED})
    genesis = SharedRecord(cluster, Kind.GENESIS, 0, NOBODY, 0, CHAIN_AT_GENESIS, body)
    engine.create_log(EMPTY_HEAD)
    engine.append_if(EMPTY_HEAD, [encode(genesis)], EMPTY_HEAD)
    return cluster


class Beginning(NamedTuple):
    """The cluster ID of a shared log, and the fields of the GENESIS record."""

    cluster: bytes
    facts: dict[str, Any]


def read_genesis(engine: Engine) -> Beginning:
    """Return the cluster ID of a shared log and the fields of the GENESIS record.

    If the GENESIS record was trimmed, the fields are read from a CHECKPOINT record, which contains a copy.
    Records before the GENESIS record are ignored, because nodes of a deleted cluster may still write to the
    topic after it has been re-created. Raise `NoCluster` if the log contains no GENESIS record and no
    CHECKPOINT record, or `EngineUnavailable` if the engine does not respond.
    """
    for record in records(engine):
        if record.kind == Kind.GENESIS:
            return Beginning(record.cluster, record.facts)
        if record.kind == Kind.CHECKPOINT and engine.bounds()[0] > 0:
            return Beginning(record.cluster, record.facts["begins"])
    first, end = engine.bounds()
    if first > 0:
        raise NoCluster(
            f"It begins at record {first}, and ends at {end - 1}: what was before is deleted, and with it "
            "what tells which cluster it is of. Nobody but the nodes may delete records."
        )
    raise NoCluster("No record there tells of a cluster.")


def without_password(url: str) -> str:
    """Return a URL without passwords. The user's password may contain unescaped `/` and `?`."""
    parts = urlsplit(_remove_password(url))
    host = parts.netloc.rpartition("@")[2]
    user = parts.username
    given = [one for one in parts.query.split("&") if one.partition("=")[0] not in _SECRET]
    return _join_url(parts._replace(netloc=f"{user}@{host}" if user else host, query="&".join(given)))


def _remove_password(url: str) -> str:
    """Return a URL without the user's password. The credentials end at the last `@`."""
    scheme, _, rest = url.partition("://")
    head = rest.partition("?")[0]
    user, at, behind = (head if "@" in head or _HOSTS.match(rest) else rest).rpartition("@")
    return f"{scheme}://{user.partition(':')[0]}@{rest[len(user) + 1 :]}" if at and behind else url


def _join_url(parts: SplitResult) -> str:
    """Assemble a URL from `parts`, with the `//` that libpq requires even if the URL has no host."""
    return f"{parts.scheme}://{parts.netloc}{parts.path}{f'?{parts.query}' if parts.query else ''}"
