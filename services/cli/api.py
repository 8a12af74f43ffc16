"""The broker's HTTP interface, as the commands call it.

What a broker refuses comes back as the error of the tree it was there, with its code and exit code. A verdict
on a timer is an answer, not an error.
"""

from __future__ import annotations

import json
from http.client import HTTPException
from typing import Annotated, Any, Final
from urllib.error import HTTPError
from urllib.parse import quote, urlencode

import typer

from commitlog import errors as commitlog_errors
from consumequeue import errors as consumequeue_errors
from services.auth import errors as auth_errors
from services.broker.spine import errors as broker_errors
from services.cluster import errors as cluster_errors
from services.http.calls import HttpCalls
from services.live import errors as live_errors
from services.ops import errors as ops_errors
from services.rpc.wire import errors as rpc_errors
from services.settings.config import HttpAddresses
from sharedlog import errors as sharedlog_errors
from tidewheel import errors as tidewheel_errors
from tidewheel.errors import TidewheelError
from txn import errors as txn_errors

# Each is named, not found by what happens to be imported: a command needs few of them for itself.
_ERRORS: Final = (
    auth_errors,
    broker_errors,
    cluster_errors,
    commitlog_errors,
    consumequeue_errors,
    live_errors,
    ops_errors,
    rpc_errors,
    sharedlog_errors,
    tidewheel_errors,
    txn_errors,
)
ANSWER_SECONDS = 30
PROBE_BYTES_MAX: Final = 64 << 20
SEARCH_SECONDS = 600

HttpOption = Annotated[
    str | None,
    typer.Option(
        "--http",
        help="[https://]HOST:PORT of the broker's HTTP interface, of nodes with commas; else TIDEWHEEL_HTTP.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class Api:
    """A broker, over HTTP. Every call raises `BrokerUnreachable` or what the broker refused with."""

    def __init__(self, http: str | None, answer_seconds: float = ANSWER_SECONDS) -> None:
        self._calls = HttpCalls(http, program="tidewheel-cli")
        self._answer_seconds = answer_seconds

    @property
    def address(self) -> str:
        """The address that is called, of several the one that takes a connection."""
        return str(HttpAddresses((self._calls.address,)))

    def get(self, *path: str, **query: object) -> Any:
        """Ask for something."""
        return self._call("GET", f"{api_path(path)}?{urlencode(query)}")

    def search(self, *path: str, **query: object) -> Any:
        """Ask for something that the broker may have to look for all over its log."""
        return self._call("GET", f"{api_path(path)}?{urlencode(query)}", wait_seconds=SEARCH_SECONDS)

    def probe(self, path: str) -> tuple[int, str]:
        """Return the status and the text of what is no JSON interface, whatever the status.

        Raise what any call does, and what it was refused with for want of a token or a right.
        """
        try:
            with self._calls.open("GET", path, None, self._answer_seconds) as answer:
                return answer.status, answer.read(PROBE_BYTES_MAX).decode()
        except HTTPError as refusal:
            if refusal.code in (401, 403):
                self._verdict(refusal)
            return refusal.code, refusal.read(PROBE_BYTES_MAX).decode(errors="replace")
        except TimeoutError as error:
            raise self._calls.late(self._answer_seconds) from error
        except (OSError, HTTPException, ValueError) as error:
            raise self._calls.unreachable() from error

    def post(self, *path: str, body: object, wait_seconds: float = ANSWER_SECONDS) -> Any:
        """Hand something in; the broker may take `wait_seconds` for its answer."""
        return self._call("POST", api_path(path), json.dumps(body).encode(), wait_seconds)

    def delete(self, *path: str, **query: object) -> Any:
        """End something."""
        return self._call("DELETE", f"{api_path(path)}?{urlencode(query)}")

    def put(self, *path: str, body: object) -> Any:
        """Put something in its place."""
        return self._call("PUT", api_path(path), json.dumps(body).encode())

    def _call(
        self, method: str, path: str, body: bytes | None = None, wait_seconds: float | None = None
    ) -> Any:
        wait_seconds = self._answer_seconds if wait_seconds is None else wait_seconds
        try:
            with self._calls.open(method, path, body, wait_seconds) as answer:
                return json.load(answer)
        except HTTPError as refusal:
            return self._verdict(refusal)
        except TimeoutError as error:  # of an answer; that of a connection is a URLError
            raise self._calls.late(wait_seconds) from error
        except (OSError, HTTPException, ValueError) as error:
            raise self._calls.unreachable() from error

    def _verdict(self, refusal: HTTPError) -> Any:
        """Return the verdict on a timer, whatever its status; raise any other refusal."""
        try:
            said = json.load(refusal)
            refused = None if "verdict" in said else refused_with(said)
        except (OSError, ValueError, KeyError, TypeError):
            refused = self._calls.unreachable()
        if refused is not None:
            raise refused from None
        return said


def api_path(path: tuple[str, ...]) -> str:
    """Return the path of an operation, its parts as they may stand in a URL."""
    return "/api/" + "/".join(quote(part, safe="") for part in path)


def refused_with(said: dict[str, Any]) -> TidewheelError:
    """Return the error of an answer; a code of a newer broker keeps that broker's words."""
    error = error_class(said["code"])(said["detail"])
    if error.code != said["code"]:
        error.code, error.args = str(said["code"]), (str(said["message"]),)
    return error


def error_class(code: str) -> type[TidewheelError]:
    """Return the error that carries a code; that of the family if no error of a broker has the code."""
    classes = (kind for module in _ERRORS for kind in vars(module).values() if isinstance(kind, type))
    tree = (kind for kind in classes if issubclass(kind, TidewheelError))
    return next((kind for kind in tree if kind.code == code), TidewheelError)
