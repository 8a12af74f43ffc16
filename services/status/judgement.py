"""Rows of `tidewheel status`, `top` and `check`, computed from the answers of a broker.

    answers     responses of the broker and its nodes, the newest audit; a missing one has a reason
    limits      warning and critical threshold for each unit
    row         state, sentence, the values judged, the command that shows more

    check     row of status   judged by (default limits)
    late      on time         delay of the first overdue timer (1s, 10s); any early delivery
    lag       keeping up      age of the oldest unfinished message (5m, 30m), or the lag of a group; what
                              retention took from a group within a day
    halves    decided         age of the oldest open half (10m, 1h), or the number open; expired halves
    dlq       given up        number of dead letters (1, 1000), or the age of the oldest
    disk      room            used part of the file system (80%, 90%); refusal of new messages
    cluster   copies          lag of the slowest follower (10s, 1m); a halted or unreachable node
    -         held            topics whose timers are held
    audit     audit           age of the newest run (26h, 50h); any finding

Rules
1. An unknown value is UNKNOWN, with the reason, never OK.
2. A row that is not OK names a command.
3. States describe the present. Totals since the start are shown but not evaluated, except early deliveries,
   and missed messages of groups for `MISSED_WARN_MS` after the last.

Limitation: the age of a group's oldest message does not distinguish a backlog from a long lease or a retry
delay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, Final, NamedTuple

from services.times.display import span
from tidewheel.durations import span_ms

Answer = dict[str, Any]
Answers = Mapping[str, Any]


class State(IntEnum):
    """State of a row, in order of severity; UNKNOWN ranks above a warning."""

    OK = 0
    WARN = 1
    UNKNOWN = 2
    CRIT = 3


class Unit(Enum):
    """Unit of a value: milliseconds, a count, or a fraction from 0 to 1."""

    SPAN = "a span (30s)"
    COUNT = "a number (100)"
    PART = "a part (80%)"


class Unread(NamedTuple):
    """Reason for a missing answer."""

    why: str


class Figure(NamedTuple):
    """A value that is evaluated for a row."""

    name: str
    value: float
    unit: Unit


@dataclass(frozen=True, slots=True)
class Row:
    """One row: name, state, message, and the command that shows more (empty if there is none)."""

    name: str
    state: State
    said: str
    see: str = ""
    figures: tuple[Figure, ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """Warning and critical thresholds by unit. Values of other units are not evaluated."""

    warn: Mapping[Unit, float] = field(default_factory=dict)
    crit: Mapping[Unit, float] = field(default_factory=dict)

    def state(self, figures: Iterable[Figure]) -> State:
        """Return the worst state of the values."""
        return max((self._state(one) for one in figures), default=State.OK)

    def _state(self, figure: Figure) -> State:
        if figure.value >= self.crit.get(figure.unit, float("inf")):
            return State.CRIT
        return State.WARN if figure.value >= self.warn.get(figure.unit, float("inf")) else State.OK

    def with_given(self, warn: tuple[Unit, float] | None, crit: tuple[Unit, float] | None) -> Limits:
        """Replace limits; raise ValueError if a warning threshold exceeds the critical one."""
        found = Limits(_replaced(self.warn, warn), _replaced(self.crit, crit))
        for unit, value in found.warn.items():
            if value > found.crit.get(unit, float("inf")):
                raise ValueError(
                    f"--warn {limit_text(unit, value)} is above --crit {limit_text(unit, found.crit[unit])}, "
                    "so nothing would be a warning: give a lower --warn, or a higher --crit"
                )
        return found


class Check(NamedTuple):
    """One check: row title, required answer, default limits, accepted units, and evaluation function."""

    title: str
    needs: str
    limits: Limits
    units: tuple[Unit, ...]
    judge: Callable[[Answers, Limits], Row]


def parse_limit(text: str) -> tuple[Unit, float]:
    """Parse a limit; raise ValueError with the accepted forms."""
    number = text.removesuffix("%")
    if number.replace(".", "", 1).isdecimal() and number.isascii():
        return (Unit.PART, float(number) / 100) if text.endswith("%") else (Unit.COUNT, float(number))
    try:
        return Unit.SPAN, float(span_ms(text))
    except ValueError as error:
        raise ValueError("write it as a span (500ms, 30s, 1h30m), a number (100) or a part (80%)") from error


def limit_text(unit: Unit, value: float) -> str:
    """Format a value in a form that `parse_limit` accepts."""
    if unit is Unit.SPAN:
        return span(int(value))
    return f"{value * 100:g}%" if unit is Unit.PART else f"{value:g}"


def as_plain(row: Row) -> dict[str, Any]:
    """Return a row as JSON values, with time spans in ms and fractions from 0 to 1."""
    return {
        "name": row.name,
        "state": row.state.name,
        "said": row.said,
        "see": row.see,
        "figures": {one.name: {"value": one.value, "unit": one.unit.name.lower()} for one in row.figures},
    }


def judged(name: str, answers: Answers, limits: Limits | None = None) -> Row:
    """Return the row of a check, which is UNKNOWN if its answer is missing."""
    check = CHECKS[name]
    found = answers[check.needs]
    if isinstance(found, Unread):
        return Row(check.title, State.UNKNOWN, found.why, _see_unread(answers, check.needs))
    try:
        return check.judge(answers, limits or check.limits)
    except (KeyError, TypeError, ValueError) as error:
        said = f"the answer is not as this version of the command knows it ({type(error).__name__}: {error})"
        return Row(check.title, State.UNKNOWN, said, "tidewheel version")


def probed(name: str, answers: Answers, limits: Limits) -> Row:
    """Return the row of `tidewheel check`. The check `cluster` is UNKNOWN for a single broker."""
    if name == "cluster" and answers["cluster"] is None:
        return Row("copies", State.UNKNOWN, "this broker is no node of a cluster", "tidewheel status")
    return judged(name, answers, limits)


def screen(answers: Answers) -> list[Row]:
    """Return all rows of `tidewheel status`.

    Rows for an audit and for held topics are included only if there are any.
    """
    names = [name for name in CHECKS if name != "audit" or answers["audit"] is not None]
    return [serving(answers), *(judged(name, answers) for name in names), *held(answers)]


def worst(rows: Iterable[Row]) -> State:
    """Return the worst state of rows."""
    return max((row.state for row in rows), default=State.OK)


# Rows, in screen order.


def serving(answers: Answers) -> Row:
    """Evaluate readiness from the status and text of `/readyz`."""
    said = answers["ready"]
    if isinstance(said, Unread):
        return Row("serving", State.UNKNOWN, said.why, "tidewheel doctor client HOST:PORT")
    status, text = said
    lines = [line for line in text.splitlines() if line and line != "ready"]
    is_node = isinstance(answers["cluster"], dict)
    more = "tidewheel cluster status" if is_node else "tidewheel store info"
    if status != READY:
        return Row("serving", State.CRIT, "; ".join(lines) or "it is not ready", more)
    told = [line for line in lines if not line.startswith("follows ")]
    if not told:
        return Row("serving", State.OK, "; ".join(["ready", *lines]))
    refuses = any(line.startswith("TW-") for line in told)
    state = State.CRIT if refuses else State.WARN
    said, see = zip(*(line.partition(SEE)[::2] for line in lines), strict=True)
    return Row("serving", state, "; ".join(said), next(filter(None, see), more))


def on_time(answers: Answers, limits: Limits) -> Row:
    """Evaluate whether timers are delivered on time."""
    found, late = answers["timers"], answers["timers"]["lateness"]
    next_ms = found["next_due_ms"]
    ahead_ms = None if next_ms is None else int(next_ms) - int(found["now_ms"])
    overdue = Figure("overdue", max(0, -(ahead_ms or 0)), Unit.SPAN)
    figures = (
        overdue,
        Figure("pending", found["pending"], Unit.COUNT),
        Figure("early", late["early_count"], Unit.COUNT),
    )
    state = limits.state((overdue,))
    if ahead_ms is None:
        first = f"{counted(found['pending'], 'timer')} pending, all held" if found["pending"] else _NO_TIMER
    elif ahead_ms >= 0:
        first = f"{counted(found['pending'], 'timer')} pending, the next is due in {span(ahead_ms)}"
    else:
        first = f"{counted(found['pending'], 'timer')} pending, the first is overdue for {span(-ahead_ms)}"
    since = f"; since the start {late['delivered']:,} delivered, p99 {late['p99_ms']} ms late"
    said = first + (since + f", at most {late['max_ms']} ms" if late["delivered"] else "")
    said += f"; {late['after_hold']:,} delivered after a hold" if late["after_hold"] else ""
    if late["early_count"]:
        state, said = State.CRIT, f"{late['early_count']:,} were delivered before their time; {said}"
    return Row("on time", state, said, "tidewheel timer summary", figures)


_NO_TIMER: Final = "no timer is pending"


def held(answers: Answers) -> list[Row]:
    """Return a row for the topics whose timers are held or being released, if there are any."""
    found = [] if isinstance(answers["timers"], Unread) else answers["timers"].get("held", [])
    if not found:
        return []
    figures = (Figure("held", sum(one["held"] for one in found), Unit.COUNT),)
    said = "; ".join(_held_text(one, answers) for one in found[:HELD_NAMED_MAX])
    more = f"; and {len(found) - HELD_NAMED_MAX} more topics" if len(found) > HELD_NAMED_MAX else ""
    state = State.WARN if any(one["per_second"] is None for one in found) else State.OK
    return [Row("held", state, said + more, f"tidewheel topic show {found[0]['topic']}", figures)]


def _held_text(one: Answer, answers: Answers) -> str:
    count = counted(one["held"], "timer")
    if one["per_second"] is not None:
        pace = f"{one['per_second']:,} per second" if one["per_second"] else "at once"
        return f"{one['topic']} is being released, {pace}, {count} left"
    since = age_of(one["since_ms"], answers["now_ms"])
    because = f" ({one['reason']})" if one["reason"] else ""
    return f"{one['topic']} holds {count}, for {span(since)}{because}"


def keeping_up(answers: Answers, limits: Limits) -> Row:
    """Evaluate the lag of consumer groups, and their recently missed messages."""
    lagging, missed = _lagging(answers, limits), _missed_lately(answers)
    if missed is None:
        return lagging
    # The command for missed messages is shown only if no lag is reported, because lag may still cause losses.
    see = missed.see if lagging.state is State.OK else lagging.see
    return Row(
        lagging.name, max(lagging.state, missed.state), f"{missed.said}; {lagging.said}", see, lagging.figures
    )


def _missed_lately(answers: Answers) -> Row | None:
    """Return a warning about messages that retention deleted before a group had processed them.

    Returns None if the last one is older than `MISSED_WARN_MS`.
    """
    lately = [
        one
        for one in answers["groups"]["groups"]
        if one.get("missed_ms") and age_of(one["missed_ms"], answers["now_ms"]) < MISSED_WARN_MS
    ]
    if not lately:
        return None
    most, count = max(lately, key=lambda one: one["missed"]), len(lately)
    ago = span(min(age_of(one["missed_ms"], answers["now_ms"]) for one in lately))
    said = (
        f"retention deleted what {counted(count, 'group')} had not finished, the last {ago} ago: "
        f"{most['name']} has missed {most['missed']:,}"
    )
    return Row("keeping up", State.WARN, said, f"tidewheel group show {most['name']}")


def _lagging(answers: Answers, limits: Limits) -> Row:
    groups = [one for one in answers["groups"]["groups"] if one["lag"]]
    count, now_ms = len(answers["groups"]["groups"]), answers["now_ms"]
    aged = [(age_of(one["oldest_ms"], now_ms), one["lag"], one) for one in groups]
    oldest_ms = max((age_ms for age_ms, _, _ in aged), default=0)
    most = max((lag for _, lag, _ in aged), default=0)
    figures = (Figure("oldest", oldest_ms, Unit.SPAN), Figure("lag", most, Unit.COUNT))
    state = limits.state(figures)
    if not aged:
        return Row(
            "keeping up", state, f"{counted(count, 'group')}, all is done", "tidewheel group ls", figures
        )
    is_late = [
        limits.state((Figure("", age_ms, Unit.SPAN), Figure("", lag, Unit.COUNT))) for age_ms, lag, _ in aged
    ]
    behind = sum(one is not State.OK for one in is_late)
    *_, group = max(zip(is_late, aged, strict=True), key=lambda pair: (pair[0], pair[1][0], pair[1][1]))[1]
    age_ms, name = age_of(group["oldest_ms"], now_ms), group["name"]
    why = f", and {said}" if (said := why_behind(group)) else ""
    of_group = f"{name}: {group['lag']:,} not done, the oldest for {span(age_ms)}{why}"
    of_all = f"{behind:,} of {counted(count, 'group')} behind" if behind else counted(count, "group")
    see = f"tidewheel group lag {name}" if behind else "tidewheel group ls"
    return Row("keeping up", state, f"{of_all}; {of_group}", see, figures)


def decided(answers: Answers, limits: Limits) -> Row:
    """Evaluate open and expired transactions."""
    found, measured = answers["halves"], answers["figures"]
    age_ms = age_of(found["oldest_open_ms"], answers["now_ms"])
    figures: tuple[Figure, ...] = (
        Figure("oldest", age_ms, Unit.SPAN),
        Figure("open", found["open"], Unit.COUNT),
    )
    state = limits.state(figures)
    said = [
        f"{counted(found['open'], 'transaction')} open"
        + (f", the oldest for {span(age_ms)}" if found["open"] else "")
    ]
    see = "tidewheel txn ls"
    if unasked := _figure(measured, "mq_checkback_unasked"):
        unasked_ms = (_figure(measured, "mq_checkback_unasked_age_seconds") or 0) * 1000
        state = max(state, limits.state((Figure("", unasked_ms, Unit.SPAN),)))
        said.append(f"{unasked:,.0f} due for {span(int(unasked_ms))} with no producer to be asked")
        see = "tidewheel txn producers"
    if found["expired"]:
        state = max(state, State.WARN)
        said.append(f"{found['expired']:,} expired undecided: resolve them")
        see = "tidewheel txn ls --state expired"
    figures += (Figure("expired", found["expired"], Unit.COUNT),)
    return Row("decided", state, "; ".join(said), see, figures)


def given_up(answers: Answers, limits: Limits) -> Row:
    """Evaluate the dead letters of groups."""
    groups = [one for one in answers["dead_letters"]["groups"] if one["count"]]
    count = sum(one["count"] for one in groups)
    ages_ms = [age_of(one["oldest_ms"], answers["now_ms"]) for one in groups if one["oldest_ms"]]
    figures = (
        Figure("dead_letters", count, Unit.COUNT),
        Figure("oldest", max(ages_ms, default=0), Unit.SPAN),
    )
    if not groups:
        return Row("given up", limits.state(figures), "no dead letters", "tidewheel dlq ls", figures)
    most = max(groups, key=lambda one: one["count"])
    oldest = f", the oldest for {span(max(ages_ms))}" if ages_ms else ""
    of_groups = f"{counted(count, 'dead letter')} of {counted(len(groups), 'group')}"
    said = f"{of_groups}{oldest}; {most['group']} has {most['count']:,}"
    return Row("given up", limits.state(figures), said, f"tidewheel dlq ls {most['group']}", figures)


def room(answers: Answers, limits: Limits) -> Row:
    """Evaluate the free space of the broker's disk."""
    measured, cluster = answers["figures"], answers["cluster"]
    used = _figure(measured, "mq_disk_used_ratio")
    if used is None:
        return _room_of_node(cluster) if isinstance(cluster, dict) else _no_room_known()
    figure, stored = Figure("used", used, Unit.PART), _figure(measured, "rocketmq_storage_size") or 0
    said = f"{used:.0%} of the file system is used; the log has {stored / 1e6:,.0f} MB"
    state = limits.state((figure,))
    if _figure(measured, "mq_disk_full"):
        state, said = State.CRIT, f"new messages are refused for want of room; {said}"
    return Row("room", state, said, "tidewheel store info", (figure,))


