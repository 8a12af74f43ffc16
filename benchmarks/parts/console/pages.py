"""The console as a process, readers of its pages without a browser, and pictures of the pages."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from parts.serving import ROOT

sys.path.insert(0, str(ROOT))

from tests.console.chromium import Tab, chromium

MAIN_PAGES: Final = ("/", "/timers", "/transactions", "/groups", "/dead-letters", "/topics")
PAGES: Final = (
    *MAIN_PAGES,
    "/messages",
    "/messages?name=order:7",
    "/timers?key=order:7",
    "/timers?topic=shop-1",
    "/topics/one?name=shop-1",
    "/topics/send?name=shop-1",
    "/topics/change?name=shop-1",
    "/search?topic=mails&text=mail",
    "/schedules",
    "/groups/one?name=group-1",
    "/dead-letters/group?group=mailer",
    "/tasks",
    "/clients",
    "/refused",
    "/cluster",
    "/audits",
    "/journal",
)
NARROW, WIDE, HEIGHT = 390, 1280, 900


@contextmanager
def console(http: str, folder: Path) -> Iterator[str]:
    """Run `tidewheel console` for a broker; yield its one-time link."""
    command = [sys.executable, "-m", "services.cli.main", "console"]
    command += ["--http", http, "--listen", "127.0.0.1:0"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        said = process.stdout.readline() + process.stdout.readline()
        yield re.findall(r"http://\S+/enter\?key=\S+", said)[0]
    finally:
        process.terminate()
        process.wait()


class Visitor:
    """A session that reads pages; each call opens a connection."""

    def __init__(self, host: str, port: int, cookie: str) -> None:
        self._host, self._port, self.cookie = host, port, cookie

    @classmethod
    async def entered(cls, link: str) -> Visitor:
        """Open a session with a one-time link."""
        url = urlsplit(link)
        assert url.hostname is not None
        assert url.port is not None
        visitor = cls(url.hostname, url.port, "")
        answer, _ = await visitor._get(f"{url.path}?{url.query}")
        visitor.cookie = re.findall(rb"set-cookie: ([^;]+)", answer, re.IGNORECASE)[0].decode()
        return visitor

    async def first_byte_ms(self, path: str, *, refresh: bool = False) -> float:
        """Read a page; return the time to the first byte of the answer, in ms."""
        answer, first_ms = await self._get(path, refresh)
        assert answer.startswith(b"HTTP/1.1 200"), (path, answer[:2000])
        return first_ms

    async def _get(self, path: str, refresh: bool = False) -> tuple[bytes, float]:
        began = time.perf_counter()
        reader, writer = await asyncio.open_connection(self._host, self._port)
        head = f"GET {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nAccept: text/html\r\n"
        head += "X-Refresh: page\r\n" if refresh else ""
        writer.write(f"{head}Cookie: {self.cookie}\r\nConnection: close\r\n\r\n".encode())
        first = await reader.read(1)
        first_ms = (time.perf_counter() - began) * 1e3
        answer = first + await reader.read()
        writer.close()
        return answer, first_ms


def take_pictures(cookie: str, site: str, folder: Path) -> None:
    """Write a wide picture of each page, and also a narrow and a dark one of the main pages."""
    folder.mkdir(parents=True, exist_ok=True)
    profile = folder / "profile"
    profile.mkdir(exist_ok=True)
    with chromium(profile) as pipe:
        name, _, value = cookie.partition("=")
        for label, width, is_dark, pages in (
            ("wide", WIDE, False, PAGES),
            ("narrow", NARROW, False, MAIN_PAGES),
            ("dark", WIDE, True, MAIN_PAGES),
        ):
            tab = Tab(pipe, (width, HEIGHT))
            tab.show_as((width, HEIGHT), is_dark=is_dark)
            tab.set_cookie(site, name, value)
            for page in pages:
                tab.open(site + page)
                name_of_page = re.sub(r"[^a-z0-9]+", "-", page).strip("-") or "overview"
                tab.picture(folder / f"{label}-{name_of_page}.png")
