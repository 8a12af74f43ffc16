"""An operator at a browser or a terminal: steps that are executed, counted and timed.

A step in the console names an element of the page by its text: a link or button to click, a field by its
label. Clicks are mouse events at the position of the text, and texts are typed as keys. A step fails if the
page does not contain the text. In a step, `{name}` is a value of the situation.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from parts.serving import ROOT

sys.path.insert(0, str(ROOT))

from tests.console.chromium import Pipe, Tab

SCREEN: Final = (1280, 800)
WAIT_SECONDS: Final = 30
COMMAND: Final = (sys.executable, "-m", "services.cli.main")
Values = Mapping[str, str]
FIND: Final = """
((kind, text, near) => {
  const plain = (one) => (one.innerText || one.value || "").replace(/\\s+/g, " ").trim();
  const boxes = "tr, li, fieldset, .lights > div, form, section";
  const holding = () => [...document.querySelectorAll(boxes)].filter((one) => plain(one).includes(near));
  const scopes = near ? holding().sort((a, b) => plain(a).length - plain(b).length) : [document];
  const own = (one) => [...one.childNodes].filter((part) => part.nodeType === 3);
  const named = {
    click: (one) => plain(one),
    fill: (one) => own(one).map((part) => part.data).join(" ").trim(),
  }[kind];
  const kinds = { click: "a, button", fill: "label" };
  for (const scope of scopes) {
    const seen = [...scope.querySelectorAll(kinds[kind])].filter((one) => one.getClientRects().length);
    const fits = [(one) => one === text, (one) => one.startsWith(text), (one) => one.includes(text)];
    const found = fits.map((fit) => seen.find((one) => fit(named(one)))).find(Boolean);
    if (!found) continue;
    const target = kind === "fill" ? found.control : found;
    const before = target.getBoundingClientRect();
    const isSeen = before.top >= 0 && before.bottom <= innerHeight;
    if (!isSeen) target.scrollIntoView({ block: "center" });
    const box = target.getClientRects()[0];
    const [x, y] = [box.left + Math.min(box.width / 2, 40), box.top + box.height / 2];
    return { x, y, isSeen, tag: target.tagName + ":" + target.type };
  }
  return null;
})
"""
SEEN: Final = """
((text) => {
  const plain = (one) => (one.innerText || "").replace(/\\s+/g, " ");
  const all = [...document.querySelectorAll("main *")];
  const found = all.filter((one) => plain(one).includes(text) && one.getClientRects().length);
  if (!found.length) return null;
  const box = found.at(-1).getBoundingClientRect();
  return box.top >= 0 && box.top + 20 <= innerHeight;
})
"""
"""Returns whether the last element with a text is in the window; null if there is none."""


class Click(NamedTuple):
    """Click the link or button with this text, in the row or box with the text `near`."""

    text: str
    near: str = ""


class Fill(NamedTuple):
    """Type a text into the field with this label, choose an option, or tick a box; optionally press Enter."""

    label: str
    text: str
    near: str = ""
    is_sent: bool = False


class Sees(NamedTuple):
    """Find a text on the page."""

    text: str


class Type(NamedTuple):
    """Type a command whose output contains the text `sees`."""

    line: str
    sees: str = ""


Step = Click | Fill | Sees


@dataclass
class Task:
    """One task: its steps in the console and its commands; `holds` checks the effect at the broker
    (a `situations.Broker`)."""

    name: str
    console: Sequence[Step]
    commands: Sequence[Type]
    holds: Callable[[Any, Values], bool] = lambda *_: True


@dataclass
class Counts:
    """Effort of a task in the console. Enter in a field counts as a click.

    `scrolls` counts the steps whose text was outside of the window.
    """

    clicks: int = 0
    fields: int = 0
    pages: int = 1
    scrolls: int = 0
    seconds: float = 0.0
    path: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the counts as plain values."""
        return asdict(self)


