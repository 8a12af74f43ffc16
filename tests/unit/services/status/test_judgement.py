"""How answers of a broker are judged: well, a warning, critical, and not known."""

from __future__ import annotations

from typing import Any

import pytest

from services.status.judgement import (
    CHECKS,
    Limits,
    Row,
    State,
    Unit,
    Unread,
    judged,
    parse_limit,
    probed,
    screen,
    worst,
)

NOW_MS = 1_800_000_000_000


def group(name: str, lag: int, age_ms: int, *, is_paused: bool = False) -> dict[str, Any]:
    oldest = str(NOW_MS - age_ms) if lag else None
    return {"name": name, "lag": lag, "oldest_ms": oldest, "consumers": 1, "policy": {"is_paused": is_paused}}


def timers(ahead_ms: int | None, early: int = 0) -> dict[str, Any]:
    next_ms = None if ahead_ms is None else str(NOW_MS + ahead_ms)
    late = {"delivered": 10, "p50_ms": 5, "p99_ms": 25, "max_ms": 40, "early_count": early, "after_hold": 0}
    pending = 0 if ahead_ms is None else 3
    return {"now_ms": str(NOW_MS), "pending": pending, "next_due_ms": next_ms, "lateness": late}


def halves(open_count: int = 0, age_ms: int = 0, expired: int = 0) -> dict[str, Any]:
    oldest = str(NOW_MS - age_ms) if open_count else None
    return {"open": open_count, "expired": expired, "oldest_open_ms": oldest}


def node(name: str = "a", role: str = "leading", **more: Any) -> dict[str, Any]:
    leader = {"node": "a", "http": "127.0.0.1:8188"}
    lags = {"b": {"lag_bytes": 0, "lag_ms": 900, "heard_ms_ago": 900}} if role == "leading" else {}
    own = {"node": name, "role": role, "leader": leader, "followers": lags, "nodes": ["a", "b"], "lag_ms": 40}
    return own | more


def answers(**changed: Any) -> dict[str, Any]:
    well: dict[str, Any] = {
        "address": "127.0.0.1:8088",
        "ready": (200, "ready\n"),
        "now_ms": NOW_MS,
        "timers": timers(60_000),
        "groups": {"groups": [group("shop", 0, 0)]},
        "halves": halves(),
        "dead_letters": {"groups": []},
        "figures": {"mq_disk_used_ratio": 0.4, "mq_disk_full": 0.0, "rocketmq_storage_size": 5e6},
        "cluster": None,
        "nodes": {},
        "audit": None,
    }
    return well | changed


def row(name: str, **changed: Any) -> Row:
    return judged(name, answers(**changed))


def test_a_broker_that_is_well_has_only_rows_that_are() -> None:
    rows = screen(answers())
    titles = ["serving", "on time", "keeping up", "decided", "given up", "room", "copies"]
    assert [one.name for one in rows] == titles
    assert worst(rows) is State.OK


@pytest.mark.parametrize(
    ("ahead_ms", "early", "state"),
    [
        (None, 0, State.OK),
        (0, 0, State.OK),
        (-999, 0, State.OK),
        (-1_000, 0, State.WARN),
        (-10_000, 0, State.CRIT),
        (60_000, 1, State.CRIT),
    ],
)
def test_a_timer_is_late_when_it_is_overdue_now_and_must_never_be_early(
    ahead_ms: int | None, early: int, state: State
) -> None:
    found = row("late", timers=timers(ahead_ms, early))
    assert found.state is state
    assert found.see == "tidewheel timer summary"


@pytest.mark.parametrize(
    ("age_ms", "state"), [(299_999, State.OK), (300_000, State.WARN), (1_800_000, State.CRIT)]
)
def test_a_group_lags_by_the_age_of_its_oldest_message(age_ms: int, state: State) -> None:
    found = row("lag", groups={"groups": [group("a", 9_000, 1_000), group("b", 1, age_ms)]})
    assert found.state is state
    assert "b: 1 not done" in found.said
    assert found.see == ("tidewheel group ls" if state is State.OK else "tidewheel group lag b")


def test_a_paused_group_is_told_to_be_paused() -> None:
    found = row("lag", groups={"groups": [group("a", 3, 3_600_000, is_paused=True)]})
    assert found.state is State.CRIT
    assert "it is paused" in found.said


@pytest.mark.parametrize(("ago_ms", "state"), [(86_399_999, State.WARN), (86_400_000, State.OK)])
def test_what_retention_took_from_a_group_is_a_warning_for_a_day(ago_ms: int, state: State) -> None:
    lost = {"missed": 295, "missed_ms": str(NOW_MS - ago_ms)}
    none = {"missed": 0, "missed_ms": None}
    found = row("lag", groups={"groups": [group("shop", 0, 0) | lost, group("well", 0, 0) | none]})
    assert found.state is state
    if state is State.WARN:
        assert "retention deleted what 1 group had not finished" in found.said
        assert "shop has missed 295" in found.said
        assert found.see == "tidewheel group show shop"


