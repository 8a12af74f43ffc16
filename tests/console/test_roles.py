"""Every action of every page as a viewer, an operator and an administrator, who sign in by the form."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Final
from urllib.parse import urlencode

import pytest

from services.console.rights import NEEDS
from tests.console.chromium import Tab
from tests.console.conftest import ROLES, Stage
from tests.console.verbs import ACTIONS, CASES, Case

WAIT_SECONDS: Final = 60
OF_ADMINS: Final = ("/schedules", "/tasks", "/clients", "/cluster")
"""The pages whose actions concern the whole broker, so that an operator may not use them."""
NAMED_IN_FORM: Final = (("/topics", "create"),)
"""Actions on a topic that the form names: an operator of other topics is offered them, and is refused."""


def may(role: str, path: str) -> bool:
    """Return whether a role may carry out the actions of a page on the objects of the tests."""
    return role == "admin" or (role == "operator" and not path.startswith(OF_ADMINS))


def eventually(is_so: Callable[[], bool]) -> bool:
    """Return whether a condition becomes true."""
    ends = time.monotonic() + WAIT_SECONDS
    while not is_so():
        if time.monotonic() > ends:
            return False
    return True


def test_every_action_has_a_case_and_its_needs() -> None:
    assert sorted(CASES) == sorted(ACTIONS)
    assert sorted(NEEDS) == sorted(ACTIONS)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(("path", "verb"), ACTIONS, ids=[f"{path}/{verb}" for path, verb in ACTIONS])
def test_a_role_does_what_it_may_and_is_offered_nothing_else(
    stage_of: Callable[[str], Stage], role: str, path: str, verb: str
) -> None:
    stage, action = stage_of(path), f"{path}/{verb}"
    case = CASES[path, verb](stage.world)
    if not may(role, path):
        fields = stage.form(case.page, action)
        check_refused(stage, role, (path, verb), case, fields | case.typed)
        return
    tab, form = stage.tab(role), f'form[action="{action}"]'
    tab.open(stage.url + case.page)
    tab.fill(form, **case.typed)
    assert not case.is_done()
    tab.press(f"{form} button")
    tab.shows(case.said)
    assert eventually(case.is_done)


def check_refused(
    stage: Stage, role: str, named: tuple[str, str], case: Case, fields: dict[str, str]
) -> None:
    """Check that a page does not offer an action, and that the form of another page is refused."""
    tab, action = stage.tab(role), "/".join(named)
    tab.open(stage.url + case.page)
    if named not in NAMED_IN_FORM or role == "viewer":
        tab.until("document.querySelector('main h1')")
        assert not tab.run(f"document.querySelector('form[action=\"{action}\"]')"), "the action is offered"
        assert "tidewheel auth acl allow" in tab.text()
    status, said = post(tab, action, fields)
    if named[0] == "/transactions/one" and role == "stranger":  # its answer is that for an unknown id
        assert (status, said[:6]) == (400, "TW-145")
    else:
        assert (status, f"tidewheel auth acl allow {role}" in said) == (403, True), said
    assert not case.is_done()


def post(tab: Tab, action: str, fields: dict[str, str]) -> tuple[int, str]:
    """Return the status and the sentence of the answer to a form of the console."""
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    request = json.dumps({"method": "POST", "headers": form, "body": urlencode(fields)})
    script = f"fetch({json.dumps(action)}, {request}).then(async (one) => [one.status, await one.text()])"
    sentence = "new DOMParser().parseFromString(text, 'text/html').querySelector('.error').textContent"
    status, said = tab.run(f"{script}.then(([status, text]) => [status, {sentence}])")
    return status, said
