"""Debian's Chromium without a window, driven over the DevTools pipe: no driver, no port, no library."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

PROGRAM: Final = shutil.which("chromium") or shutil.which("chromium-browser")
WAIT_SECONDS: Final = 30
LOOK_AGAIN_SECONDS: Final = 0.05
FLAGS: Final = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe"),
    *("--host-resolver-rules=MAP *.example 127.0.0.1", "--disable-popup-blocking"),
)
"""The names of sites below `example` lead to this machine."""
KEYS: Final = {"Tab": 9, "Enter": 13, " ": 32, "ArrowDown": 40}
"""Keys that a test presses, with their codes."""
SHIFT: Final = 8


class ScriptFailed(Exception):
    """JavaScript of a test threw in the page."""


class Tab:
    """One tab. Its calls wait until the page has loaded."""

    def __init__(self, pipe: Pipe, size: tuple[int, int] = (1280, 900), *, profile: str = "") -> None:
        self._pipe, self.profile = pipe, profile
        place = {"browserContextId": profile} if profile else {}
        target = pipe.call("Target.createTarget", url="about:blank", **place)["targetId"]
        self._session = pipe.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._call("Page.enable")
        self._call("Runtime.enable")
        self._call("Emulation.setFocusEmulationEnabled", enabled=True)
        self.show_as(size)

    def show_as(self, size: tuple[int, int], *, is_dark: bool = False) -> None:
        """Set the size of the window in pixels, and the colours that its user prefers."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=size[0],
            height=size[1],
            deviceScaleFactor=1,
            mobile=size[0] < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def without_scripts(self) -> None:
        """Run no scripts of pages from now on; those of the test run all the same."""
        self._call("Emulation.setScriptExecutionDisabled", value=True)

    def set_cookie(self, url: str, name: str, value: str) -> None:
        """Set a cookie of a site."""
        self._call("Network.setCookie", url=url, name=name, value=value)

    def open(self, url: str) -> None:
        """Go to a page."""
        self._call("Page.navigate", url=url)
        self.until("location.href !== 'about:blank' && document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """Return what an expression is; promises are awaited."""
        asked = {"expression": script, "returnByValue": True, "awaitPromise": True}
        said = self._call("Runtime.evaluate", **asked)
        if "exceptionDetails" in said:
            raise ScriptFailed(said["exceptionDetails"].get("exception", {}).get("description", str(said)))
        return said["result"].get("value")

    def until(self, script: str) -> None:
        """Wait until an expression is true, over page loads."""
        end_s = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < end_s:
            try:
                if self.run(f"Boolean({script})"):
                    return
            except (ScriptFailed, PipeError):  # between two pages there is no document
                pass
            time.sleep(LOOK_AGAIN_SECONDS)
        raise AssertionError(f"{script} stays false; the page says:\n{self.text()}")

    def text(self) -> str:
        """Return what the page says."""
        return str(self.run("document.body ? document.body.innerText : ''"))

    def shows(self, text: str) -> None:
        """Wait until the page says something."""
        self.until(f"document.body.innerText.includes({json.dumps(text)})")

    def fill(self, form: str, **fields: str) -> None:
        """Fill in a form, chosen by a selector; a box whose field is given is checked."""
        for name, text in fields.items():
            place = json.dumps(f"{form} [name={json.dumps(name)}]")
            self.until(f"document.querySelector({place})")
            field = f"const field = document.querySelector({place});"
            value = f"field.value = {json.dumps(text)}"
            self.run(f"{{ {field} if (field.type === 'checkbox') field.checked = true; else {value}; }}")

    def press(self, button: str) -> None:
        """Press a button, chosen by a selector, and wait for the next page."""
        place = json.dumps(button)
        self.until(f"document.querySelector({place})")
        self.run(f"window.isOld = true; document.querySelector({place}).click()")
        self.until("!window.isOld && document.readyState === 'complete'")

    def click_at(self, x: float, y: float) -> None:
        """Click with the mouse at a point of the window."""
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            held = {"button": "left", "clickCount": 1} if kind != "mouseMoved" else {}
            self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **held)

    def key(self, key: str, *, is_shifted: bool = False) -> None:
        """Press and release a key."""
        text = {"Enter": "\r", " ": " "}.get(key, "")
        said = {
            "key": key,
            "code": {" ": "Space"}.get(key, key),
            "windowsVirtualKeyCode": KEYS[key],
            "modifiers": SHIFT if is_shifted else 0,
        }
        self._call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **said)
        self._call("Input.dispatchKeyEvent", type="keyUp", **said)

    def press_characters(self, text: str) -> None:
        """Press the key of each character, which also chooses an option of a list."""
        for character in text:
            self._call("Input.dispatchKeyEvent", type="char", text=character)

    def type(self, text: str) -> None:
        """Type a text into the field that has the focus, in place of its content."""
        self.run("document.activeElement.select && document.activeElement.select()")
        self._call("Input.insertText", text=text)

    def close(self) -> None:
        """Close the tab."""
        self._call("Page.close")

    def picture(self, path: Path, *, is_whole: bool = True) -> None:
        """Write a picture of the whole page, or of the part in the window."""
        said = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=is_whole)
        path.write_bytes(base64.b64decode(said["data"]))

    def _call(self, method: str, **parameters: Any) -> Any:
        return self._pipe.call(method, self._session, **parameters)


def new_profile(pipe: Pipe) -> str:
    """Return a profile with cookies of its own."""
    return str(pipe.call("Target.createBrowserContext")["browserContextId"])


class PipeError(Exception):
    """Chromium refused a call."""


class Pipe:
    """Messages to and from Chromium: JSON with a NUL behind each."""

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back = to, back
        self._unread, self._count = b"", 0

    def call(self, method: str, session: str = "", **parameters: Any) -> Any:
        """Return the answer to a call; events that come before it are dropped."""
        self._count += 1
        said = {"id": self._count, "method": method, "params": parameters}
        os.write(self._to, json.dumps(said | ({"sessionId": session} if session else {})).encode() + b"\0")
        while (heard := self._next()).get("id") != self._count:
            pass
        if "error" in heard:
            raise PipeError(f"{method}: {heard['error']}")
        return heard["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            part = os.read(self._back, 1 << 16)
            if not part:
                raise PipeError("Chromium has ended")
            self._unread += part
        message, _, self._unread = self._unread.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found


@contextmanager
def chromium(folder: Path) -> Iterator[Pipe]:
    """Run Chromium with a profile of its own."""
    assert PROGRAM, "apt-get install chromium"
    their_in, to = os.pipe()
    back, their_out = os.pipe()

    def with_pipes() -> None:
        kept_in, kept_out = os.dup(their_in), os.dup(their_out)
        os.dup2(kept_in, 3)
        os.dup2(kept_out, 4)

    with open(folder / "chromium.log", "wb") as said:
        process = subprocess.Popen(
            [PROGRAM, *FLAGS, f"--user-data-dir={folder / 'profile'}"],
            stdin=subprocess.DEVNULL, stdout=said, stderr=said, close_fds=False, preexec_fn=with_pipes,
        )  # fmt: skip
    os.close(their_in)
    os.close(their_out)
    try:
        yield Pipe(to, back)
    finally:
        os.close(to)
        os.close(back)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
