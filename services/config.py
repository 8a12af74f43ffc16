"""Settings of `tidewheel serve` and of the commands that talk to a broker.

A flag goes before the environment (`TIDEWHEEL_LISTEN`, ...), the environment before the default, field by
field. A value that cannot be used is a `ConfigurationError` that names its source.
"""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from commitlog import limits
from commitlog.errors import ConfigurationError

ENVIRONMENT_PREFIX = "TIDEWHEEL_"
PORT_MAX = 65_535


class Address(NamedTuple):
    """A host and a port; port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: object) -> Address:
    """Read HOST:PORT (IPv6 in brackets); raises ValueError with a sentence that says what is missing."""
    if isinstance(text, Address):
        return text
    host, _, port = str(text).rpartition(":")
    if not host or not port.isdecimal() or int(port) > PORT_MAX:
        raise ValueError("it must be HOST:PORT, such as 127.0.0.1:8081")
    if ":" in host or "[" in host:
        host = host.removeprefix("[").removesuffix("]")
        ip_address(host)
    return Address(host, int(port))


class HttpAddress(NamedTuple):
    """Where an HTTP interface is, and whether it is spoken to over TLS (`https://`)."""

    host: str
    port: int
    is_tls: bool = False

    def __str__(self) -> str:
        return str(Address(self.host, self.port))

    @property
    def url(self) -> str:
        """Its address as a URL without a path."""
        return f"{'https' if self.is_tls else 'http'}://{self}"


def parse_http_address(text: object) -> HttpAddress:
    """Read [http[s]://]HOST:PORT[/]; raises ValueError with a sentence that says what is missing."""
    if isinstance(text, HttpAddress):
        return text
    scheme, marked, rest = str(text).rpartition("://")
    if marked and scheme not in ("http", "https"):
        raise ValueError("it must begin with http:// or https://, or be HOST:PORT")
    return HttpAddress(*parse_address(rest.removesuffix("/")), scheme == "https")


def parse_without_scheme(text: object) -> Address:
    """Read what `parse_http_address` does, for whoever listens there: its scheme is not asked for."""
    return text if isinstance(text, Address) else Address(*parse_http_address(text)[:2])


AddressText = Annotated[Address, NoDecode, BeforeValidator(parse_address)]
ListenHttpText = Annotated[Address, NoDecode, BeforeValidator(parse_without_scheme)]
HttpAddressText = Annotated[HttpAddress, NoDecode, BeforeValidator(parse_http_address)]


class Environment(BaseSettings):
    """What all settings have in common: where the environment's values come from."""

    model_config = SettingsConfigDict(env_prefix=ENVIRONMENT_PREFIX, extra="ignore", frozen=True)


class ServeSettings(Environment):
    """How a broker runs. `advertise` is the address clients are told; None: the one they dialled."""

    store: Path = Path("tidewheel-store")
    listen: AddressText = Address("127.0.0.1", 8081)
    http: ListenHttpText = Address("127.0.0.1", 8088)
    advertise: AddressText | None = None
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_clients: Path | None = None
    plaintext: Literal["on", "off"] | None = None
    connections_per_address: int = Field(4_096, ge=1)
    auth: bool = False
    auth_key: Path | None = None
    http_token: Path | None = None
    http_hosts: str = ""
    http_tls: Literal["auto", "on", "off"] = "auto"
    insecure: bool = False
    ready_file: Path | None = None
    clock: Literal["real", "virtual"] = "real"
    broker_name: str = Field("tidewheel", min_length=1, max_length=127)
    segment_bytes: int = Field(limits.SEGMENT_BYTES_DEFAULT, ge=limits.RECORD_BYTES_MAX)
    flush: Literal["sync", "async"] = "sync"
    retain_hours: float | None = Field(None, gt=0)
    retain_bytes: int | None = Field(None, gt=0)
    group_pin_hours: float = Field(72.0, ge=0)
    housekeeping_ms: int = Field(10_000, ge=100)
    client_metrics: Literal["on", "off"] = "on"
    auto_create: bool = True
    queue_count: int = Field(limits.QUEUE_COUNT_DEFAULT, ge=1, le=limits.QUEUE_COUNT_MAX)
    timers_per_topic: int = Field(limits.TIMERS_PER_TOPIC_MAX, ge=0)
    lite_topics: int = Field(limits.LITE_TOPICS_MAX, ge=0)
    lite_topic_bytes: int = Field(limits.LITE_TOPIC_BYTES_MAX, ge=1, le=limits.LITE_TOPIC_BYTES_LIMIT)
    lite_subscriptions: int = Field(limits.LITE_SUBSCRIPTIONS_PER_CLIENT_MAX, ge=0)
    timer_history_hours: float = Field(limits.TIMER_HISTORY_MS / 3_600_000, gt=0)
    check_immunity_ms: int = Field(limits.CHECK_IMMUNITY_MS, ge=0)
    check_interval_ms: int = Field(limits.CHECK_INTERVAL_MS, ge=1)
    check_count_max: int = Field(limits.CHECK_COUNT_MAX, ge=1)
    invisible_ms_min: int = Field(limits.INVISIBLE_MS_MIN, ge=0)
    auto_renew_lease_ms: int = Field(limits.AUTO_RENEW_LEASE_MS, ge=100)
    attempts_max: int = Field(limits.ATTEMPTS_MAX, ge=1, le=limits.ATTEMPTS_LIMIT)
    group_start: Literal["earliest", "latest"] = "earliest"

    @property
    def is_tls_only(self) -> bool:
        """Whether plaintext is kept out of the protocol port."""
        return (self.plaintext or ("off" if self.tls_clients else "on")) == "off"


class ClientSettings(Environment):
    """Which broker the commands talk to, the file with the token that it wants, and who vouches for it."""

    http: HttpAddressText = HttpAddress("127.0.0.1", 8088)
    http_token: Path | None = None
    http_ca: Path | None = None


class UserSettings(Environment):
    """Who a client is, for a broker that asks: its access key, and the file with its secret."""

    access_key: str = ""
    secret_key_file: Path | None = None


Settings = TypeVar("Settings", bound=Environment)


def load(kind: type[Settings], **flags: Any) -> Settings:
    """Return settings from flags (None: not given), environment and defaults; raises `ConfigurationError`."""
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return kind(**given)
    except ValidationError as error:
        raise ConfigurationError(explain(error, given)) from error


def explain(error: ValidationError, flags: dict[str, Any]) -> str:
    """Say which setting of which source is wrong, and why."""
    first = error.errors()[0]
    name = str(first["loc"][0])
    source = f"--{name.replace('_', '-')}" if name in flags else f"{ENVIRONMENT_PREFIX}{name.upper()}"
    reason = first["msg"].removeprefix("Value error, ")
    return f"{source} is {str(first['input'])!r}: {reason[0].lower()}{reason[1:]}."


def secret_in(path: Path | None, name: str) -> str:
    """Return what a small file holds, nothing without one; raises `ConfigurationError`."""
    try:
        return path.read_text().strip() if path else ""
    except (OSError, UnicodeDecodeError) as error:
        variable = f"{ENVIRONMENT_PREFIX}{name.upper()}"
        raise ConfigurationError(
            f"{variable} is {str(path)!r}: {error}. Name a file that you can read."
        ) from error