def copies(answers: Answers, limits: Limits) -> Row:
    """Evaluate the nodes of a cluster and the lag of their copies."""
    if answers["cluster"] is None:
        return Row("copies", State.OK, "one broker alone: no cluster, no copies")
    asked = {"": answers["cluster"], **answers["nodes"]}
    heard = [one for one in asked.values() if isinstance(one, dict)]
    found = next((one for one in heard if one["role"] == LEADING), heard[0])
    told = [
        (State.WARN, f"{address} gives no status: {one.why}")
        for address, one in asked.items()
        if isinstance(one, Unread)
    ]
    for one in heard:
        told += _faults(one)
    lags_ms = _lags_ms(found)
    worst_ms = max((lag_ms for lag_ms in lags_ms.values()), default=0)
    figures = (Figure("lag", worst_ms, Unit.SPAN), Figure("followers", len(lags_ms), Unit.COUNT))
    told += [
        (limits.state((Figure("", lag_ms, Unit.SPAN),)), f"{node} is behind for {span(int(lag_ms))}")
        for node, lag_ms in lags_ms.items()
    ]
    told += _uncounted(found, {one["node"] for one in heard})
    bad = [(state, said) for state, said in told if state is not State.OK]
    state = max((state for state, _ in bad), default=State.OK)
    faults = [said for _, said in sorted(bad, key=lambda pair: -pair[0])]
    # Several nodes may report the same fault.
    said = "; ".join([*dict.fromkeys(faults), _roles(found, lags_ms)])
    at = _at_other(found, answers)
    return Row("copies", state, said, f"tidewheel cluster {'status' if at else 'nodes'}{at}", figures)