class Operator:
    """A browser whose tasks begin at the overview."""

    def __init__(self, pipe: Pipe, link: str) -> None:
        self._tab = Tab(pipe, SCREEN)
        self._tab.open(link)
        self._site = str(self._tab.run("location.origin"))

    def carry_out(self, task: Task, values: Values, pictures: Path | None = None) -> Counts:
        """Execute a task from the overview on.

        With `pictures`, write the window to that folder before each step that is not a `Fill`; the time of
        the pictures is not counted.
        """
        self._tab.open(f"{self._site}/")
        self._tab.shows("Overview")
        counts, began, paused_s = Counts(), time.monotonic(), 0.0
        for number, step in enumerate(task.console):
            filled = with_values(step, values)
            if pictures and not isinstance(step, Fill):
                pause = time.monotonic()
                self._tab.picture(pictures / f"{task.name.replace(' ', '-')}-{number}.png", is_whole=False)
                paused_s += time.monotonic() - pause
            self._do(filled, counts)
        counts.seconds = round(time.monotonic() - began - paused_s, 2)
        return counts

    def _do(self, step: Step, counts: Counts) -> None:
        match step:
            case Click():
                self._click(step, counts)
            case Fill():
                self._fill(step, counts)
            case Sees():
                is_in_window = self._until(f"{SEEN}({json.dumps(step.text)})", step)
                counts.scrolls += not is_in_window

    def _click(self, step: Click, counts: Counts) -> None:
        place = self._found("click", step.text, step.near, step)
        counts.clicks += 1
        counts.scrolls += not place["isSeen"]
        self._leave(lambda: self._tab.click_at(place["x"], place["y"]), counts)

    def _fill(self, step: Fill, counts: Counts) -> None:
        place = self._found("fill", step.label, step.near, step)
        counts.fields += 1
        counts.scrolls += not place["isSeen"]
        if place["tag"].startswith("SELECT"):  # by keyboard: its list is no part of the page
            self._tab.run(f"document.elementFromPoint({place['x']}, {place['y']}).focus()")
            self._tab.press_characters(step.text)
            return
        self._tab.click_at(place["x"], place["y"])
        if place["tag"].endswith(":checkbox"):
            return
        self._tab.run("document.activeElement.select()")
        self._tab.type(step.text)
        if step.is_sent:
            counts.clicks += 1
            self._leave(lambda: self._tab.key("Enter"), counts)

    def _leave(self, act: Callable[[], None], counts: Counts) -> None:
        """Do an action that leads to another page, and wait for that page."""
        self._tab.run("window.isOld = true")
        act()
        self._tab.until("!window.isOld && document.readyState === 'complete'")
        counts.pages += 1
        counts.path.append(str(self._tab.run("location.pathname")))

    def _found(self, kind: str, text: str, near: str, step: Step) -> dict[str, Any]:
        asked = ", ".join(map(json.dumps, (kind, text, near)))
        found: dict[str, Any] = self._until(f"{FIND}({asked})", step)
        return found

    def _until(self, script: str, step: Step) -> Any:
        """Return the result of a script once it is not null.

        Raise AssertionError with the page's text if it is null for `WAIT_SECONDS`.
        """
        end_s = time.monotonic() + WAIT_SECONDS
        while (found := self._tab.run(script)) is None:
            assert time.monotonic() < end_s, f"{step} is not on the page:\n{self._tab.text()}"
            time.sleep(0.05)
        return found


def with_values(step: Step, values: Values) -> Step:
    """Return a step with the values of the situation inserted in its texts."""
    match step:
        case Click(text, near):
            return Click(text.format(**values), near.format(**values))
        case Fill(label, text, near, is_sent):
            return Fill(label, text.format(**values), near, is_sent)
        case Sees(text):
            return Sees(text.format(**values))


def typed(task: Task, values: Values, environment: Mapping[str, str]) -> dict[str, Any]:
    """Run the commands of a task in a shell; return their number and total seconds."""
    began, folder = time.monotonic(), values["folder"]
    for step in task.commands:
        line, sees = step.line.format(**values), step.sees.format(**values)
        program = " ".join(COMMAND)
        ran = subprocess.run(
            ["bash", "-c", re.sub(r"^tidewheel\b", program, line)],
            cwd=folder,
            env=os.environ | environment | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert sees in ran.stdout + ran.stderr, f"{line}\n{ran.stdout}{ran.stderr}\nlacks: {sees}"
    return {"commands": len(task.commands), "seconds": round(time.monotonic() - began, 2)}
