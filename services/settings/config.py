"""Settings of `tidewheel serve`, of the commands that call a broker, and of clients.

A setting is declared only here: its flag, variable, key of the file, help, documented example and row of the
table are derived from its field (`setting.py`). For each field, a flag takes precedence over the environment
(`TIDEWHEEL_LISTEN`, ...), the environment over the file (`tidewheel.toml`), and the file over the default
(`sources.py`). An invalid value raises a `ConfigurationError` that names its source.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, TypeVar

from commitlog import limits
from services.settings.setting import VARIABLE_PREFIX, Meta, Setting, settings_of
from services.settings.sources import Found, file_to_read, resolve, unknown_variables
from tidewheel.client.address import TOKEN_IN_FILE, has_token
from tidewheel.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from _typeshed import DataclassInstance

PORT_MAX = 65_535


class Address(NamedTuple):
    """A host and a port; for port 0, the system selects a free port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @staticmethod
    def parse(text: object) -> Address:
        """Parse HOST:PORT. Raises ValueError with a description of the valid form."""
        return parse_address(text)


def parse_address(text: object, usual_port: int = 8081) -> Address:
    """Parse HOST:PORT (IPv6 in brackets) or http://HOST:PORT/.

    Raises ValueError with a description of the valid form.
    """
    if isinstance(text, Address):
        return text
    host, _, port = str(text).removeprefix("http://").removesuffix("/").rpartition(":")
    if "@" in str(text):
        raise ValueError(
            f"it has a user, which no address here has; give HOST:PORT, such as 127.0.0.1:{usual_port}"
        )
    if not host or not port.isdecimal():
        raise ValueError(f"it must be HOST:PORT, such as 127.0.0.1:{usual_port}")
    if int(port) > PORT_MAX:
        raise ValueError(f"its port must be from 0 to {PORT_MAX}")
    if ":" in host or "[" in host:
        host = host.removeprefix("[").removesuffix("]")
        ip_address(host)
    return Address(host, int(port))


class HttpAddress(NamedTuple):
    """The address of an HTTP interface. `is_tls` is set if it uses TLS (`https://`)."""

    host: str
    port: int
    is_tls: bool = False

    def __str__(self) -> str:
        return str(self.bare)

    @property
    def bare(self) -> Address:
        """The host and port of the interface."""
        return Address(self.host, self.port)

    @property
    def url(self) -> str:
        """The base URL of the interface."""
        return f"{'https' if self.is_tls else 'http'}://{self}"

    @staticmethod
    def parse(text: object) -> HttpAddress:
        """Parse [http[s]://]HOST:PORT[/]. Raises ValueError with a description of the valid form."""
        if isinstance(text, HttpAddress):
            return text
        scheme, marked, rest = str(text).rpartition("://")
        if marked and scheme not in ("http", "https"):
            raise ValueError("it must begin with http:// or https://, or be HOST:PORT")
        host, port = parse_address(rest.removesuffix("/"), HTTP_USUAL.port)
        return HttpAddress(host, port, scheme == "https")


class HttpAddresses(NamedTuple):
    """The addresses of alternative HTTP interfaces, such as those of the nodes of a cluster."""

    all: tuple[HttpAddress, ...]

    def __str__(self) -> str:
        return ",".join(one.url if one.is_tls else str(one) for one in self.all)

    @staticmethod
    def parse(text: object) -> HttpAddresses:
        """Parse addresses separated by commas. Raises ValueError with a description of the valid form."""
        if isinstance(text, HttpAddresses):
            return text
        if isinstance(text, HttpAddress):
            return HttpAddresses((text,))
        return HttpAddresses(tuple(HttpAddress.parse(one.strip()) for one in str(text).split(",")))


LISTEN_USUAL: Final = Address("127.0.0.1", 8081)
HTTP_USUAL: Final = HttpAddress("127.0.0.1", 8088)
CALLED_USUAL: Final = HttpAddresses((HTTP_USUAL,))

Stored = partial(Meta, heading="Storage")
Where = partial(Meta, heading="Network")
Clustered = partial(Meta, heading="Cluster")
Allowed = partial(Meta, heading="Access control")
Begun = partial(Meta, heading="New topics and groups")
HandedOut = partial(Meta, heading="Delivery")
Tuned = partial(Meta, heading="Intervals and clock")
Told = partial(Meta, heading="Output")
Calling = partial(Meta, heading="Commands and clients")