def audited(answers: Answers, limits: Limits) -> Row:
    """Evaluate the newest audit run."""
    found = answers["audit"]
    if found is None:
        where = f" in {answers['out']}" if "out" in answers else ""
        return Row("audit", State.UNKNOWN, f"no audit was found{where}", "tidewheel audit ls")
    age = Figure("age", max(0, answers["now_ms"] - found["written_ms"]), Unit.SPAN)
    figures = (age, Figure("findings", found["findings"], Unit.COUNT))
    when = f"{span(int(age.value))} ago"
    if found["is_balanced"]:
        said = f"balanced {when}: {found['orders']:,} orders"
        return Row("audit", limits.state((age,)), said, f"tidewheel audit ls --out {found['out']}", figures)
    cases = ", ".join(f"{name} {count:,}" for name, count in found["cases"].items())
    said = f"{found['findings']:,} findings {when}: {cases}" if cases else f"not balanced {when}"
    return Row("audit", State.CRIT, said, f"tidewheel audit show --out {found['out']}", figures)


# Parts of rows.

READY: Final = 200
SEE: Final = ", see: "
"""Separator in a line of `/readyz` before the command that shows more."""
MISSED_WARN_MS: Final = 24 * 3_600_000
"""How long missed messages of a group cause a warning. The count itself remains."""
LEADING: Final = "leading"
CRITICAL_OF_A_NODE: Final = (
    ("halted", "is halted"),
    ("unanswered", "gets no answer from the shared log"),
    ("engine_trouble", "has a misconfigured shared log"),
    ("broken_records", "has found broken records"),
)
WARNING_OF_A_NODE: Final = (
    ("copying", "is getting a copy"),
    ("reopened", "opened its copy again"),
    ("unfit", "is unfit to lead"),
    ("sessions_refused", "is refused new sessions"),
    ("engine_clock", "sees another clock at the shared log"),
)


