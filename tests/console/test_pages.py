"""Pages of the console in Chromium: read, followed, acted on, and kept over the end of their broker."""

from __future__ import annotations

import json
import os
from pathlib import Path
from urllib.request import Request

import pytest

from tests.audit_runs import SUMMARY
from tests.console.chromium import Pipe, Tab
from tests.console_process import ConsoleProcess
from tests.official_consumer import push_consumer
from tests.two_nodes import two_nodes
from tidewheel.testing.process import DIRECT, BrokerProcess

PAGES = (
    "",
    "messages",
    "topics",
    "topics/send",
    "search",
    "timers",
    "schedules",
    "transactions",
    "groups",
    "dead-letters",
    "tasks",
    "clients",
    "refused",
    "cluster",
    "audits",
    "journal",
)
SITE = "location.origin"
FORM = "application/x-www-form-urlencoded"


def site(tab: Tab) -> str:
    return str(tab.run(SITE))


def test_a_timer_is_found_by_its_key_and_cancelled(tab: Tab, broker: BrokerProcess) -> None:
    broker.post("/api/timers", {"topic": "deadlines", "body": "7", "in": "30m", "timer_key": "order:7"})
    tab.open(f"{site(tab)}/timers?key=order:7")
    tab.press("td a[href^='/timers/one']")
    tab.fill("#cancel", reason="paid")
    tab.press("#cancel button")
    tab.shows("CANCELLED")
    tab.open(f"{site(tab)}/messages?name=order:7")
    tab.shows("paid")


def test_a_transaction_is_resolved(tab: Tab, broker: BrokerProcess) -> None:
    broker.post("/api/transactions", {"topic": "orders", "body": "10"})
    tab.open(f"{site(tab)}/transactions")
    tab.press("td a[href^='/transactions/one']")
    tab.fill("#resolve", resolution="ROLLBACK", reason="void")
    tab.press("#resolve button")
    tab.shows("ROLLBACK of")


def give_up(broker: BrokerProcess, group: str, count: int) -> None:
    """Have a group give up messages."""
    broker.post(f"/api/groups/{group}/receive", {"topic": "orders"})
    for _ in range(count):
        broker.post("/api/messages", {"topic": "orders", "body": "<b>"})
    found = broker.post(f"/api/groups/{group}/receive", {"topic": "orders", "count": count})["messages"]
    handles = [one["receipt_handle"] for one in found]
    refusal = {"receipt_handles": handles, "dead_letter": True, "reason": "no"}
    broker.post(f"/api/groups/{group}/nack", refusal)


def test_a_group_is_paused_and_a_dead_letter_redriven(tab: Tab, broker: BrokerProcess) -> None:
    give_up(broker, "shop", 1)
    tab.open(f"{site(tab)}/groups/one?name=shop")
    tab.press("#pause button")
    tab.shows("shop is paused")
    tab.open(f"{site(tab)}/dead-letters/group?group=shop")
    tab.press("td a[href^='/dead-letters/one']")
    tab.press("#redrive button")
    tab.shows("REDRIVEN")


def test_a_topic_is_watched_and_a_message_of_it_sent_again(tab: Tab, broker: BrokerProcess) -> None:
    broker.post("/api/messages", {"topic": "watched", "body": "<b>1 שלום"})
    tab.open(f"{site(tab)}/topics/one?name=watched")
    tab.run("window.isFirst = true")
    broker.post("/api/messages", {"topic": "watched", "body": "<b>2"})
    tab.shows("<b>2")
    assert tab.run("window.isFirst"), "the page was loaded again"
    tab.press("td a[href^='/topics/message']")
    tab.press("#edit button")
    tab.fill("#send", body="<b>3\n🙂")
    tab.press("#send button")
    tab.shows("Sent to watched as")
    tab.shows("<b>3\\n🙂")


def test_a_topic_is_deleted_and_the_journal_tells_of_it(tab: Tab, broker: BrokerProcess) -> None:
    broker.post("/api/messages", {"topic": "campaign", "body": "1"})
    tab.open(f"{site(tab)}/topics/change?name=campaign")
    tab.fill("#delete", typed="campaign", reason="over <b>")
    tab.run("document.querySelector('#delete [name=discard]').click()")
    tab.press("#delete button")
    tab.shows("campaign is deleted")
    tab.open(f"{site(tab)}/journal?about=campaign")
    tab.shows("over <b>")


