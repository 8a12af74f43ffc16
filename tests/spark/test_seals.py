"""Closed books: what was sealed stays provable, and a later change is found and named.

Sealing needs no Spark; the last test has the audits of a real shop made by it.
"""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from commitlog.errors import StoreDamaged
from spark_jobs.layout import RunFolders
from spark_jobs.main import Inputs, Sources, compare
from spark_jobs.options import AuditOptions
from spark_jobs.runs import Run, run_of
from spark_jobs.seals import identities as seals_identities
from spark_jobs.seals import seals
from spark_jobs.seals.changes import moment
from spark_jobs.seals.files import Seal, SealFolder
from tests.audit_runs import write_run
from tidewheel.errors import ConfigurationError

WINDOW_MS = 300_000
START_MS = 1_763_700_000_000 // WINDOW_MS * WINDOW_MS
COUNT = 240
STEP_MS = 10_000

Order = dict[str, Any]


def trade(count: int = COUNT) -> list[Order]:
    """One order every ten seconds: paid after a minute, or timed out after two; the last are undecided."""
    return [order(number, START_MS + number * STEP_MS, count) for number in range(count)]


def order(number: int, placed_ms: int, count: int) -> Order:
    is_paid, is_open = number % 3 != 0, number >= count - 6
    return {
        "order_id": f"o{number:05d}",
        "customer_id": f"c{number % 7}",
        "total_pence": 100 + number,
        "placed_ms": placed_ms,
        "due_ms": placed_ms + 120_000,
        "committed_ms": placed_ms + 3,
        "paid_ms": placed_ms + 60_000 if is_paid and not is_open else None,
        "timed_out_ms": None if is_paid or is_open else placed_ms + 120_050,
        "delivered_ms": None if is_paid or is_open else placed_ms + 120_001,
        "cancelled_ms": None,
        "cleared_ms": placed_ms + 40,
    }


class Books:
    """A folder of runs whose orders are given, as an audit would have written them."""

    def __init__(self, out: Path) -> None:
        self.out, self.number = out, 0

    def run(self, orders: list[Order], parts: int = 1, **summary: Any) -> Run:
        self.number += 1
        totals = {"orders": len(orders)}
        folders = write_run(self.out, f"run-{self.number}", **{"totals": totals, **summary})
        for part in range(parts):
            rows = pa.Table.from_pylist(orders[part::parts], seals_identities._ORDERS)
            pq.write_table(rows, folders.orders / f"{part}.parquet")
        return run_of(self.out, folders.run_id)

    def seal(self, orders: list[Order], watermark_ms: int = 60_000, **facts: Any) -> Seal:
        made = seals.seal(self.out, self.run(orders, **facts), WINDOW_MS, watermark_ms)
        assert made.seal is not None
        assert made.verification.changed == []
        return made.seal

    def changed(self, orders: list[Order], **facts: Any) -> dict[int, list[tuple[str, str, bool, bool]]]:
        """What a later run finds: window -> (stage, order, was there, is there)."""
        found = seals.verify(self.out, self.run(orders, **facts))
        return {
            (one.start_ms - START_MS) // WINDOW_MS: [
                (change.stage, change.order_id, change.was is not None, change.now is not None)
                for change in one.changes
            ]
            for one in found.changed
        }


@pytest.fixture
def books(tmp_path: Path) -> Books:
    return Books(tmp_path / "out")


def test_the_watermark_closes_windows_and_the_next_seal_goes_on_there(books: Books) -> None:
    first = books.seal(trade()[:120])
    assert first.to_ms == START_MS + 4 * WINDOW_MS, "decided up to 21:30, the allowance is a minute"
    second = books.seal(trade())
    assert (second.from_ms, second.before) == (first.to_ms, first.digest)
    assert seals.seal(books.out, books.run(trade()), WINDOW_MS, 60_000).seal is None
    assert [one.number for one in SealFolder(books.out).read()] == [1, 2]


def test_every_identity_is_in_the_window_of_its_own_time(books: Books) -> None:
    sealed = books.seal(trade())
    placed = [sealed.windows[start]["placed"].count for start in sorted(sealed.windows)]
    assert placed == [30] * len(placed)
    decided = [sealed.windows[start]["decided"].count for start in sorted(sealed.windows)]
    assert decided[0] < 30, "what was placed at the window's end is decided in the next"
    assert sum(decided) == sum(
        (one["paid_ms"] or one["timed_out_ms"] or sealed.to_ms) < sealed.to_ms for one in trade()
    )


