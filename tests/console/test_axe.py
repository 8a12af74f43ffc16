"""No page has a serious or critical violation: filled or empty, light or dark, wide or narrow."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from tests.console.axe import axe_script, violations
from tests.console.chromium import Pipe, Tab, new_profile
from tests.console.conftest import Stage
from tests.console.verbs import CASES, PAGES, World
from tests.console_process import ConsoleProcess
from tidewheel.testing.process import BrokerProcess

SIZES: Final = ((1280, 900), (390, 800))
BY_THEMSELVES: Final = (
    *("/", "/messages", "/search", "/topics", "/topics/send", "/timers", "/schedules", "/schedules/set"),
    *("/transactions", "/groups", "/dead-letters", "/tasks", "/clients", "/refused", "/cluster", "/audits"),
    "/journal",
)
"""Pages that need no object in their query."""


def topic_of(world: World) -> str:
    return f"/topics/one?name={world.topic(3)}"


def calendar(world: World) -> str:
    return f"/timers?topic={world.timer()[0]}"


def life(world: World) -> str:
    return f"/messages?name=k&topic={world.timer()[0]}"


def found(world: World) -> str:
    return f"/search?topic={world.topic(3)}&text=b"


def letters(world: World) -> str:
    return f"/dead-letters/group?group={world.dead_letters()[0]}"


OTHERS: Final[dict[str, Callable[[World], str]]] = {
    "/topics/one": topic_of,
    "/dead-letters/group": letters,
    "/audits/run": lambda world: "/audits/run?run=20261121T020000Z",
    "/audits/order": lambda world: "/audits/order?run=20261121T020000Z&order=7",
    "/clients/stack": lambda world: f"/clients/stack?client={world.client}",
}
"""Pages without an action that need an object."""
MORE: Final = (calendar, life, found)
"""Pages that show more with a query."""
WITH_ACTIONS: Final = {path: case for (path, _), case in CASES.items()}
KNOWN: Final = {*BY_THEMSELVES, *OTHERS, *WITH_ACTIONS}


@pytest.fixture(scope="session")
def axe() -> str:
    return axe_script()


@pytest.fixture(scope="module")
def empty(pipe: Pipe, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Tab, str]]:
    """A tab at the console of a broker with an empty store."""
    folder = tmp_path_factory.mktemp("empty")
    broker = BrokerProcess(folder)
    broker.start()
    console = ConsoleProcess(os.environ, broker.http, "--audits", str(folder / "none"))
    tab = Tab(pipe, profile=new_profile(pipe))
    tab.open(console.link)
    yield tab, console.url
    console.stop()
    broker.stop()


def check(tab: Tab, url: str, axe: str) -> None:
    """Check a page in light and dark colours, wide and narrow."""
    tab.open(url)
    tab.until("document.querySelector('main h1')")
    tab.run("document.querySelector('main').dataset.everyMs = 0")
    wrong = []
    for size in SIZES:
        for is_dark in (False, True):
            tab.show_as(size, is_dark=is_dark)
            wrong += [(size, is_dark, one) for one in violations(tab, axe)]
    assert not wrong, "\n".join(map(str, wrong))


def test_a_picture_without_a_text_is_found(stage: Stage, axe: str) -> None:
    tab = stage.tab("viewer")
    tab.open(f"{stage.url}/topics")
    tab.run("document.querySelector('main').append(document.createElement('img'))")
    assert [one["rule"] for one in violations(tab, axe)] == ["image-alt"]


def test_every_page_is_looked_at() -> None:
    assert {page.path for page in PAGES} == KNOWN


@pytest.mark.parametrize("path", BY_THEMSELVES)
def test_an_empty_page_is_accessible(empty: tuple[Tab, str], axe: str, path: str) -> None:
    tab, url = empty
    check(tab, url + path, axe)


@pytest.mark.parametrize("path", sorted(KNOWN))
def test_a_filled_page_is_accessible(stage_of: Callable[[str], Stage], axe: str, path: str) -> None:
    stage = stage_of(path)
    pages = [path] if path in BY_THEMSELVES else []
    if path in OTHERS:
        pages.append(OTHERS[path](stage.world))
    if path in WITH_ACTIONS:
        pages.append(WITH_ACTIONS[path](stage.world).page)
    for page in dict.fromkeys(pages):
        check(stage.tab("admin"), stage.url + page, axe)


@pytest.mark.parametrize("made", MORE)
def test_a_page_with_rows_is_accessible(stage: Stage, axe: str, made: Callable[[World], str]) -> None:
    check(stage.tab("admin"), stage.url + made(stage.world), axe)


@pytest.mark.parametrize("path", ["/sign-in", "/nowhere", "/timers?view=year"])
def test_a_page_that_is_none_is_accessible(stage: Stage, axe: str, path: str) -> None:
    check(stage.tab("viewer"), stage.url + path, axe)


def test_a_page_that_is_read_only_for_its_user_is_accessible(stage: Stage, axe: str) -> None:
    page = CASES["/topics/change", "purge"](stage.world).page
    check(stage.tab("viewer"), stage.url + page, axe)
