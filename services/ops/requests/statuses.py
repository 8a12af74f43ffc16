"""The conversion of errors to HTTP answers.

    {"code": "TW-nnn", "detail": ..., "message": ...}   with the status of the error in `HTTP_STATUSES`

Every error answer has this form, for example a refusal, an unknown path, a failed disk, or a defect of the
broker.
"""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from typing_extensions import TypedDict

from services.auth.errors import Unauthorized
from services.live.errors import make_read_error
from services.ops.requests.errors import BodyNotJson, BodyUnfinished, RequestTooLarge
from tidewheel.errors import (
    AccessRefused,
    BodyTooLarge,
    Busy,
    ClientMistake,
    NotFound,
    RefusedByState,
    TidewheelError,
)

WRONG_METHOD = 405
_ASKED_CHARACTERS_MAX = 200
HTTP_STATUSES = (
    (BodyNotJson, 415),
    (BodyUnfinished, 408),
    (RequestTooLarge, 413),
    (BodyTooLarge, 413),
    (ClientMistake, 400),
    (Unauthorized, 401),
    (AccessRefused, 403),
    (NotFound, 404),
    (RefusedByState, 409),
    (Busy, 503),
)


class ErrorAnswer(TypedDict):
    """An error.

    `code` is stable, `message` is a text for users, and `detail` contains the cause and the next step.
    """

    code: str
    detail: str
    message: str


def error_shape(error: TidewheelError) -> ErrorAnswer:
    """Return an error in JSON form."""
    return {"code": error.code, "detail": error.detail, "message": str(error)}


async def refuse(request: Request, error: Exception) -> JSONResponse:
    """Return an answer for an error, with the status of its class."""
    assert isinstance(error, TidewheelError)
    status = next((status for kind, status in HTTP_STATUSES if isinstance(error, kind)), 500)
    is_unread = isinstance(error, BodyUnfinished | RequestTooLarge)  # the rest of the body is not read
    said = {"Connection": "close"} if is_unread else {}
    said |= {"WWW-Authenticate": "Bearer"} if isinstance(error, Unauthorized) else {}
    return JSONResponse(error_shape(error), status_code=status, headers=said)


async def disk_failed(request: Request, error: Exception) -> JSONResponse:
    """Return an answer for a read that a disk failure has interrupted."""
    assert isinstance(error, OSError)
    if error.errno is None:  # a time-out, which is not a disk failure
        return await bug(request, error)
    return await refuse(request, make_read_error(error))


async def bug(request: Request, error: Exception) -> JSONResponse:
    """Return an answer for a defect of the broker."""
    answer: ErrorAnswer = {
        "code": "TW-100",
        "detail": "",
        "message": "The broker has met a bug; its log says more. Report it.",
    }
    return JSONResponse(answer, status_code=500)


async def unknown(request: Request, error: Exception) -> JSONResponse:
    """Return an answer for an unknown path."""
    assert isinstance(error, HTTPException)
    has_slash = b"%2f" in request.scope.get("raw_path", b"").lower()
    slash = " No name in a path has a slash (%2F): give keys in the body or the query." if has_slash else ""
    said = NotFound(f"{_asked(request)} is not served here; /openapi.json lists what is.{slash}")
    return JSONResponse(error_shape(said), status_code=error.status_code, headers=error.headers)


async def wrong_method(request: Request, error: Exception) -> JSONResponse:
    """Return an answer for a method that the path does not support."""
    assert isinstance(error, HTTPException)
    path, routes = request.scope["path"], (one for one in request.app.routes if isinstance(one, Route))
    served = [one.methods or set() for one in routes if one.path_regex.match(path)]
    allowed = ", ".join(sorted(set().union(*served) - {"HEAD"}))
    said = ClientMistake(f"{_asked(request)} is not served here; this path takes {allowed}.")
    return JSONResponse(error_shape(said), status_code=error.status_code, headers={"Allow": allowed})


def _asked(request: Request) -> str:
    return f"{request.method} {request.url.path}"[:_ASKED_CHARACTERS_MAX]
