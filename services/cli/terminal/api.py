"""The broker API client of the commands, and the options that specify the broker.

An error answer is raised as the same error class as in the broker, with its code and exit code.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from commitlog import errors as commitlog_errors
from consumequeue.filters import errors as consumequeue_errors
from services.auth import errors as auth_errors
from services.broker.spine import errors as broker_errors
from services.cluster import errors as cluster_errors
from services.http.api import Api
from services.live import errors as live_errors
from services.ops.requests import errors as ops_errors
from services.rpc.wire import errors as rpc_errors
from sharedlog import errors as sharedlog_errors
from tidewheel import errors as tidewheel_errors
from tidewheel.errors import TidewheelError
from txn import errors as txn_errors

# The modules are listed explicitly, because a command imports only a few of them itself.
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
SEARCH_SECONDS = 600

HttpOption = Annotated[
    str | None,
    typer.Option(
        "--http",
        help="[https://]HOST:PORT of the broker, or of nodes, with commas; default: TIDEWHEEL_HTTP.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def broker_at(http: str | None, answer_seconds: float = ANSWER_SECONDS) -> Api:
    """Return the API of the broker at `http`, or at the address from the environment."""
    return Api(
        http,
        lambda _, said: refused_with(said),
        answer_seconds=answer_seconds,
        search_seconds=SEARCH_SECONDS,
        verb_seconds=ANSWER_SECONDS,
        program="tidewheel-cli",
    )


def refused_with(said: dict[str, Any]) -> TidewheelError:
    """Return the error for an error answer. If the code is unknown, the broker's message is kept."""
    error = error_class(said["code"])(said["detail"])
    if error.code != said["code"]:
        error.code, error.args = str(said["code"]), (str(said["message"]),)
    return error


def error_class(code: str) -> type[TidewheelError]:
    """Return the error class with a code, or `TidewheelError` if there is none."""
    classes = (kind for module in _ERRORS for kind in vars(module).values() if isinstance(kind, type))
    tree = (kind for kind in classes if issubclass(kind, TidewheelError))
    return next((kind for kind in tree if kind.code == code), TidewheelError)
