"""One run of the demo, from top to bottom:

read the orders -> plan their fates -> start broker and services -> replay -> wait until nothing is in flight
-> lose parts of the shop, if asked for such bugs -> stop everything -> spoil the stores, if asked to -> audit
-> sum up.

Redis outlives the services, because the audit reads it; what the audit is given are paths and URLs only.

Rules:
- The plan depends on the input and the seed only; what died and what was repeated is in the fault log.
- The audit comes when nothing is in flight, so a finding of a run without bugs and sabotage is a mistake.
- Bugs and sabotage exclude each other: of a finding it must be known who has made it.

Weak spot: waiting is by the clock. What has not settled in `SETTLING_PATIENCE_S` beyond the deadline is told
as in flight, and the run counts as not balanced, whatever the reason.
"""

from __future__ import annotations

import contextlib
import csv
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.request import Request

from services.http.calls import opener
from services.shop.carts import open_redis
from services.shop.database import open_database, sqlite_url
from services.shop.demo import bugs, mishaps
from services.shop.demo.auditing import run_audit
from services.shop.demo.books import order_books, push_books, push_lateness, timeout_lateness
from services.shop.demo.bug_story import BugStory
from services.shop.demo.processes import Processes
from services.shop.demo.reminders import Reminders
from services.shop.demo.replay import Caller, Replay, Tally
from services.shop.demo.sabotage import require_known, spoil
from services.shop.demo.settings import MADE_UP_INVOICES, DemoSettings, Layout, Reporter
from services.shop.demo.settling import InFlight, settle
from services.shop.demo.summary import DemoSummary, InvoiceBooks
from services.shop.made_up_orders import made_up_rows
from services.shop.online_retail import Reading, read_file, read_rows
from services.shop.redis_server import bundled_redis
from services.shop.replay_plan import Plan, plan_replay
from services.shop.tables import order_metadata, push_metadata
from services.shop.topics import TOPIC_TYPES
from tidewheel.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

QUEUE_COUNT = 4
SEGMENT_BYTES = 16 * 1024 * 1024
SETTLING_PATIENCE_S = 120
BUGS_ATTEMPTS_MAX = 2
HTTP_TIMEOUT_S = 10


def run_demo(settings: DemoSettings, reporter: Reporter) -> DemoSummary:
    """Run the demo.

    Raises:
        InputUnreadable: when the file of orders cannot be read.
        UnknownChoice: when a case to sabotage, or of a bug, does not exist.
        ConfigurationError: when the out folder or Redis cannot be used.
        TidewheelError: when one of the processes fails.
    """
    require_known(settings.sabotage)
    cases = bugs.chosen(settings.bugs)
    if cases and settings.sabotage:
        raise ConfigurationError("--bugs and --sabotage do not go together. Give one of them.")
    reading = read_input(settings)
    if settings.redis_url is not None:
        require_no_carts(settings.redis_url)
    layout = Layout(settings.out)
    layout.prepare()
    write_refused_rows(layout, reading)
    plan = plan_replay(reading.invoices, settings.pay_ratio, settings.seed)
    run = Run(settings, layout, reading, plan, reporter, cases)
    with run.redis() as carts_url:
        run.trade(carts_url)
        run.spoil(carts_url)
        run.audit(carts_url)
    summary = run.summary()
    layout.summary.write_text(summary.as_json() + "\n")
    return summary


