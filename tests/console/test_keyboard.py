"""Every action by the keyboard alone: Tab leads to its control, and Enter or Space carries it out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from tests.console.chromium import Tab
from tests.console.conftest import Stage
from tests.console.test_roles import eventually
from tests.console.verbs import ACTIONS, CASES

STOPS_MAX: Final = 1_000
AT: Final = """(() => {
  const one = document.activeElement, style = getComputedStyle(one), box = one.getBoundingClientRect();
  return {
    tag: one.tagName, type: one.type || "", name: one.name || "", value: one.value || "",
    action: one.form ? one.form.getAttribute("action") : "",
    isSkip: one.classList.contains("skip"), isMain: one.id === "content",
    isVisible: one.matches(":focus-visible") && style.outlineStyle !== "none"
      && parseFloat(style.outlineWidth) >= 2 && box.width > 0
      && box.left >= 0 && (one.matches(".scroll") ? box.top < innerHeight && box.bottom > 0
        : box.top >= 0 && box.bottom <= innerHeight + 1),
  };
})()"""


def skip_to_content(tab: Tab) -> None:
    """Use the link that leads over the menu, which is the first stop of a page."""
    tab.key("Tab")
    tab.until(f"{AT}.isSkip && {AT}.isVisible")
    tab.key("Enter")
    tab.until(f"{AT}.isMain")


def next_stop(tab: Tab) -> dict[str, Any]:
    """Go to the next stop, which must be visible once the page has scrolled to it, and return it."""
    tab.key("Tab")
    tab.until(f"document.activeElement === document.body || {AT}.isVisible")
    found: dict[str, Any] = tab.run(AT)
    return found


def fill_in(tab: Tab, tag: str, kind: str, text: str) -> None:
    """Fill in the field that has the focus."""
    if kind == "checkbox":
        tab.key(" ")
    elif tag == "SELECT":
        for _ in range(tab.run("document.activeElement.options.length")):
            if tab.run("document.activeElement.value") == text:
                break
            tab.key("ArrowDown")
        assert tab.run("document.activeElement.value") == text
    else:
        tab.type(text)


@pytest.mark.parametrize(("path", "verb"), ACTIONS, ids=[f"{path}/{verb}" for path, verb in ACTIONS])
def test_an_action_is_carried_out_by_keys(stage_of: Callable[[str], Stage], path: str, verb: str) -> None:
    stage, action = stage_of(path), f"{path}/{verb}"
    case = CASES[path, verb](stage.world)
    tab, left = stage.tab("admin"), dict(case.typed)
    tab.show_as((1280, 900))
    tab.open(stage.url + case.page)
    tab.until(f"document.querySelector('form[action=\"{action}\"]')")
    skip_to_content(tab)
    for _ in range(STOPS_MAX):
        at = next_stop(tab)
        if at["action"] == action:
            if at["tag"] == "BUTTON":
                break
            if at["name"] in left:
                fill_in(tab, at["tag"], at["type"], left.pop(at["name"]))
    assert not left
    assert not case.is_done()
    tab.key("Enter" if len(verb) % 2 else " ")
    tab.shows(case.said)
    assert eventually(case.is_done)


def test_every_stop_of_a_page_is_seen_and_left(stage: Stage) -> None:
    tab = stage.tab("admin")
    tab.open(f"{stage.url}/timers")
    assert next_stop(tab)["isSkip"]
    for _ in range(STOPS_MAX):
        if next_stop(tab)["isSkip"]:
            break
    else:
        pytest.fail("the page keeps the focus")
