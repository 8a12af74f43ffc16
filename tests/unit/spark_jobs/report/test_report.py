"""The report of a run whose Parquet is made here: what it says, that it stands alone, and that it fits."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from commitlog.log.published_log import Segment, StoreLog
from spark_jobs.cases.names import BALANCED, CASES, FINDINGS, IN_FLIGHT, OTHER_FINDINGS
from spark_jobs.layout import RunFolders
from spark_jobs.report import report
from spark_jobs.report.flow import flow
from spark_jobs.report.meanings import MEANINGS
from spark_jobs.report.statistics import LogStatistics, log_statistics
from spark_jobs.report.summary import AuditSummary
from spark_jobs.report.timeline import gap, timeline

START_MS = 1_763_700_000_000
MINUTE_MS = 60_000
WINDOW_MS = 5 * MINUTE_MS
LOG = StoreLog((Segment("segment", 0, 1 << 30),), 734_003_200, ours=True)
EVENT = pa.struct([
    ("physical_offset", pa.int64()), ("store_ms", pa.int64()), ("kind", pa.string()), ("topic", pa.string()),
    ("note", pa.string()),
])  # fmt: skip
SURPLUS = pa.struct([("sku", pa.string()), ("cart", pa.int64()), ("ledger", pa.int64())])
TYPES = {
    "also": pa.list_(pa.string()), "is_consumed": pa.bool_(), "surplus": pa.list_(SURPLUS),
    "timeline": pa.list_(EVENT),
} | dict.fromkeys(
    ("order_id", "case", "why", "customer_id", "status", "currency", "half_end", "subject", "subject_id"),
    pa.string(),
)  # fmt: skip
NUMBERS = (
    "total_pence", "placed_ms", "due_ms", "paid_ms", "timed_out_ms", "cancelled_ms", "half_offset", "half_ms",
    "committed_offset", "committed_ms", "dead_letter_offset", "timer_offset", "timer_due_ms",
    "delivered_offset", "delivered_ms", "timer_cancel_offset", "paid_offset", "paid_message_ms",
    "cancelled_offset", "cleared_ms",
)  # fmt: skip
SCHEMA = pa.schema([*TYPES.items(), *((name, pa.int64()) for name in NUMBERS)])
Row = dict[str, Any]


@dataclass(frozen=True)
class Staged:
    """Counts of a log, below a folder."""

    folder: Path

    def table(self, name: str) -> pa.Table:
        return pq.read_table(self.folder / name)

    def lateness(self) -> pa.Table:
        return self.table("lateness")


def write(folder: Path, rows: list[Row], schema: pa.Schema) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema), folder / "part-0.parquet")


def paid(number: int, **changed: Any) -> Row:
    """An order as it should be, placed a second after the one before."""
    placed_ms, offset = START_MS + 1_000 * number, 4_000 * number
    return {
        "order_id": f"order-{number:06}", "case": BALANCED, "customer_id": f"customer-{number % 97}",
        "status": "PAID", "total_pence": 1_250 + number, "currency": "EUR", "placed_ms": placed_ms,
        "due_ms": placed_ms + 900_000, "paid_ms": placed_ms + 42_000, "half_offset": offset,
        "half_ms": placed_ms - 3, "half_end": "commit", "committed_offset": offset + 900,
        "committed_ms": placed_ms + 12, "is_consumed": True, "timer_offset": offset + 1_400,
        "timer_due_ms": placed_ms + 900_000, "timer_cancel_offset": offset + 3_100,
        "paid_offset": offset + 3_100, "paid_message_ms": placed_ms + 42_005, "cleared_ms": placed_ms + 180,
    } | changed  # fmt: skip


def timed_out(number: int, **changed: Any) -> Row:
    """An order that nobody paid."""
    due_ms = START_MS + 1_000 * number + 900_000
    return paid(
        number, status="TIMED_OUT", paid_ms=None, timed_out_ms=due_ms + 40, paid_offset=None,
        paid_message_ms=None, timer_cancel_offset=None, delivered_offset=4_000 * number + 3_000,
        delivered_ms=due_ms + 3,
    ) | changed  # fmt: skip


def story(row: Row) -> list[Row]:
    """What the log says of an order."""
    told = (
        ("half", "half_offset", -3, ""), ("commit", "committed_offset", 12, "queue 3 offset 881"),
        ("timer", "timer_offset", 14, "due in 15 minutes"), ("commit", "paid_offset", 42_005, ""),
    )  # fmt: skip
    return [
        {"physical_offset": row[name], "store_ms": (row["placed_ms"] or START_MS) + after_ms, "kind": kind,
         "topic": "order-paid" if name == "paid_offset" else "order-created", "note": note}
        for kind, name, after_ms, note in told if row.get(name) is not None
    ]  # fmt: skip


FOUND: dict[str, Row] = {
    "order-without-message": {"half_offset": None, "half_ms": None, "half_end": None,
        "committed_offset": None, "committed_ms": None, "is_consumed": None, "cleared_ms": None},
    "message-without-order": {"placed_ms": None, "due_ms": None, "paid_ms": None, "status": None,
        "total_pence": None},
    "cart-not-cleared": {"cleared_ms": None, "also": ["effect-twice"],
        "surplus": [{"sku": "a-very-long-article-number-0815", "cart": 3, "ledger": 1}]},
    "paid-but-timed-out": {"timed_out_ms": START_MS + 950_000},
    "never-delivered": {"is_consumed": False, "cleared_ms": None, "total_pence": 70_000, "currency": "JPY"},
}  # fmt: skip


def shop_rows(count: int) -> list[Row]:
    """Mostly balanced orders, one of each kind of finding, and the newest in flight."""
    rows = [timed_out(number) if number % 7 == 0 else paid(number) for number in range(count)]
    for place, (case, changed) in enumerate(FOUND.items()):
        number = 31 + place * (count // 7)
        rows[number] = paid(number, case=case, why=f"Why it is {case}.", **changed)
    for number in range(count - 10, count):
        rows[number] = paid(
            number, case=IN_FLIGHT, status="PLACED", why="It is neither paid nor timed out yet.",
            paid_ms=None, paid_offset=None, timer_cancel_offset=None,
        )  # fmt: skip
    return rows


@dataclass
class Run:
    """An audit's output of so many orders, and its report."""

    folder: Path
    count: int = 3_000

    def __post_init__(self) -> None:
        self.run = RunFolders(self.folder, "20261121T221530Z")
        self.rows = shop_rows(self.count)
        write(self.run.orders, self.rows, SCHEMA)
        found = [
            row | {"subject": "order", "subject_id": row["order_id"], "timeline": story(row)}
            for row in self.rows
            if row["case"] in FINDINGS
        ]
        cart = {"subject": "cart", "subject_id": "customer-5", "case": "cart-difference",
                "why": "The cart holds 2 of article pear, by its ledger 0."}  # fmt: skip
        write(self.run.findings, [*found, cart], SCHEMA)
        self.run.folder.mkdir(parents=True, exist_ok=True)
        self.write_report()

    def write_report(self) -> None:
        cases = {case: sum(row["case"] == case for row in self.rows) for case in CASES}
        summary = AuditSummary(
            self.run.run_id,
            balanced=False,
            totals={"orders": len(self.rows), "pushes scheduled": 3, "pushes delivered": 97},
            cases=cases,
            findings=[],
            report_path=self.run.report,
            others={"cart-difference": 1},
            windows=flow(self.run.orders, WINDOW_MS).windows(WINDOW_MS),
        )
        store = Path("/var/lib/tidewheel")
        found = flow(self.run.orders, WINDOW_MS)
        report.write(summary, log_statistics(self.staged()), found, LOG, store, self.run)

    def staged(self) -> Staged:
        staged = Staged(self.folder / "staged")
        minutes = range(START_MS // MINUTE_MS, (START_MS + self.count * 1_000) // MINUTE_MS)
        counts = [
            count_row(kind, topic, minute * MINUTE_MS, 50 + minute % 13)
            for minute in minutes
            for kind, topic in (("commit", "order-created"), ("delivered", "order-timeouts"), ("ack", "x"))
        ]
        write(staged.folder / "counts", counts, COUNTS)
        late = [
            {"topic": "order-timeouts", "minute_ms": minute * MINUTE_MS, "recurs": False}
            | {"late_ms": late, "deliveries": count}
            for minute in minutes
            if minute % 11
            for late, count in ((0, 30), (2, 15), (9, 4), (40 + minute % 400 * 3, 1))
        ]
        write(staged.folder / "lateness", late, LATENESS)
        ends = [{"how": "delivered", "timers": 430}, {"how": "cancelled", "timers": 2_570}]
        write(staged.folder / "ends", ends, pa.schema([("how", pa.string()), ("timers", pa.int64())]))
        write(staged.folder / "damaged", [], DAMAGED)
        write(staged.folder / "unreadable", [], UNREADABLE)
        write(staged.folder / "epochs", [], EPOCHS)
        return staged


COUNTS = pa.schema([
    ("kind", pa.string()), ("topic", pa.string()), ("minute_ms", pa.int64()), ("records", pa.int64()),
    ("record_bytes", pa.int64()), ("first_ms", pa.int64()), ("last_ms", pa.int64()),
    ("unreadable", pa.int64()), ("unreadable_offset", pa.int64()), ("without_key", pa.int64()),
])  # fmt: skip
LATENESS = pa.schema([
    ("topic", pa.string()), ("minute_ms", pa.int64()), ("recurs", pa.bool_()), ("late_ms", pa.int64()),
    ("deliveries", pa.int64()),
])  # fmt: skip
EPOCHS = pa.schema([("physical_offset", pa.int64()), ("number", pa.int64()), ("began_ms", pa.int64())])
UNREADABLE = pa.schema([
    ("physical_offset", pa.int64()), ("topic", pa.string()), ("body", pa.string()),
])  # fmt: skip
DAMAGED = pa.schema([
    ("physical_offset", pa.int64()), ("record_bytes", pa.int64()), ("why", pa.string()),
])  # fmt: skip


def count_row(kind: str, topic: str, minute_ms: int, records: int, **more: Any) -> Row:
    return {
        "kind": kind, "topic": topic, "minute_ms": minute_ms, "records": records,
        "record_bytes": 450 * records, "first_ms": minute_ms + 10, "last_ms": minute_ms + 59_000,
        "unreadable": 0, "unreadable_offset": None, "without_key": 0,
    } | more  # fmt: skip


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with five findings about orders and one about a cart."""
    return Run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def page(written: Run) -> str:
    return written.run.report.read_text()


class Elements(HTMLParser):
    """The page's tags, links and visible words."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.words: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Iterable[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.words.append(" ".join(data.split()))


def test_the_verdict_comes_first_with_what_the_findings_are_worth(page: str) -> None:
    words = " ".join(Elements(page).words)
    assert "The books do not balance. 5 of 3,000 orders are findings, worth " in words
    assert re.search(r"findings, worth \d+\.\d\d EUR and 70,000 JPY; 1 finding of", words), "not added up"
    assert "worth 70,000 JPY" in words
    assert words.index("The books do not balance.") < words.index("When") < words.index("Findings and their")


def test_it_needs_neither_network_nor_script(page: str) -> None:
    elements = Elements(page)
    assert not elements.addresses
    assert not {"script", "link", "img", "iframe"} & set(elements.tags)
    assert not re.search(r"https?://|@import|url\(", page)


def test_percentiles_and_log_offsets_are_explained(page: str) -> None:
    words = " ".join(Elements(page).words)
    assert "p99: 99 of 100 were. p99.9: 999 of 1,000 were." in words
    assert "A log offset is the byte of the log at which a record begins" in words
    assert "tidewheel explain @OFFSET --store /var/lib/tidewheel" in words


def test_the_lateness_table_needs_no_width_and_others_show_that_they_scroll(page: str) -> None:
    """On a telephone a row of the table is a block whose figures have their names beside them."""
    table = page[page.index('<table class="stack">') :].partition("</table>")[0]
    heads = re.findall(r"<th[^>]*>(.*?)</th>", table)
    names = re.findall(r'data-name="(.*?)"', table)
    assert names[: len(heads) - 1] == heads[1:]
    assert "content: attr(data-name)" in page
    assert re.search(r"\.wide \{[^}]*background-attachment: local, local, scroll, scroll", page)


def test_every_case_has_a_meaning_and_every_finding_a_repair() -> None:
    assert set(MEANINGS) == {*CASES, *OTHER_FINDINGS}
    for case in (*FINDINGS, *OTHER_FINDINGS):
        assert MEANINGS[case].who
        assert MEANINGS[case].repair


def test_findings_show_their_evidence_with_gaps_and_log_offsets(page: str) -> None:
    words = " ".join(Elements(page).words)
    assert "Why it is cart-not-cleared." in words
    assert "a-very-long-article-number-0815" in words
    assert "41 s later" in words
    assert "The cart holds 2 of article pear" in words
    assert "tidewheel explain order-000031 --store /var/lib/tidewheel" in words


def test_what_a_store_says_is_text_and_never_markup(tmp_path: Path) -> None:
    run = Run(tmp_path, 100)
    run.rows[31]["why"] = "<script>alert(1)</script>"
    bad = [run.rows[31] | {"subject": "order", "subject_id": "<b>x</b>", "timeline": []}]
    write(run.run.findings, bad, SCHEMA)
    run.write_report()
    assert not {"script", "b"} & set(Elements(run.run.report.read_text()).tags)


def test_the_flow_counts_what_passes_what_is_left_and_what_is_extra(written: Run) -> None:
    found = flow(written.run.orders, WINDOW_MS)
    arrows = {(one.source, one.target): one for one in found.arrows()}
    rests = {(one.source, one.targets): one.by_class for one in found.rests()}
    assert found.stages["placed"] == 2_999
    assert found.cases == Counter(row["case"] for row in written.rows)
    assert found.statuses == Counter(row["status"] for row in written.rows)
    announced = arrows["placed", "announced"]
    assert (announced.passed, announced.extra) == (2_998, 1)
    assert rests["placed", ("announced",)]["finding"] == 1
    assert rests["armed", ("cancelled", "fired")]["in-flight"] == 10
    for (source, targets), by_class in rests.items():
        passed = sum(arrows[source, target].passed for target in targets)
        assert passed + sum(by_class.values()) == found.stages[source]


def test_windows_hold_every_order_once(written: Run) -> None:
    found = flow(written.run.orders, WINDOW_MS).windows(WINDOW_MS)
    assert sum(one.balanced + one.in_flight + one.not_covered + one.findings for one in found) == 3_000
    assert all(one.first_ms % WINDOW_MS == 0 and one.end_ms - one.first_ms == WINDOW_MS for one in found)
    assert sum(one.findings for one in found) == 5


def test_a_percentile_is_what_so_many_deliveries_did_not_exceed(tmp_path: Path) -> None:
    staged = Staged(tmp_path)
    late = [(0, 500), (1, 489), (50, 10), (9_000, 1)]
    rows = [{"topic": "t", "minute_ms": 0, "recurs": False, "late_ms": ms, "deliveries": n} for ms, n in late]
    write(staged.folder / "lateness", rows, LATENESS)
    damage = {"damaged_bytes": 1}
    write(
        staged.folder / "counts", [count_row("normal", "t", 0, 7, unreadable=2, unreadable_offset=90)], COUNTS
    )
    write(staged.folder / "ends", [], pa.schema([("how", pa.string()), ("timers", pa.int64())]))
    write(staged.folder / "damaged", [{"physical_offset": 5, "record_bytes": 9, "why": "torn"}], DAMAGED)
    sample = {"physical_offset": 90, "topic": "t", "body": "{"}
    write(staged.folder / "unreadable", [sample], UNREADABLE)
    write(staged.folder / "epochs", [], EPOCHS)
    figures = log_statistics(staged)
    assert figures.unreadable_samples == [(90, "t", "{")]
    (one,) = figures.lateness
    assert (one.p50_ms, one.p99_ms, one.p999_ms, one.max_ms, one.deliveries) == (0, 50, 50, 9_000, 1_000)
    assert (figures.unreadable_first_offset, figures.damaged_bytes) == (90, damage["damaged_bytes"] * 9)
    assert sum(figures.lateness_bars) == 1_000


def test_an_empty_log_has_a_report_too(tmp_path: Path) -> None:
    run = RunFolders(tmp_path, "r")
    write(run.orders, [], SCHEMA)
    write(run.findings, [], SCHEMA)
    run.folder.mkdir(parents=True)
    cases = dict.fromkeys(CASES, 0)
    summary = AuditSummary("r", True, {"orders": 0}, cases, [], run.report)
    report.write(summary, LogStatistics(), flow(run.orders, WINDOW_MS), LOG, Path("/store"), run)
    assert "The books balance." in run.report.read_text()


def test_lines_of_a_timeline_are_in_order_of_time_and_name_their_gaps() -> None:
    evidence = {
        "placed_ms": 1_000,
        "cleared_ms": 200_000,
        "timeline": [{"physical_offset": 7, "store_ms": 1_500, "kind": "commit", "topic": "t", "note": None}],
    }
    lines = timeline(evidence)
    assert [(one.known.what, one.gap) for one in lines] == [
        ("order placed", ""),
        ("commit", "500 ms"),
        ("cart cleared", "3 m 18 s"),
    ]
    assert (gap(0), gap(1), gap(90_061_000)) == ("", "1 ms", "1 d 1 h")


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine to render the page with")
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_chromium_renders_it_without_scrolling_sideways(
    written: Run, tmp_path: Path, width: int, scheme: str
) -> None:
    inner, needed, height = rendered(written.run.report.read_text(), tmp_path, width, scheme == "dark")
    assert inner == width
    assert needed <= width
    assert height > 3_000


def rendered(page: str, folder: Path, width: int, is_dark: bool) -> tuple[int, ...]:
    """(width of the window, width and height that the page takes in it).

    The window is a frame, because Chromium's own are never narrower than 500 pixels.
    """
    assert CHROMIUM is not None
    sizes = "[innerWidth, document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
    told = f"<script>parent.postMessage({sizes}.join(' '), '*')</script></body>"
    (folder / "page.html").write_text(page.replace("</body>", told))
    frame = f"<iframe src=page.html style='width:{width}px; height:900px; border:0'></iframe>"
    wait = "<script>onmessage = event => { document.title = 'sizes ' + event.data }</script>"
    (folder / "frame.html").write_text(f"<!doctype html><title>none</title>{frame}{wait}")
    printed = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000",
            f"--user-data-dir={folder / 'profile'}", *(["--force-dark-mode"] if is_dark else []),
            "--dump-dom", (folder / "frame.html").as_uri(),
        ],
        check=True,
        capture_output=True,
        text=True,
    ).stdout  # fmt: skip
    found = re.search(r"<title>sizes (\d+) (\d+) (\d+)</title>", printed)
    assert found, printed
    return tuple(map(int, found.groups()))