@dataclass(slots=True)
class Run:
    """A run under way, and what it has found so far."""

    settings: DemoSettings
    layout: Layout
    reading: Reading
    plan: Plan
    reporter: Reporter
    bugs: tuple[str, ...] = ()
    tally: Tally = field(default_factory=Tally)
    in_flight: InFlight | None = None
    restarts: int = 0
    sabotaged: dict[str, str] = field(default_factory=dict)
    books: dict[str, Any] = field(default_factory=dict)
    audited: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def redis(self) -> Iterator[str]:
        """Yield the Redis of the carts: another one by URL, or the bundled one."""
        if self.settings.redis_url is not None:
            yield self.settings.redis_url
            return
        with bundled_redis(self.layout.redis) as url:
            yield url

    def trade(self, carts_url: str) -> None:
        """Run the shop until every order has come to its end, then stop it."""
        with Processes(self.layout) as processes:
            with self._phase("Starting the broker and the shop"):
                broker = self._start_broker(processes)
                shop = self._start_shop(processes, broker, carts_url)
            caller = Caller(processes, self.tally)
            reminders = Reminders(caller, shop["pushes"])
            with self._phase("Replaying the invoices", len(self.plan.steps)):
                reminders.set()
                timeout_ms = round(self.settings.timeout_s * 1000)
                replay = Replay(caller, shop["orders"], shop["carts"], timeout_ms, self.tally)
                replay.run(self.plan, self.reporter)
            story = BugStory(self.bugs, processes, caller, shop, self.layout.faults)
            if self.bugs:
                with self._phase("Meeting bugs"):
                    story.while_all_is_well()
            with self._phase("Waiting until nothing is in flight"):
                self._settle(processes, reminders, broker["http"])
            if self.bugs:
                self._lose_parts(story)
            self.restarts = processes.restarts()
            with self._phase("Stopping the shop and the broker"):
                processes.stop_watching()
                processes.stop("orders", "carts", "pushes", "broker")

    def _lose_parts(self, story: BugStory) -> None:
        with self._engines() as (orders, pushes):
            story.await_timeouts(orders)
            with self._phase("Leaving the shop without its broker for a while"):
                story.while_the_broker_is_away(orders)
            with self._phase("Losing services for good"):
                story.until_services_are_gone(pushes)

    def _start_broker(self, processes: Processes) -> dict[str, Any]:
        store = ("--store", str(self.layout.store), "--segment-bytes", str(SEGMENT_BYTES))
        attempts = ("--attempts-max", str(BUGS_ATTEMPTS_MAX)) if self.bugs else ()
        broker = processes.start("serve", *store, *attempts, "--http", "127.0.0.1:0", name="broker")
        for name, message_type in TOPIC_TYPES.items():
            create_topic(broker["http"], name, message_type)
        return broker

    def _start_shop(self, processes: Processes, broker: dict[str, Any], carts_url: str) -> dict[str, str]:
        """Start the three services; return where each listens."""
        databases = {
            "orders": ("--database", sqlite_url(self.layout.orders_database)),
            "carts": ("--redis", carts_url),
            "pushes": ("--database", sqlite_url(self.layout.pushes_database), "--http", broker["http"]),
        }
        listen = {}
        for name, database in databases.items():
            ready = processes.start(
                *("shop", name, "--broker", broker["listen"], *database),
                name=name,
                armed=self._armed(name),
                always_armed=bugs.armed(self.bugs, name),
            )
            listen[name] = ready["listen"]
        return listen

    def _armed(self, name: str) -> list[str]:
        if not self.settings.faults:
            return []
        count = len(self.plan.orders)
        armed = {"orders": mishaps.armed_orders(count), "carts": mishaps.armed_carts(count)}
        return armed.get(name, [])

    def _settle(self, processes: Processes, reminders: Reminders, http: str) -> None:
        patience_s = self.settings.timeout_s + SETTLING_PATIENCE_S
        with self._engines() as (orders, pushes):
            reminders.end(pushes)
            self.in_flight = settle(processes, http, orders, pushes, patience_s)
            if not self.in_flight.nothing:
                self.reporter.say(f"Still in flight after {patience_s:.0f} s: {self.in_flight}.")
            self.books = {
                "orders": order_books(orders),
                "pushes": push_books(pushes),
                "timeout_lateness": timeout_lateness(orders),
                "push_lateness": push_lateness(pushes),
            }

    def spoil(self, carts_url: str) -> None:
        """Change the stores where the sabotage asks for it."""
        if self.settings.sabotage:
            with self._engines() as (orders, _), open_redis(carts_url) as redis:
                self.sabotaged = spoil(orders, redis, self.settings.sabotage, self.settings.seed)

    def audit(self, carts_url: str) -> None:
        """Let the audit look at the stores."""
        with self._phase("Auditing"):
            limits = bugs.AUDIT_LIMITS if self.bugs else ()
            self.audited = run_audit(self.layout, carts_url, self.reporter.say, *limits)

    def summary(self) -> DemoSummary:
        """Sum the run up."""
        assert self.in_flight is not None
        return DemoSummary(
            **self.books,
            invoices=InvoiceBooks(
                invoices=len(self.reading.invoices),
                accepted=len(self.plan.orders),
                refused=len(self.plan.refused),
                cancellations_matched=len(self.plan.cancellations),
                cancellations_unmatched=len(self.plan.unmatched),
            ),
            refused_rows={reason.value: count for reason, count in self.reading.refused_by_reason().items()},
            in_flight=self.in_flight,
            replay=dict(self.tally.counts),
            faults=mishaps.injected(self.layout.faults),
            restarts=self.restarts,
            sabotaged=self.sabotaged,
            bugs=self._compared(),
            audit=self.audited,
            seconds=self.seconds,
            out=str(self.layout.root),
        )

    def _compared(self) -> dict[str, dict[str, list[str]]]:
        """Return what the bugs have done beside what the audit has found; nothing in a run without bugs."""
        if not self.bugs:
            return {}
        return bugs.compared(bugs.truth(self.layout.faults), bugs.found(self.audited))

    @contextlib.contextmanager
    def _phase(self, name: str, steps: int | None = None) -> Iterator[None]:
        self.reporter.begin(name, steps)
        began = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - began, 1)

    @contextlib.contextmanager
    def _engines(self) -> Iterator[tuple[Any, Any]]:
        orders = open_database(sqlite_url(self.layout.orders_database), order_metadata)
        pushes = open_database(sqlite_url(self.layout.pushes_database), push_metadata)
        yield orders, pushes
        orders.dispose()
        pushes.dispose()


def read_input(settings: DemoSettings) -> Reading:
    """Return the invoices to replay: those of the file, or made-up ones."""
    if settings.orders is None:
        return read_rows(made_up_rows(settings.seed, settings.count or MADE_UP_INVOICES))
    reading = read_file(settings.orders)
    return reading if settings.count is None else reading.first(settings.count)


def require_no_carts(redis_url: str) -> None:
    """Refuse a Redis database that holds carts already: the audit would find strangers in it."""
    with open_redis(redis_url) as redis:
        if next(redis.scan_iter("cart*"), None) is not None:
            raise ConfigurationError(
                f"--redis {redis_url} holds carts already. Name another database number."
            )


def write_refused_rows(layout: Layout, reading: Reading) -> None:
    """List the refused rows one by one."""
    with layout.refused_rows.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("line", "invoice", "reason"))
        writer.writerows((row.line_number, row.invoice, row.reason) for row in reading.refused_rows)


def create_topic(http: str, name: str, message_type: str) -> None:
    """Create one of the shop's topics through the broker's HTTP interface."""
    body = {"name": name, "message_type": message_type, "queue_count": QUEUE_COUNT}
    json_type = {"Content-Type": "application/json"}
    request = Request(f"http://{http}/api/topics", json.dumps(body).encode(), json_type, method="POST")
    opener().open(request, timeout=HTTP_TIMEOUT_S).close()