def test_a_retention_discards_what_its_form_showed_after_a_tick(tab: Tab, broker: BrokerProcess) -> None:
    for body in ("1", "2"):
        broker.post("/api/messages", {"topic": "clicks", "body": body})
    while broker.get("/api/topics/clicks/use", retention="1s")["expired"]["messages"] < 2:
        pass
    tab.open(f"{site(tab)}/topics/change?name=clicks")
    tab.fill("#alter", retention="1s", reason="old <b>")
    tab.press("#alter button")
    tab.shows("discards 2 messages at once, 2 of them unfinished: nothing was changed")
    tab.run("document.querySelector('#alter [name=discard]').click()")
    tab.press("#alter button")
    tab.shows("It keeps 1s. 2 messages were discarded, 2 of them unfinished.")
    tab.open(f"{site(tab)}/journal?about=clicks")
    tab.shows("old <b>")


def test_a_search_goes_on_by_itself_until_it_is_stopped(tab: Tab, broker: BrokerProcess) -> None:
    for first in range(0, 12_000, 1_000):
        batch = [{"topic": "searched", "body": f"order {at}"} for at in range(first, first + 1_000)]
        broker.post("/api/messages", {"messages": batch})
    tab.open(f"{site(tab)}/search")
    tab.fill("#search", topic="searched", text="order 11999")
    tab.press("#search button")
    tab.shows("1 of 12,000 messages match")
    tab.shows("that is all")
    tab.until("!document.querySelector('#stop')")


def test_a_search_is_stopped_and_goes_on_by_its_link(tab: Tab, broker: BrokerProcess) -> None:
    for first in range(0, 60_000, 1_000):
        batch = [{"topic": "long", "body": f"order {at}"} for at in range(first, first + 1_000)]
        broker.post("/api/messages", {"messages": batch})
    tab.open(f"{site(tab)}/search?topic=long&text=order+59999")
    tab.until("document.querySelector('#stop')")
    tab.run("document.querySelector('#stop').click()")
    tab.until("!document.querySelector('#stop')")
    assert "60,000 messages match" not in tab.text()
    tab.press("[data-follow] a")
    tab.shows("that is all")
    tab.shows("order 59999")


def test_a_schedule_is_set_after_a_preview_and_paused(tab: Tab) -> None:
    tab.open(f"{site(tab)}/schedules")
    tab.fill("#new", cron="0 9 * * 1-5", time_zone="Europe/London")
    tab.press("#new button")
    tab.shows("09:00:00")
    tab.fill("#keep", name="report", topic="reports", body="go")
    tab.press("#keep button")
    tab.shows("report is set, next")
    tab.press("#pause button")
    tab.shows("report is paused")


def test_a_task_is_stopped(tab: Tab, broker: BrokerProcess) -> None:
    give_up(broker, "slow", 3)
    order = {"verb": "redrive", "group": "slow", "rate_per_second": 0.01, "reason": "mended"}
    broker.post("/api/dead-letters/tasks", order)
    tab.open(f"{site(tab)}/tasks")
    tab.press("td a[href^='/tasks/one']")
    tab.press("#stop button")
    tab.shows("items were handled")


def test_a_client_is_told_to_connect_again(tab: Tab, broker: BrokerProcess, tmp_path: Path) -> None:
    pytest.importorskip("rocketmq")
    broker.post("/api/messages", {"topic": "seen", "body": "x"})
    with push_consumer(broker.listen, "watchers", "seen", tmp_path):
        tab.open(f"{site(tab)}/clients?name=watchers")
        tab.press("td a[href^='/clients/one']")
        tab.press("#reconnect button")
        tab.shows("was told to connect again")


def test_the_refused_are_shown_with_a_remedy(tab: Tab, broker: BrokerProcess) -> None:
    foreign_host = Request(f"http://{broker.http}/api/topics", headers={"Host": "evil.example"})
    with pytest.raises(OSError, match="403"):
        DIRECT.open(foreign_host)
    tab.open(f"{site(tab)}/refused")
    tab.press("td a[href^='/refused?reason=http']")
    tab.shows("name the host by --http-hosts")


def test_another_node_is_made_to_lead(pipe: Pipe, tmp_path: Path) -> None:
    with two_nodes(tmp_path) as nodes:
        console, tab = ConsoleProcess(os.environ, nodes[0].http), Tab(pipe)
        try:
            tab.open(console.link)
            tab.open(f"{console.url}/cluster")
            tab.press("#move button")
            tab.shows("leads, at")
        finally:
            console.stop()