@dataclass(frozen=True)
class ServeSettings:
    """The settings of a broker."""

    store: Annotated[Path, Stored("Folder of the store; created if missing.")] = Path("tidewheel-store")
    segment_bytes: Annotated[
        int | None,
        Stored(
            "Size of one log file of a new store; default: by the free space of the volume.",
            least=limits.RECORD_BYTES_MAX,
        ),
    ] = None
    flush: Annotated[
        Literal["sync", "async"],
        Stored(
            "sync: acknowledged messages are on disk. async: faster; a power failure may lose half a second."
        ),
    ] = "sync"
    retain_hours: Annotated[
        float | None, Stored("Delete log files older than this; default: keep all files.", above=0)
    ] = None
    retain_bytes: Annotated[
        int | None,
        Stored("Delete the oldest log files above this total size; default: keep all files.", above=0),
    ] = None
    group_pin_hours: Annotated[
        float, Stored("Longest time for which a lagging group delays the deletion of log files.", least=0)
    ] = 72.0
    timers_per_topic: Annotated[
        int, Stored("Largest number of pending delayed messages in one topic.", least=0)
    ] = limits.TIMERS_PER_TOPIC_MAX
    timer_history_hours: Annotated[
        float,
        Stored(
            "Time for which the outcome of a delayed message is stored. A higher value restores no outcomes.",
            above=0,
        ),
    ] = limits.TIMER_HISTORY_MS / 3_600_000

    listen: Annotated[Address, Where("HOST:PORT for RocketMQ 5 clients; port 0 selects a free port.")] = (
        LISTEN_USUAL
    )
    http: Annotated[
        HttpAddress, Where("HOST:PORT for metrics, health and the commands, which call the broker there.")
    ] = HTTP_USUAL
    advertise: Annotated[
        Address | None, Where("HOST:PORT that clients are given; default: the address that they dialled.")
    ] = None
    tls_certificate: Annotated[
        Path | None, Where("PEM file of the certificate; default: a certificate that the broker creates.")
    ] = None
    tls_key: Annotated[Path | None, Where("PEM file of the private key of the certificate.")] = None
    tls_clients: Annotated[
        Path | None,
        Where("PEM file of authorities; clients must use TLS with a certificate signed by one of them."),
    ] = None
    plaintext: Annotated[
        Literal["on", "off"] | None,
        Where("off: clients must use TLS. Default: on, but off with --tls-clients."),
    ] = None
    connections_per_address: Annotated[
        int, Where("Largest number of open connections from one address.", least=1)
    ] = 4_096
    ready_file: Annotated[
        Path | None,
        Where("File that is written when the broker is ready, with its addresses and process id."),
    ] = None
    broker_name: Annotated[str, Where("Name of the broker in routes and metrics.", least=1, most=127)] = (
        "tidewheel"
    )

    cluster: Annotated[
        str,
        Clustered("URL of the cluster's shared log: postgresql://... or kafka://...; default: no cluster."),
    ] = ""
    node: Annotated[
        str, Clustered("Name of this node in the cluster; each node has its own name.", most=127)
    ] = ""

    auth: Annotated[bool, Allowed("Authenticate clients and check their rights: see tidewheel auth.")] = False
    auth_key: Annotated[
        Path | None,
        Allowed("File with the key of users' secrets; default: STORE/users.key. Created on first use."),
    ] = None
    http_token: Annotated[
        Path | None,
        Allowed(
            "File with the token that the HTTP interface requires and the commands send. Created if missing."
        ),
    ] = None
    http_hosts: Annotated[
        str, Allowed("Host names for HTTP, separated by commas, in addition to localhost and --advertise.")
    ] = ""
    http_tls: Annotated[
        Literal["auto", "on", "off"],
        Allowed("TLS for HTTP; auto: on if other machines can reach the HTTP port."),
    ] = "auto"
    insecure: Annotated[
        bool, Allowed("Serve all callers, even on addresses that other machines can reach.")
    ] = False

    auto_create: Annotated[bool, Begun("Create a topic when it is first used.")] = True
    queue_count: Annotated[
        int,
        Begun(
            "Number of queues of a topic that is created without a number.",
            least=1,
            most=limits.QUEUE_COUNT_MAX,
        ),
    ] = limits.QUEUE_COUNT_DEFAULT
    group_start: Annotated[
        Literal["earliest", "latest"], Begun("Position at which a new consumer group begins in a topic.")
    ] = "earliest"

    lite_topics: Annotated[int, HandedOut("Largest number of lite topics in one topic.", least=0)] = (
        limits.LITE_TOPICS_MAX
    )
    lite_topic_bytes: Annotated[
        int,
        HandedOut("Longest name of a lite topic, in bytes.", least=1, most=limits.LITE_TOPIC_BYTES_MAX),
    ] = limits.LITE_TOPIC_BYTES_DEFAULT
    lite_subscriptions: Annotated[
        int, HandedOut("Largest number of lite topics to which one client can subscribe.", least=0)
    ] = limits.LITE_SUBSCRIPTIONS_PER_CLIENT_MAX
    attempts_max: Annotated[
        int,
        HandedOut(
            "Attempts before a message becomes a dead letter, for groups that do not set a number.",
            least=1,
            most=limits.ATTEMPTS_MAX,
        ),
    ] = limits.ATTEMPTS_DEFAULT
    invisible_ms_min: Annotated[int, HandedOut("Shortest lease that a consumer can request.", least=0)] = (
        limits.INVISIBLE_MS_MIN
    )
    auto_renew_lease_ms: Annotated[
        int, HandedOut("Lease of a push consumer, which is renewed while its client is connected.", least=100)
    ] = limits.AUTO_RENEW_LEASE_MS

    housekeeping_ms: Annotated[int, Tuned("Interval between checks of the free disk space.", least=100)] = (
        10_000
    )
    check_immunity_ms: Annotated[
        int, Tuned("Time before the first check-back for a half message.", least=0)
    ] = limits.CHECK_IMMUNITY_MS
    check_interval_ms: Annotated[
        int, Tuned("Pause after the first check-back; it doubles, up to a limit.", least=1)
    ] = limits.CHECK_INTERVAL_MS
    check_count_max: Annotated[
        int, Tuned("Number of check-backs before a half message expires.", least=1)
    ] = limits.CHECK_COUNT_DEFAULT
    clock: Annotated[
        Literal["real", "virtual"],
        Tuned("virtual: for tests; the time can be advanced. Requires a separate store."),
    ] = "real"

    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Told("Lowest level of events that are logged to stderr."),
    ] = "info"
    log_format: Annotated[
        Literal["auto", "text", "json"],
        Told("Format of a log line; auto: text on a terminal, otherwise JSON."),
    ] = "auto"
    banner: Annotated[bool, Told("Print addresses and next commands to stdout at startup.")] = True
    client_metrics: Annotated[Literal["on", "off"], Told("on: clients send their metrics every minute.")] = (
        "on"
    )

    @property
    def is_tls_only(self) -> bool:
        """Whether the gRPC port refuses plaintext."""
        return (self.plaintext or ("off" if self.tls_clients else "on")) == "off"


