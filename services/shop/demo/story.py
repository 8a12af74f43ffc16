"""The steps of a demo run:

read the orders -> plan the replay -> start the broker and the services -> replay -> wait until no work is in
flight -> inject the bugs that stop processes (`--bugs`) -> stop all processes -> damage the stores
(`--sabotage`) -> audit -> summarize.

Redis runs longer than the services because the audit reads it. The audit receives only paths and URLs.

Rules:
- The plan depends only on the input and the seed. Crashes and repeated sends are recorded in the fault log.
- The audit starts when no work is in flight, so any finding in a run without bugs and sabotage is an error.
- Bugs and sabotage cannot be combined, so that the cause of every finding is known.

Limitation: the wait has a fixed timeout. Work that is still in flight `SETTLING_PATIENCE_S` after the last
deadline is reported, and the run counts as unbalanced.
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
from services.shop.carts.carts import open_redis
from services.shop.carts.redis_server import bundled_redis
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
from services.shop.replay.made_up_orders import made_up_rows
from services.shop.replay.online_retail import Reading, read_file, read_rows
from services.shop.replay.plan import Plan, plan_replay
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
        InputUnreadable: If the order file cannot be read.
        UnknownChoice: If a sabotage case or a bug is unknown.
        ConfigurationError: If the output directory or Redis cannot be used.
        TidewheelError: If a process fails.
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
    """The state and the results of a run."""

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
        """Yield the URL of the given Redis server or of the bundled server."""
        if self.settings.redis_url is not None:
            yield self.settings.redis_url
            return
        with bundled_redis(self.layout.redis) as url:
            yield url

    def trade(self, carts_url: str) -> None:
        """Run the shop until all orders are finished, then stop it."""
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
        """Start the three services and return their addresses."""
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
        """Damage the stores for the sabotage cases."""
        if self.settings.sabotage:
            with self._engines() as (orders, _), open_redis(carts_url) as redis:
                self.sabotaged = spoil(orders, redis, self.settings.sabotage, self.settings.seed)

    def audit(self, carts_url: str) -> None:
        """Audit the stores."""
        with self._phase("Auditing"):
            limits = bugs.AUDIT_LIMITS if self.bugs else ()
            self.audited = run_audit(self.layout, carts_url, self.reporter.say, *limits)

    def summary(self) -> DemoSummary:
        """Return the summary of the run."""
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
        """Return the injected bugs and the audit findings by case. Without bugs, the result is empty."""
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
    """Return the invoices from the input file, or generated invoices."""
    if settings.orders is None:
        return read_rows(made_up_rows(settings.seed, settings.count or MADE_UP_INVOICES))
    reading = read_file(settings.orders)
    return reading if settings.count is None else reading.first(settings.count)


def require_no_carts(redis_url: str) -> None:
    """Raise an error if the Redis database already contains carts, which the audit would include."""
    with open_redis(redis_url) as redis:
        if next(redis.scan_iter("cart*"), None) is not None:
            raise ConfigurationError(
                f"--redis {redis_url} holds carts already. Name another database number."
            )


def write_refused_rows(layout: Layout, reading: Reading) -> None:
    """Write the refused rows to a CSV file."""
    with layout.refused_rows.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("line", "invoice", "reason"))
        writer.writerows((row.line_number, row.invoice, row.reason) for row in reading.refused_rows)


def create_topic(http: str, name: str, message_type: str) -> None:
    """Create a shop topic through the broker's HTTP interface."""
    body = {"name": name, "message_type": message_type, "queue_count": QUEUE_COUNT}
    json_type = {"Content-Type": "application/json"}
    request = Request(f"http://{http}/api/topics", json.dumps(body).encode(), json_type, method="POST")
    opener().open(request, timeout=HTTP_TIMEOUT_S).close()