def test_a_report_has_its_style_and_no_script(pipe: Pipe, broker: BrokerProcess, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "20261121T020000Z"
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps(SUMMARY))
    page = "<!doctype html><title>r</title><style>h1 { color: rgb(1, 2, 3); }</style><h1>Audit</h1>"
    (folder / "report.html").write_text(page + "<script>window.ran = true</script>")
    console, tab = ConsoleProcess(os.environ, broker.http, "--audits", str(tmp_path)), Tab(pipe)
    try:
        tab.open(console.link)
        tab.open(f"{console.url}/audits")
        tab.press("td a[href^='/audits/report']")
        tab.until("getComputedStyle(document.querySelector('h1')).color === 'rgb(1, 2, 3)'")
        assert tab.run("window.ran === undefined")
    finally:
        console.stop()


def test_a_page_stays_while_its_broker_is_gone_and_heals(pipe: Pipe, tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    console, tab = ConsoleProcess(os.environ, broker.http), Tab(pipe)
    try:
        broker.post("/api/messages", {"topic": "watched", "body": "before"})
        tab.open(console.link)
        tab.open(f"{console.url}/topics/one?name=watched")
        tab.shows("before")
        broker.kill()
        tab.shows("The page asks again.")
        assert "before" in tab.text()
        tab.open(f"{console.url}/topics/one?name=watched")
        tab.shows("No answer yet")
        broker.start()
        broker.post("/api/messages", {"topic": "watched", "body": "after"})
        tab.shows("after")
        tab.shows("before")
    finally:
        console.stop()
        broker.stop()


def test_a_page_whose_session_ended_asks_to_sign_in(tab: Tab, broker: BrokerProcess) -> None:
    broker.post("/api/messages", {"topic": "watched", "body": "seen"})
    tab.open(f"{site(tab)}/topics/one?name=watched")
    tab.shows("seen")
    tab.run("fetch('/sign-out', {method: 'POST'}).then(() => true)")
    tab.shows("Token")
    assert "seen" not in tab.text()


def test_a_console_that_is_read_only_shows_no_verb(pipe: Pipe, broker: BrokerProcess) -> None:
    broker.post("/api/timers", {"topic": "deadlines", "body": "9", "in": "30m", "timer_key": "order:9"})
    console, tab = ConsoleProcess(os.environ, broker.http, "--read-only"), Tab(pipe)
    try:
        tab.open(console.link)
        tab.open(f"{console.url}/timers?key=order:9")
        tab.press("td a[href^='/timers/one']")
        tab.shows("read-only")
        assert "Cancel" not in tab.text()
        assert tab.run("!document.querySelector('main form[method=post]')")
        named = {"method": "POST", "body": "reason=paid", "headers": {"Content-Type": FORM}}
        said = tab.run(f"fetch('/timers/one/cancel', {json.dumps(named)}).then((one) => one.text())")
        assert "started with --read-only" in said
    finally:
        console.stop()
    assert broker.get("/api/timers/one", topic="deadlines", key="order:9")["timer_key"] == "order:9"


def test_the_last_hours_are_drawn(tab: Tab) -> None:
    tab.open(site(tab))
    tab.shows("Timers pending")
    assert tab.run("document.querySelectorAll('.sparks svg path').length") >= 1
    assert tab.run("getComputedStyle(document.querySelector('.sparks path')).stroke") != "none"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_as_wide_as_a_phone_and_keeps_to_its_policy(tab: Tab, page: str) -> None:
    tab.show_as((390, 800))
    tab.open(f"{site(tab)}/{page}")
    tab.until("document.querySelector('main h1')")
    assert tab.run("document.documentElement.scrollWidth") <= 390
    assert tab.run("getComputedStyle(document.querySelector('nav')).display") == "flex", "the style is loaded"
    refused = "new Promise((done) => { const one = document.createElement('script'); one.textContent ="
    refused += " 'window.ran = true'; document.head.append(one); done(window.ran === undefined); })"
    assert tab.run(refused), "a script within the page runs"


def test_a_page_reads_and_acts_without_scripts(tab: Tab, broker: BrokerProcess) -> None:
    broker.post("/api/timers", {"topic": "deadlines", "body": "8", "in": "30m", "timer_key": "order:8"})
    tab.without_scripts()
    tab.open(f"{site(tab)}/timers?key=order:8")
    tab.shows("order:8")