def age_of(moment_ms: str | None, now_ms: int) -> int:
    """Return the age of a time in ms, or 0 for None."""
    return 0 if moment_ms is None else max(0, now_ms - int(moment_ms))


def counted(count: int, noun: str) -> str:
    """Return a count with its noun."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def why_behind(group: Answer) -> str:
    """Return why nothing is delivered to a group; empty if it has consumers and is not paused."""
    if group["policy"]["is_paused"]:
        return "it is paused"
    return "no consumer of the protocol port is there" if not group["consumers"] else ""


def _figure(measured: Mapping[str, float] | Unread, name: str) -> float | None:
    """Return a metric, or None if it is unknown."""
    return None if isinstance(measured, Unread) else measured.get(name)


def _room_of_node(cluster: Answer) -> Row:
    """Evaluate the disk space of a follower, which reports only its fitness to lead."""
    unfit, leader = cluster.get("unfit") or "", cluster["leader"]
    see = f"tidewheel status --http {leader['http']}" if leader else "tidewheel cluster status"
    if "room" in unfit:
        return Row("room", State.CRIT, f"node {cluster['node']}: {unfit}", see)
    said = "a follower does not report the leader's disk; its own has room to lead"
    return Row("room", State.UNKNOWN, said, see)


def _no_room_known() -> Row:
    return Row("room", State.UNKNOWN, "the broker reports no disk usage", "tidewheel store info")


def _faults(found: Answer) -> list[tuple[State, str]]:
    """Return the faults that a node reports about itself."""
    node = f"node {found['node']}"
    told = [
        (State.CRIT, f"{node} {what}: {_text(found[key])}")
        for key, what in CRITICAL_OF_A_NODE
        if found.get(key)
    ]
    if found["leader"] is None:
        told.append((State.CRIT, f"{node} knows of no leader"))
    if faults := (found.get("scrub") or {}).get("faults"):
        told.append((State.CRIT, f"{node} has found a shared log that lost records: {_text(faults)}"))
    told += [
        (State.WARN, f"{node} {what}: {_text(found[key])}")
        for key, what in WARNING_OF_A_NODE
        if found.get(key)
    ]
    return told


def _text(value: Any) -> str:
    return "; ".join(map(str, value)) if isinstance(value, list) else str(value)


def _lags_ms(found: Answer) -> dict[str, int]:
    """Return replication lags: of all followers on a leader, or of this node otherwise."""
    if found["role"] == LEADING:
        return {f"follower {name}": lag["lag_ms"] for name, lag in found["followers"].items()}
    return {} if found["lag_ms"] is None else {f"node {found['node']}": found["lag_ms"]}


def _uncounted(found: Answer, heard: set[str]) -> list[tuple[State, str]]:
    """Return warnings about copies with unknown lag."""
    if found["role"] == LEADING:
        return [] if found["followers"] else [(State.WARN, "no other node has a copy")]
    leader = found["leader"]["node"] if found["leader"] else ""
    left = sorted({*found["nodes"]} - {leader, *heard})
    read = [(State.WARN, f"node {found['node']} has read nothing yet")] if found["lag_ms"] is None else []
    return [*read, *([(State.UNKNOWN, f"only the leader knows how {', '.join(left)} does")] if left else [])]


def _roles(found: Answer, lags_ms: Mapping[str, int]) -> str:
    if found["role"] == LEADING:
        return f"node {found['node']} leads, {counted(len(lags_ms), 'follower')}"
    leader = found["leader"]
    return f"node {found['node']} is {found['role']}" + (f", node {leader['node']} leads" if leader else "")


def _at_other(found: Answer, answers: Answers) -> str:
    """Return the option for the leader's address, or an empty string if the leader was queried."""
    leader = found["leader"]
    is_leader = answers["cluster"]["role"] == LEADING if isinstance(answers["cluster"], dict) else False
    return "" if is_leader or leader is None else f" --http {leader['http']}"


