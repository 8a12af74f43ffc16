"""A console of its own for tests, and a browser without a window or scripts: links, forms, cookies."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import urllib.request
from collections.abc import Mapping
from http.cookiejar import CookieJar
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit

from tidewheel.command import COMMAND, without_settings


class ConsoleProcess:
    """`tidewheel console` beside a broker; `link` is its one-time link."""

    def __init__(self, environ: Mapping[str, str], http: str, *options: str, **variables: str) -> None:
        self._process = subprocess.Popen(
            [*COMMAND, "console", "--http", http, "--listen", "127.0.0.1:0", *options],
            stdout=subprocess.PIPE, text=True, env=without_settings(environ) | variables,
        )  # fmt: skip
        assert self._process.stdout is not None
        said = self._process.stdout.readline() + self._process.stdout.readline()
        self.link = re.findall(r"http://\S+/enter\?key=\S+", said)[0]
        self.url = self.link.partition("/enter")[0]

    def stop(self) -> int:
        """Stop it; return its exit code."""
        self._process.send_signal(signal.SIGTERM)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return self._process.wait(30)


class Answer:
    """What came back: its status, text, header fields, and the URL that it came from."""

    def __init__(self, response: Any) -> None:
        self.status, self.url, self.headers = response.status, response.url, response.headers
        self.text: str = response.read().decode()

    @property
    def json(self) -> Any:
        """The text as JSON."""
        return json.loads(self.text)


class Browser:
    """A browser of one user."""

    def __init__(self, link: str) -> None:
        self.site = ""
        self.cookies = CookieJar()
        keeping = urllib.request.HTTPCookieProcessor(self.cookies)
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), keeping)
        self.entered = self.open(link)
        self.site = "{0.scheme}://{0.netloc}".format(urlsplit(self.entered.url))

    def open(self, path: str, data: bytes | None = None, **headers: str) -> Answer:
        """Go to a page."""
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        url = path if path.startswith("http") else self.site + path
        request = urllib.request.Request(url, data, {"Accept": "text/html"} | named)
        try:
            with self._opener.open(request, timeout=60) as response:
                return Answer(response)
        except HTTPError as refusal:
            return Answer(refusal)

    def model(self, path: str) -> Any:
        """Return a page's JSON twin."""
        answer = self.open(path, Accept="application/json")
        assert answer.status == 200, answer.text
        return answer.json

    def post(self, path: str, **fields: str) -> Answer:
        """Send a form of the site."""
        return self.open(path, urlencode(fields).encode(), Origin=self.site)