@dataclass(frozen=True)
class ClientSettings:
    """The broker that commands call, the file with its token, and the trusted certificate authorities."""

    http: Annotated[
        HttpAddresses,
        Calling(
            "[https://]HOST:PORT of the broker's HTTP interface; for a cluster, of its nodes, with commas."
        ),
    ] = CALLED_USUAL
    http_token: Annotated[Path | None, Calling("File with the token for the HTTP interface.")] = None
    http_ca: Annotated[
        Path | None,
        Calling("PEM file of the broker's certificate or authority, for https; default: the system's."),
    ] = None


@dataclass(frozen=True)
class EngineSettings:
    """The shared log that the commands for a cluster create or read."""

    cluster: Annotated[str, Calling("URL of the cluster's shared log.")] = ""


@dataclass(frozen=True)
class UserSettings:
    """The access key of a client and the file with its secret, for a broker with --auth."""

    access_key: Annotated[str, Calling("Access key of a client, for a broker with --auth.")] = ""
    secret_key_file: Annotated[Path | None, Calling("File with the secret of the access key.")] = None


ALL_KINDS: Final = (ServeSettings, ClientSettings, UserSettings)

Settings = TypeVar("Settings", bound="DataclassInstance")


def load(kind: type[Settings], config: Path | None = None, **flags: Any) -> Settings:
    """Return settings from flags (None: not given), environment, file and defaults.

    `config` is the file given by a flag. Raises `ConfigurationError`.
    """
    found = look_up(settings_of(kind), flags, config)
    return kind(**{name: one.value for name, one in found.items()})


def look_up(
    settings: Mapping[str, Setting], flags: Mapping[str, Any], config: Path | None = None
) -> dict[str, Found]:
    """Return the value and the origin of each setting. Raises `ConfigurationError`."""
    return resolve(settings, all_settings(), flags, os.environ, file_to_read(config, os.environ))


def ignored_variables() -> list[str]:
    """Return a warning for each environment variable that is named like a setting but is unknown."""
    return unknown_variables(os.environ, all_settings())


def all_settings() -> dict[str, Setting]:
    """Return all settings that a file or the environment can set, by name."""
    return settings_of(*ALL_KINDS)


def secret_in(path: Path | None, name: str) -> str:
    """Return the stripped text of a small file, or "" without a file. Raises `ConfigurationError`."""
    try:
        return path.read_text().strip() if path else ""
    except (OSError, UnicodeDecodeError) as error:
        variable = f"{VARIABLE_PREFIX}{name.upper()}"
        if has_token(path):
            raise ConfigurationError(f"{variable} has a token itself: {TOKEN_IN_FILE}") from None
        raise ConfigurationError(
            f"{variable} is {str(path)!r}: {error}. Name a file that you can read."
        ) from error