def test_the_digest_is_that_of_the_sorted_lines(books: Books) -> None:
    sealed = books.seal(trade())
    lines = sorted(
        f"{one['order_id']}|{one['customer_id']}|{one['total_pence']}|{one['placed_ms']}|{one['due_ms']}\n"
        for one in trade()
        if one["placed_ms"] < START_MS + WINDOW_MS
    )
    digest = hashlib.sha256("".join(lines).encode()).hexdigest()
    assert sealed.windows[START_MS]["placed"].digest == digest


@pytest.mark.parametrize("per_group", [1, 45, 2_000_000])
def test_neither_partitioning_nor_the_size_of_a_pass_changes_a_digest(
    books: Books, monkeypatch: pytest.MonkeyPatch, per_group: int
) -> None:
    sealed = books.seal(trade())
    shuffled = random.Random(per_group).sample(trade(), COUNT)
    monkeypatch.setattr(seals_identities, "IDENTITIES_PER_GROUP", per_group)
    other = Books(books.out.parent / "other")
    again = seals.seal(other.out, other.run(shuffled, parts=7), WINDOW_MS, 60_000).seal
    assert again is not None
    assert (again.windows, again.account) == (sealed.windows, sealed.account)


def test_open_orders_are_carried_and_add_up(books: Books) -> None:
    first = books.seal(trade()[:120], watermark_ms=0).account
    assert first.open > 0
    assert first.entered == first.closed + first.open
    second = books.seal(trade(), watermark_ms=0).account
    assert second.carried == first.open
    assert second.carried + second.entered == second.closed + second.vanished + second.open
    assert second.vanished == 0
    waiting = pq.read_table(SealFolder(books.out).path(2, "open.parquet")).to_pylist()
    assert len(waiting) == second.open
    assert {"a decision"} == {word for one in waiting for word in one["waits_for"]}


def test_an_open_order_that_is_gone_has_vanished(books: Books) -> None:
    books.seal(trade()[:120], watermark_ms=0)
    gone = pq.read_table(SealFolder(books.out).path(1, "open.parquet"))["order_id"][0].as_py()
    left = [one for one in trade() if one["order_id"] != gone]
    made = seals.seal(books.out, books.run(left), WINDOW_MS, 0)
    assert made.seal is not None
    assert made.seal.account.vanished == 1
    assert [change.order_id for one in made.verification.changed for change in one.changes][:1] == [gone]


def test_what_happens_later_changes_no_sealed_window(books: Books) -> None:
    books.seal(trade())
    later = trade()
    later[4] |= {"cancelled_ms": START_MS + COUNT * STEP_MS}
    assert books.changed(later) == {}