def _see_unread(answers: Answers, what: str) -> str:
    if what == "audit":
        return "tidewheel audit ls"
    return "tidewheel cluster status" if isinstance(answers["cluster"], dict) else "tidewheel refused"


def _replaced(limits: Mapping[Unit, float], given: tuple[Unit, float] | None) -> dict[Unit, float]:
    return dict(limits) if given is None else {**limits, given[0]: given[1]}


def _spans(warn: str, crit: str) -> Limits:
    return Limits({Unit.SPAN: span_ms(warn)}, {Unit.SPAN: span_ms(crit)})


HELD_NAMED_MAX: Final = 3
"""Maximum number of held topics that the row names."""
SPAN, COUNT, PART = Unit.SPAN, Unit.COUNT, Unit.PART
CHECKS: Final[dict[str, Check]] = {
    "late": Check("on time", "timers", _spans("1s", "10s"), (SPAN,), on_time),
    "lag": Check("keeping up", "groups", _spans("5m", "30m"), (SPAN, COUNT), keeping_up),
    "halves": Check("decided", "halves", _spans("10m", "1h"), (SPAN, COUNT), decided),
    "dlq": Check("given up", "dead_letters", Limits({COUNT: 1}, {COUNT: 1000}), (COUNT, SPAN), given_up),
    "disk": Check("room", "figures", Limits({PART: 0.8}, {PART: 0.9}), (PART,), room),
    "cluster": Check("copies", "cluster", _spans("10s", "1m"), (SPAN,), copies),
    "audit": Check("audit", "audit", _spans("26h", "50h"), (SPAN,), audited),
}
"""All checks by name, in screen order."""
