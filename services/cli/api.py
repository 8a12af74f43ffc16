"""The broker's HTTP interface, as the commands call it.

What a broker refuses comes back as the error of the tree it was there, with its code and exit code. A verdict
on a timer is an answer, not an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPException
from typing import Annotated, Any
from urllib.error import HTTPError
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

import typer

from commitlog.errors import BrokerUnreachable, TidewheelError
from services.config import Address, ClientSettings, load, secret_in

ANSWER_SECONDS = 30
SEARCH_SECONDS = 600

HttpOption = Annotated[
    str | None, typer.Option("--http", help="HOST:PORT of the broker's HTTP interface; else TIDEWHEEL_HTTP.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class Api:
    """A broker, over HTTP. Every call raises `BrokerUnreachable` or what the broker refused with."""

    def __init__(self, http: str | None) -> None:
        settings = load(ClientSettings, http=http)
        self._address: Address = settings.http
        self._token = secret_in(settings.http_token, "http_token")

    def get(self, *path: str, **query: object) -> Any:
        """Ask for something."""
        return self._call(Request(f"{self._url(path)}?{urlencode(query)}"))

    def search(self, *path: str, **query: object) -> Any:
        """Ask for something that the broker may have to look for all over its log."""
        return self._call(Request(f"{self._url(path)}?{urlencode(query)}"), SEARCH_SECONDS)

    def post(self, *path: str, body: object, wait_seconds: float = ANSWER_SECONDS) -> Any:
        """Hand something in; the broker may take `wait_seconds` for its answer."""
        data = json.dumps(body).encode()
        return self._call(Request(self._url(path), data=data, method="POST"), wait_seconds)

    def delete(self, *path: str, **query: object) -> Any:
        """End something."""
        return self._call(Request(f"{self._url(path)}?{urlencode(query)}", method="DELETE"))

    def put(self, *path: str, body: object) -> Any:
        """Put something in its place."""
        return self._call(Request(self._url(path), data=json.dumps(body).encode(), method="PUT"))

    def _url(self, path: tuple[str, ...]) -> str:
        return f"http://{self._address}/api/" + "/".join(quote(part, safe="") for part in path)

    def _call(self, request: Request, wait_seconds: float = ANSWER_SECONDS) -> Any:
        if self._token:
            request.add_header("Authorization", f"Bearer {self._token}")
        try:
            with urlopen(request, timeout=wait_seconds) as answer:
                return json.load(answer)
        except HTTPError as refusal:
            return self._verdict(refusal)
        except (OSError, HTTPException, ValueError) as error:
            raise self._unreachable() from error

    def _verdict(self, refusal: HTTPError) -> Any:
        """Return the verdict on a timer, whatever its status; raises any other refusal."""
        try:
            said = json.load(refusal)
            refused = None if "verdict" in said else error_class(said["code"])(said["detail"])
        except (OSError, ValueError, KeyError, TypeError):
            refused = self._unreachable()
        if refused is not None:
            raise refused from None
        return said

    def _unreachable(self) -> BrokerUnreachable:
        return BrokerUnreachable(
            f"There is no Tidewheel HTTP interface at {self._address}."
            " Start a broker with 'tidewheel serve', or name its HTTP address with --http."
        )


def error_class(code: str) -> type[TidewheelError]:
    """Return the class of the tree that carries a code."""
    return next((kind for kind in error_classes(TidewheelError) if kind.code == code), TidewheelError)


def error_classes(root: type[TidewheelError]) -> Iterator[type[TidewheelError]]:
    """Yield a class of the tree and everything below it."""
    yield root
    for below in root.__subclasses__():
        yield from error_classes(below)