CHANGES = {
    "a sum": ({"total_pence": 1}, {0: [("placed", "o00004", True, True)]}),
    "a decision": ({"paid_ms": START_MS + 100_001}, {0: [("decided", "o00004", True, True)]}),
    "a decision moved to another window": (
        {"paid_ms": START_MS + WINDOW_MS},
        {0: [("decided", "o00004", True, False)], 1: [("decided", "o00004", False, True)]},
    ),
    "a clearing undone": ({"cleared_ms": None}, {0: [("cleared", "o00004", True, False)]}),
    "a message gone": ({"committed_ms": None}, {0: [("committed", "o00004", True, False)]}),
    "a cancellation dated back": (
        {"cancelled_ms": START_MS + 2 * WINDOW_MS},
        {2: [("decided", "o00004", False, True)]},
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_one_order_changed_after_sealing_is_found_and_named(books: Books, name: str) -> None:
    books.seal(trade())
    change, expected = CHANGES[name]
    later = trade()
    later[4] |= change
    assert books.changed(later) == expected


def test_an_order_added_to_or_removed_from_a_sealed_window_is_found(books: Books) -> None:
    books.seal(trade())
    stages = ("placed", "committed", "decided", "cleared")
    late = order(1, START_MS + 5, COUNT) | {"order_id": "late"}
    assert books.changed([*trade(), late]) == {0: [(stage, "late", False, True) for stage in stages]}
    assert books.changed(trade()[:4] + trade()[5:]) == {
        0: [(stage, "o00004", True, False) for stage in stages]
    }


def test_a_change_is_told_in_one_sentence(books: Books) -> None:
    books.seal(trade())
    later = trade()
    later[4] |= {"total_pence": 1}
    (window,) = seals.changed_windows(books.out, books.run(later).folders.orders, 0)
    assert window.why == (
        "It was sealed by seal 1 and has changed since: 1 changed: order o00004 (total was 1.04 and is "
        "0.01). In sum 1.03 less than was sealed."
    )
    assert window.subject_id == moment(START_MS)


def test_what_retention_deleted_is_not_covered_and_no_change(books: Books) -> None:
    """The log's first two and a half windows go, and with them what only the log knew."""
    sealed = books.seal(trade())
    covered_ms = START_MS + 2 * WINDOW_MS + 150_000
    later = [
        one | {name: None for name in ("committed_ms", "delivered_ms") if (one[name] or 0) < covered_ms}
        for one in trade()
    ]
    found = seals.verify(books.out, books.run(later, covered_from_ms=covered_ms))
    assert found.changed == []
    assert (found.not_covered, found.windows) == (3, len(sealed.windows))
    later[4] |= {"total_pence": 1}
    assert list(books.changed(later, covered_from_ms=covered_ms)) == [0], "rows are still compared"
    assert books.changed(trade()[:-1] + later[-1:]) == {}


def test_an_accepted_change_is_a_correction_and_no_finding_any_more(books: Books) -> None:
    books.seal(trade())
    later = trade()
    later[4] |= {"total_pence": 1}
    made = seals.seal(books.out, books.run(later), WINDOW_MS, 60_000, is_accepting=True)
    assert made.seal is not None
    assert list(made.seal.corrected) == [START_MS]
    assert made.seal.from_ms == made.seal.to_ms
    assert books.changed(later) == {}
    assert books.changed(trade()) == {0: [("placed", "o00004", True, True)]}, "not what was accepted"


def test_a_clock_that_runs_ahead_closes_nothing(books: Books) -> None:
    ahead = trade()
    ahead[7] |= {"placed_ms": START_MS + 86_400_000}
    sealed = books.seal(ahead, as_of_ms=START_MS + COUNT * STEP_MS)
    assert sealed.to_ms <= START_MS + COUNT * STEP_MS


def test_a_currency_is_sealed_where_it_is_known(books: Books) -> None:
    euros = [one | {"currency": "EUR"} for one in trade()]
    sealed = books.seal(euros, has_currency=True)
    assert sealed.has_currency
    assert SealFolder(books.out).read()[0].digest == sealed.digest
    assert books.changed(euros, has_currency=True) == {}
    euros[4] |= {"currency": "USD"}
    assert books.changed(euros, has_currency=True) == {0: [("placed", "o00004", True, True)]}


def test_no_orders_no_seal(books: Books) -> None:
    assert seals.seal(books.out, books.run([]), WINDOW_MS, 0).seal is None
    run = books.run([], parts=0)
    assert seals.seal(books.out, run, WINDOW_MS, 0).seal is None


def test_names_that_hold_separators_are_told_apart(books: Books) -> None:
    odd = trade()
    odd[0] |= {"order_id": "a|b", "customer_id": "c"}
    odd[1] |= {"order_id": "a", "customer_id": "b|c\n"}
    odd[2] |= {"order_id": "back\\pslash"}
    books.seal(odd)
    later = [dict(one) for one in odd]
    for one in later[:3]:
        one["total_pence"] = 0
    assert books.changed(later) == {
        0: [("placed", name, True, True) for name in ("a", "a|b", "back\\pslash")]
    }


def tamper_with_a_count(folder: Path) -> None:
    file = folder / "00000001" / "seal.json"
    file.write_text(file.read_text().replace('"count": 30', '"count": 29', 1))


def lose_the_first(folder: Path) -> None:
    (folder / "00000001").rename(folder / "gone")


def garble(folder: Path) -> None:
    (folder / "00000002" / "seal.json").write_text("{")


def redo_the_first(folder: Path) -> None:
    """Who changes a seal and computes its digest anew has the one behind against him."""
    file = folder / "00000001" / "seal.json"
    plain = json.loads(file.read_text())
    plain["run_id"] = "another"
    del plain["digest"]
    plain["digest"] = hashlib.sha256(
        json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()
    file.write_text(json.dumps(plain))


@pytest.mark.parametrize("harm", [tamper_with_a_count, lose_the_first, garble, redo_the_first])
def test_a_seal_that_is_not_what_was_sealed_is_told(books: Books, harm: Any) -> None:
    books.seal(trade()[:120])
    books.seal(trade())
    harm(books.out / "seals")
    with pytest.raises(StoreDamaged, match="Restore"):
        seals.verify(books.out, books.run(trade()))


def test_identities_that_are_not_the_sealed_ones_are_told(books: Books) -> None:
    books.seal(trade())
    file = SealFolder(books.out).path(1, "identities.parquet")
    pq.write_table(pq.read_table(file).slice(1), file)
    later = trade()
    later[0] |= {"total_pence": 1}
    with pytest.raises(StoreDamaged, match="does not hold what seal 1 says"):
        seals.verify(books.out, books.run(later))


def lose(file: Path) -> None:
    file.unlink()


def lose_a_row(file: Path) -> None:
    pq.write_table(pq.read_table(file).slice(1), file)


def empty(file: Path) -> None:
    file.write_bytes(b"")


@pytest.mark.parametrize("harm", [lose, lose_a_row, empty])
def test_open_orders_that_are_not_the_sealed_ones_are_told(books: Books, harm: Any) -> None:
    """The next seal counts as carried what the one before left open."""
    assert books.seal(trade()[:120]).account.open
    file = SealFolder(books.out).path(1, "open.parquet")
    harm(file)
    with pytest.raises(StoreDamaged, match=f"{file}.*Restore it from a backup"):
        seals.seal(books.out, books.run(trade()), WINDOW_MS, 60_000)
    assert len(SealFolder(books.out).read()) == 1


@pytest.mark.parametrize("harm", [lose, lose_a_row, empty])
def test_corrections_that_are_not_the_sealed_ones_are_told(books: Books, harm: Any) -> None:
    books.seal(trade())
    later = trade()
    later[4] |= {"total_pence": 1}
    seals.seal(books.out, books.run(later), WINDOW_MS, 60_000, is_accepting=True)
    file = SealFolder(books.out).path(2, "corrections.parquet")
    harm(file)
    later[5] |= {"total_pence": 1}
    with pytest.raises(StoreDamaged, match=f"{file}.*Restore it from a backup"):
        seals.verify(books.out, books.run(later))


def test_a_run_over_a_part_of_the_orders_seals_nothing(books: Books) -> None:
    run = books.run(trade(), options={"from_ms": START_MS, "to_ms": None})
    with pytest.raises(ConfigurationError, match="only at a part of the orders"):
        seals.seal(books.out, run, WINDOW_MS, 0)


def test_a_run_older_than_the_seals_says_nothing_of_them(books: Books) -> None:
    """By an older run later orders would have vanished, and be accepted as a correction."""
    older = books.run(trade()[:120])
    books.seal(trade())
    said = "run-1 is older than run run-2, by which seal 1 was made"
    with pytest.raises(ConfigurationError, match=said):
        seals.verify(books.out, older)
    with pytest.raises(ConfigurationError, match=said):
        seals.seal(books.out, older, WINDOW_MS, 60_000, is_accepting=True)


def test_windows_of_another_width_are_refused(books: Books) -> None:
    books.seal(trade())
    with pytest.raises(ConfigurationError, match="--window 300000ms"):
        seals.seal(books.out, books.run(trade()), 60_000, 0)


def audited(spark: Any, shop: Any, out: Path, run_id: str) -> Run:
    """A run over a shop's stores as they are now."""
    folders, exported = RunFolders(out, run_id), out / f"exported-{run_id}"
    folders.folder.mkdir(parents=True)
    exported.mkdir()
    sources = Sources(shop.store, Inputs(shop.orders_url, shop.redis_url, shop.pushes_url))
    compare(spark, sources.export(exported), shop.store, folders, AuditOptions(run_id), lambda _: None)
    return run_of(out, run_id)


def test_the_books_of_a_real_shop_stay_closed_when_retention_deletes_what_they_were_made_of(
    spark: Any, traded: Any, tmp_path: Path
) -> None:
    traded.advance(5_000)
    traded.place("later", "customer-9", {"pear": 1})
    sealing = seals.seal(tmp_path, audited(spark, traded, tmp_path, "run-1"), 1_000, 0)
    assert sealing.seal is not None
    counts = {"placed": 0, "committed": 0, "decided": 0, "cleared": 0, "fired": 0}
    for stages in sealing.seal.windows.values():
        for stage, holds in stages.items():
            counts[stage] += holds.count
    assert counts == {"placed": 4, "committed": 4, "decided": 4, "cleared": 4, "fired": 2}
    assert (sealing.seal.account.entered, sealing.seal.account.open) == (4, 0)
    next(iter(sorted((traded.store / "commitlog").iterdir()))).unlink()
    traded.set_order("t1", total_pence=1)
    after = audited(spark, traded, tmp_path, "run-2")
    assert after.covered_from_ms > 0
    found = seals.verify(tmp_path, after)
    assert found.not_covered > 0
    assert [(one.stage, one.order_id) for window in found.changed for one in window.changes] == [
        ("placed", "t1")
    ]
    told = list(after.rows("sealed-window-changed"))
    assert [(row["subject"], row["subject_id"]) for row in told] == [("window", found.changed[0].subject_id)]
    assert not after.is_balanced