def test_what_a_group_still_lags_comes_before_what_one_has_missed() -> None:
    lost = {"missed": 295, "missed_ms": str(NOW_MS)}
    found = row("lag", groups={"groups": [group("shop", 0, 0) | lost, group("slow", 1, 1_800_000)]})
    assert (found.state, found.see) == (State.CRIT, "tidewheel group lag slow")
    assert "shop has missed 295" in found.said


def test_a_group_is_named_that_is_over_a_number_and_not_the_one_that_is_older() -> None:
    limits = Limits({Unit.COUNT: 100}, {Unit.COUNT: 1000})
    found = judged(
        "lag", answers(groups={"groups": [group("old", 1, 9_000), group("many", 500, 10)]}), limits
    )
    assert (found.state, found.see) == (State.WARN, "tidewheel group lag many")


@pytest.mark.parametrize(
    ("found", "figures", "state", "see"),
    [
        (halves(2, 599_999), {}, State.OK, "txn ls"),
        (halves(2, 600_000), {}, State.WARN, "txn ls"),
        (halves(2, 3_600_000), {}, State.CRIT, "txn ls"),
        (halves(expired=1), {}, State.WARN, "txn ls --state expired"),
        (
            halves(1, 1_000),
            {"mq_checkback_unasked": 1.0, "mq_checkback_unasked_age_seconds": 601.0},
            State.WARN,
            "txn producers",
        ),
    ],
)
def test_transactions_are_to_end(
    found: dict[str, Any], figures: dict[str, float], state: State, see: str
) -> None:
    judged_row = row("halves", halves=found, figures=figures)
    assert (judged_row.state, judged_row.see) == (state, f"tidewheel {see}")


def test_one_dead_letter_is_something_to_look_at() -> None:
    found = row("dlq", dead_letters={"groups": [{"group": "shop", "count": 1, "oldest_ms": str(NOW_MS)}]})
    assert (found.state, found.see) == (State.WARN, "tidewheel dlq ls shop")


@pytest.mark.parametrize(
    ("used", "full", "state"),
    [(0.79, 0.0, State.OK), (0.8, 0.0, State.WARN), (0.9, 0.0, State.CRIT), (0.5, 1.0, State.CRIT)],
)
def test_a_disk_that_fills_is_told_before_it_is_full(used: float, full: float, state: State) -> None:
    found = row("disk", figures={"mq_disk_used_ratio": used, "mq_disk_full": full})
    assert found.state is state


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ((200, "ready\nfollows a\n"), State.OK),
        ((200, "ready\ndamaged: 1 places, see: tidewheel timer ls --damaged\n"), State.WARN),
        ((200, "ready\nTW-172 The disk is full.\n"), State.CRIT),
        ((503, "no node of the cluster leads\n"), State.CRIT),
        (Unread("TW-181 no token"), State.UNKNOWN),
    ],
)
def test_what_a_broker_says_of_itself_is_told(said: Any, state: State) -> None:
    found = screen(answers(ready=said))[0]
    assert found.state is state
    assert bool(found.see) is (state is not State.OK)


def test_a_damaged_queue_is_named_with_the_command_of_its_line() -> None:
    line = "damaged: 1 places, queue 3 of topic orders; restart the broker, see: tidewheel store verify"
    found = screen(answers(ready=(200, f"ready\nTW-172 The disk is full.\n{line}\n")))[0]
    assert found.said == (
        "TW-172 The disk is full.; damaged: 1 places, queue 3 of topic orders; restart the broker"
    )
    assert (found.state, found.see) == (State.CRIT, "tidewheel store verify")


def test_a_cluster_whose_followers_keep_up_is_well() -> None:
    found = row("cluster", cluster=node())
    assert (found.state, found.said) == (State.OK, "node a leads, 1 follower")


@pytest.mark.parametrize(("lag_ms", "state"), [(10_000, State.WARN), (60_000, State.CRIT)])
def test_a_follower_that_is_behind_is_named(lag_ms: int, state: State) -> None:
    lags = {"b": {"lag_bytes": 7, "lag_ms": lag_ms, "heard_ms_ago": None}}
    found = row("cluster", cluster=node(followers=lags))
    assert found.state is state
    assert "follower b is behind" in found.said


@pytest.mark.parametrize(
    ("more", "state"),
    [
        ({"halted": "its copy is another's"}, State.CRIT),
        ({"leader": None}, State.CRIT),
        ({"unanswered": "no answer for 9 s"}, State.CRIT),
        ({"engine_trouble": ["fsync is off"]}, State.CRIT),
        ({"broken_records": ["record 7"]}, State.CRIT),
        ({"scrub": {"faults": ["record 7 is gone"]}}, State.CRIT),
        ({"unfit": "its clock is off"}, State.WARN),
        ({"followers": {}}, State.WARN),
    ],
)
def test_what_is_wrong_at_a_node_is_told(more: dict[str, Any], state: State) -> None:
    found = row("cluster", cluster=node(**more))
    assert found.state is state
    assert found.see


def test_a_halted_node_is_told_though_another_one_was_asked_first() -> None:
    halted = node("b", "halted", halted="its copy is another's")
    found = row("cluster", cluster=node(), nodes={"127.0.0.1:8288": halted})
    assert found.state is State.CRIT
    assert "node b is halted: its copy is another's" in found.said


def test_a_node_that_gives_no_status_is_told() -> None:
    found = row("cluster", cluster=node(), nodes={"127.0.0.1:8288": Unread("it is gone")})
    assert found.state is State.WARN
    assert "127.0.0.1:8288 gives no status: it is gone" in found.said


def test_a_node_that_follows_does_not_guess_how_the_others_are() -> None:
    three = node("b", "following", nodes=["a", "b", "c"])
    found = row("cluster", cluster=three)
    assert found.state is State.UNKNOWN
    assert "only the leader knows how c does" in found.said
    assert found.see.endswith("--http 127.0.0.1:8188")
    assert row("cluster", cluster=node("b", "following")).state is State.OK


def test_the_room_of_a_leader_is_not_guessed_by_a_node_that_follows() -> None:
    follows = node("b", "following")
    found = row("disk", cluster=follows, figures={})
    assert (found.state, found.see) == (State.UNKNOWN, "tidewheel status --http 127.0.0.1:8188")
    full = row("disk", cluster=follows | {"unfit": "its disk has no room"}, figures={})
    assert full.state is State.CRIT


def test_what_could_not_be_read_is_unknown_with_the_reason() -> None:
    gone = Unread("TW-182 alice may not")
    missing = dict.fromkeys(("timers", "groups", "halves", "dead_letters", "figures"), gone)
    rows = screen(answers(**missing))
    assert [one.state for one in rows[1:6]] == [State.UNKNOWN] * 5
    assert all(one.said == gone.why and one.see for one in rows[1:6])
    assert worst(rows) is State.UNKNOWN


def audit(*, findings: int, age_ms: int) -> dict[str, Any]:
    cases = {"order-without-message": findings} if findings else {}
    written_ms = NOW_MS - age_ms
    facts = {"out": "audits", "written_ms": written_ms, "orders": 7, "findings": findings, "cases": cases}
    return facts | {"is_balanced": not findings}


@pytest.mark.parametrize(
    ("findings", "age_ms", "state"),
    [(0, 3_600_000, State.OK), (0, 27 * 3_600_000, State.WARN), (2, 3_600_000, State.CRIT)],
)
def test_the_newest_audit_is_told_if_there_is_one(findings: int, age_ms: int, state: State) -> None:
    last = screen(answers(audit=audit(findings=findings, age_ms=age_ms)))[-1]
    assert (last.name, last.state) == ("audit", state)


def test_a_probe_of_what_is_not_there_is_not_told_that_all_is_well() -> None:
    for name in ("cluster", "audit"):
        assert probed(name, answers(), CHECKS[name].limits).state is State.UNKNOWN


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("30s", (Unit.SPAN, 30_000)),
        ("1h30m", (Unit.SPAN, 5_400_000)),
        ("100", (Unit.COUNT, 100)),
        ("0.5", (Unit.COUNT, 0.5)),
        ("80%", (Unit.PART, 0.8)),
    ],
)
def test_a_limit_is_a_span_a_number_or_a_part(text: str, limit: tuple[Unit, float]) -> None:
    assert parse_limit(text) == limit


@pytest.mark.parametrize("text", ["", "soon", "-1", "%", "80 %", "nan", "inf", "1e3", "²", "."])
def test_what_is_no_limit_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="write it as a span"):
        parse_limit(text)


def test_a_warning_above_critical_is_refused() -> None:
    with pytest.raises(ValueError, match="--warn 20m is above --crit 10m"):
        CHECKS["lag"].limits.with_given((Unit.SPAN, 1_200_000), (Unit.SPAN, 600_000))


def test_topics_that_hold_timers_have_a_row_until_they_are_released() -> None:
    def on_hold(per_second: int | None) -> dict[str, Any]:
        hold = {"topic": "t", "held": 3, "since_ms": str(NOW_MS - 60_000), "reason": "why"}
        return answers(timers=timers(None) | {"pending": 3, "held": [hold | {"per_second": per_second}]})

    assert "held" not in [one.name for one in screen(answers())]
    [found] = [one for one in screen(on_hold(None)) if one.name == "held"]
    assert (found.state, found.see) == (State.WARN, "tidewheel topic show t")
    assert found.said == "t holds 3 timers, for 1m (why)"
    assert judged("late", on_hold(None)).said.startswith("3 timers pending, all held")
    [found] = [one for one in screen(on_hold(5)) if one.name == "held"]
    assert (found.state, found.said) == (State.OK, "t is being released, 5 per second, 3 timers left")
    lost = answers(timers=Unread("gone"))
    assert "held" not in [one.name for one in screen(lost)]
