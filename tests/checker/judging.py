"""Verification of the answers to clients against the accepted history, by kind of violation.

    broken         the log itself: a gap, another chain, an unreadable record
    trimmed        the log lacks records that fewer than two machines hold in a checkpoint
    lost           answered ok, and not in the log
    zombie         answered ok, and only in a dead append
    doubled        the same message twice: id, topic and content
    false refusal  each of its calls was answered fail, and it is in the history; or a false reason
    receipt        answered ok, and stored at another offset than in the receipt
    unsent         a message that no client has sent
    shown          received without an accepted record at its offset, or before the engine had the record
    place          a queue offset with two messages, or a gap between two queue offsets
    early          delivered before it was due, by the clock of the leader that delivered it
    recalled       recall answered ok, and yet delivered; or a timer that ended twice
    outcome        a transaction with two outcomes, with an unrequested one, or with another than answered
    uncommitted    received, and its half is not committed
    again          delivered to a group by a receive that began after its acknowledgement was answered ok
    order          in a message group: received after a later one or before an earlier one was acknowledged,
                   or stored before a message whose send had ended
    never shown    all work has settled, and a group has not received a message of the history
    stalled        a check-back, a message group or all sends waited too long without a fault (`progress`)

Each violation is reported as a sentence. Open calls allow both results: an unknown call may or may not have
happened. If the log is broken or trimmed, calls are verified only as far as their records are visible.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise

from folding import Folded
from ledger import CANCELLED, COMMIT, DELIVERED, EXPIRED, OTHER, REPLACED, ROLLBACK, Ledger
from progress import told_late
from raw_log import RawLog
from stored_records import Record, What, records_of
from told import FAIL, OK, Call, History, Seen

TAKEN_MS_MAX = 70_000
"""The longest time from a leader's decision on a record to its append in the engine, which may be paused."""


class Case:
    """A history and a log to be verified; `clock_ms` is the allowed difference of clocks."""

    def __init__(
        self, history: History, log: RawLog, folded: Folded, clock_ms: int = 0, needed: int | None = None
    ) -> None:
        self.history, self.log, self.folded, self.clock_ms = history, log, folded, clock_ms
        self.needed_offset = needed
        """The first needed record, if given; otherwise it follows from the checkpoints."""
        self.unreadable: list[str] = []
        self.accepted = Ledger(records_of(folded.accepted, self.unreadable))
        self.dead = Ledger(records_of(folded.dead, []))
        self.sends: defaultdict[tuple[str, str], list[Call]] = defaultdict(list)
        for call in history.of("send"):
            self.sends[call.topic, call.message_id].append(call)

    def sent(self, call: Call, ledger: Ledger) -> list[Record]:
        """Return the records of the message of a send, by topic, id and content."""
        found = ledger.of(call.topic, call.message_id)
        return [one for one in found if call.fields["hash"] in one.hashes]

    def is_in_sight(self, call: Call) -> bool:
        """Return whether the record of a call answered ok would be in the visible part of the log."""
        return self.folded.is_whole or call.told.get("offset", -1) >= self.folded.begins_at


def _broken(case: Case) -> Iterator[str]:
    if case.folded.broken:
        yield f"The log is broken: {case.folded.broken}."
    yield from case.unreadable


def _trimmed(case: Case) -> Iterator[str]:
    needed = case.history.copied_offset if case.needed_offset is None else case.needed_offset
    if case.log.first_offset > needed:
        yield f"The log begins at record {case.log.first_offset}; needed is all from record {needed} on."


def _gone(case: Case) -> Iterator[tuple[str, bool]]:
    """Yield the calls answered ok that are not in the history, and whether a dead append has them."""
    for call in case.history.of("send", OK):
        if case.is_in_sight(call) and not case.sent(call, case.accepted):
            yield str(call), bool(case.sent(call, case.dead))
    if not case.folded.is_whole:
        return
    for call in case.history.of("end", OK):
        of = call.topic, call.message_id
        if case.accepted.halves_of(*of) and not case.accepted.outcomes_of(*of):
            yield f"{call.fields['resolution']}, {call}", _is_end_dead(case, call)
    for call in case.history.of("recall", OK):
        of = call.topic, call.message_id
        if not case.accepted.timer_ends_of(*of):
            yield str(call), _is_recall_dead(case, call)
    for call in case.history.of("ack", OK):
        key, offset = (call.group, call.topic, call.fields["queue"]), call.fields["offset"]
        if offset not in case.accepted.done.get(key, ()):
            yield str(call), offset in case.dead.done.get(key, ())


def _is_end_dead(case: Case, call: Call) -> bool:
    halves = case.accepted.halves_of(call.topic, call.message_id)
    return any(half.offset in case.dead.half_ends for half in halves)


def _is_recall_dead(case: Case, call: Call) -> bool:
    timers = case.accepted.of(call.topic, call.message_id)
    return any(timer.offset in case.dead.timer_ends for timer in timers)


def _lost(case: Case) -> Iterator[str]:
    for what, is_dead in _gone(case):
        if not is_dead:
            yield f"Told ok, and not in the accepted history: {what}."


def _zombie(case: Case) -> Iterator[str]:
    for what, is_dead in _gone(case):
        if is_dead:
            yield f"Told ok by who led no more, its record lies only in a dead append: {what}."


def _doubled(case: Case) -> Iterator[str]:
    ledger = case.accepted
    timers = [one for one in ledger.timers if "TW_REPLACES" not in one.properties]
    messages = [one for one in ledger.messages if not _is_new_by_right(one)]
    for what, records in (("message", messages), ("timer", timers), ("half", ledger.halves)):
        places: defaultdict[tuple[str, str, bytes], list[int]] = defaultdict(list)
        for one in records:
            if one.message_id:
                places[one.topic, one.message_id, one.body].append(one.offset)
        for (topic, message_id, _), offsets in places.items():
            if len(offsets) > 1:
                yield f"The same {what} {message_id} of {topic} stands at CommitLog {offsets}."


def _is_new_by_right(one: Record) -> bool:
    """Return whether a message is a requested copy: a redrive, or one of a schedule."""
    return "TW_REDRIVE_OF" in one.properties or "TW_SCHEDULE" in one.properties


def _false_refusal(case: Case) -> Iterator[str]:
    for calls in case.sends.values():
        for content in {call.fields["hash"] for call in calls}:
            same = [call for call in calls if call.fields["hash"] == content]
            if _all_failed(same) and (found := case.sent(same[0], case.accepted)):
                yield f"Told fail, and it stands at CommitLog {found[0].offset}: {same[0]}."
    for (topic, message_id), calls in _by_message(case.history.of("end")).items():
        for resolution in (COMMIT, ROLLBACK):
            same = [call for call in calls if call.fields["resolution"] == resolution]
            if _all_failed(same) and resolution in case.accepted.outcomes_of(topic, message_id):
                yield f"Told fail, and the half has ended by {resolution}: {same[0]}."
    yield from _refusals_without_proof(case)
    for (topic, message_id), calls in _by_message(case.history.of("recall")).items():
        if _all_failed(calls) and CANCELLED in case.accepted.timer_ends_of(topic, message_id):
            yield f"Told fail, and the timer was cancelled: {calls[0]}."


def _refusals_without_proof(case: Case) -> Iterator[str]:
    """Compare refusals that name another outcome with the outcome in the history."""
    for call in case.history.of("end", FAIL):
        ways = case.accepted.outcomes_of(call.topic, call.message_id)
        said = call.told.get("ended")
        if said is not None and said not in ways and case.folded.is_whole:
            yield f"Told fail since it had ended by {said}, and it is {ways[0] if ways else 'open'}: {call}."


def _all_failed(calls: list[Call]) -> bool:
    return bool(calls) and all(call.outcome == FAIL for call in calls)


def _by_message(calls: list[Call]) -> dict[tuple[str, str], list[Call]]:
    found: defaultdict[tuple[str, str], list[Call]] = defaultdict(list)
    for call in calls:
        found[call.topic, call.message_id].append(call)
    return found


def _receipt(case: Case) -> Iterator[str]:
    for call in case.history.of("send", OK):
        found = case.sent(call, case.accepted)
        for name, places in (
            ("offset", [one.offset for one in found]),
            ("queue_offset", [one.queue_offset for one in found]),
        ):
            if found and name in call.told and call.told[name] not in places:
                yield f"The receipt says {name} {call.told[name]}, and it stands at {places}: {call}."


def _unsent(case: Case) -> Iterator[str]:
    topics = {topic for topic, _ in case.sends}
    for one in case.accepted.messages:
        if (
            one.topic in topics
            and not _is_new_by_right(one)
            and (one.topic, one.message_id) not in case.sends
        ):
            yield f"CommitLog {one.offset}: nobody has sent {one.message_id} to {one.topic}."


def _shown(case: Case) -> Iterator[str]:
    first = _first_places(case)
    for seen in case.history.seen:
        topic, queue, offset = seen.place
        record = case.accepted.message_at(*seen.place)
        if record is None:
            if offset >= first.get((topic, queue), 0 if case.folded.is_whole else offset + 1):
                yield f"Seen, and no accepted record lies there: {seen}."
        elif record.message_id == seen.message_id and record.piece.taken_ms > seen.time_ms + case.clock_ms:
            ahead = record.piece.taken_ms - seen.time_ms
            yield f"Seen {ahead} ms before the engine had its record: {seen}."


def _first_places(case: Case) -> dict[tuple[str, int], int]:
    """Return the first visible queue offset of each queue."""
    first: dict[tuple[str, int], int] = {}
    for topic, queue, offset in case.accepted.at_place:
        first[topic, queue] = min(offset, first.get((topic, queue), offset))
    return first


def _place(case: Case) -> Iterator[str]:
    offsets: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for (topic, queue, offset), records in case.accepted.at_place.items():
        offsets[topic, queue].append(offset)
        if len(records) > 1:
            ids = [one.message_id for one in records]
            yield f"{topic}/{queue}/{offset} has {len(records)} messages: {ids}."
    for (topic, queue), taken in offsets.items():
        for before, offset in pairwise(sorted(taken)):
            if offset != before + 1:
                yield f"{topic}/{queue} has no message between {before} and {offset}."
    for seen in case.history.seen:
        record = case.accepted.message_at(*seen.place)
        if record is not None and record.message_id != seen.message_id:
            yield f"{seen} is the place of {record.message_id}."


def _early(case: Case) -> Iterator[str]:
    for one in case.accepted.messages:
        due_ms = one.due_ms if one.timer_offset is not None and one.verb != "FIRE" else None
        if due_ms is not None and one.store_ms + case.clock_ms < due_ms:
            yield f"{one.message_id} was delivered at {one.store_ms}, {due_ms - one.store_ms} ms early."
    for seen in case.history.seen:
        due_ms = _due_ms(case, seen)
        is_early = seen.time_ms + case.clock_ms < due_ms
        if is_early and not _was_due_by_its_leader(case, seen, due_ms):
            yield f"Seen {due_ms - seen.time_ms} ms before it was due: {seen}."


def _was_due_by_its_leader(case: Case, seen: Seen, due_ms: int) -> bool:
    """Return whether a message was due by the wrong clock of the leader that delivered it."""
    record = case.accepted.message_at(*seen.place)
    if record is None:
        return False
    leader, taken_ms = case.folded.leader_at(record.piece.offset), record.piece.taken_ms
    return any(
        one.node == leader
        and one.from_ms <= taken_ms <= one.until_ms + TAKEN_MS_MAX
        and min(taken_ms, one.until_ms) + one.offset_ms >= due_ms
        for one in case.history.clocks
    )


def _due_ms(case: Case, seen: Seen) -> int:
    """Return the due time of a message in ms: its sender's, or that set by a later verb."""
    record = case.accepted.message_at(*seen.place)
    if record is not None and record.verb == "FIRE":
        return 0
    timer = case.accepted.by_offset.get(record.timer_offset or -1) if record is not None else None
    if record is not None and timer is not None and "TW_REPLACES" in timer.properties:
        return record.due_ms or 0
    sends = case.sends.get((seen.call.topic, seen.message_id), [])
    return min((int(call.fields.get("due_ms", 0)) for call in sends), default=0)


def _recalled(case: Case) -> Iterator[str]:
    told = {(call.topic, call.message_id): call for call in case.history.of("recall", OK)}
    for one in case.accepted.messages:
        if (call := told.get((one.topic, one.message_id))) is not None:
            yield f"Delivered at CommitLog {one.offset} although told ok: {call}."
    for seen in case.history.seen:
        if (call := told.get((seen.call.topic, seen.message_id))) is not None:
            yield f"Seen although told ok: {call}, {seen}."
    for timer, ends in case.accepted.timer_ends.items():
        ways = [end.how for end in ends if end.how in (CANCELLED, DELIVERED, REPLACED, OTHER)]
        if len(ways) > 1:
            yield f"The timer at CommitLog {timer} has ended {len(ways)} times: {', '.join(ways)}."


def _outcome(case: Case) -> Iterator[str]:
    for half, ends in case.accepted.half_ends.items():
        ways = [end.how for end in ends]
        if any(before != EXPIRED for before in ways[:-1]):
            yield f"The half at CommitLog {half} has ended {len(ways)} times: {', '.join(ways)}."
    yield from _outcomes_not_told(case)
    asked = {(call.topic, call.message_id, call.fields["resolution"]) for call in case.history.of("end")}
    for half_record in case.accepted.halves:
        of = half_record.topic, half_record.message_id
        for end in case.accepted.half_ends.get(half_record.offset, []):
            if of in case.sends and end.how != EXPIRED and (*of, end.how) not in asked:
                yield f"{of[1]} has ended by {end.how}, which nobody has asked for."


def _outcomes_not_told(case: Case) -> Iterator[str]:
    for call in case.history.of("end", OK):
        ways = case.accepted.outcomes_of(call.topic, call.message_id)
        if ways and call.fields["resolution"] not in ways:
            yield f"Told that it ended by {call.fields['resolution']}, and it is {ways[0]}: {call}."


def _uncommitted(case: Case) -> Iterator[str]:
    for seen in case.history.seen:
        calls = case.sends.get((seen.call.topic, seen.message_id), [])
        is_half = bool(calls) and all(call.fields["kind"] == "half" for call in calls)
        ways = case.accepted.outcomes_of(seen.call.topic, seen.message_id)
        if is_half and COMMIT not in ways and case.folded.is_whole:
            yield f"Seen, and its half is {ways[0] if ways else 'open'}: {seen}."


def _again(case: Case) -> Iterator[str]:
    told: dict[tuple[str, str, int, int, str], Call] = {}
    for call in case.history.of("ack", OK):
        place = call.group, call.topic, call.fields["queue"], call.fields["offset"], call.message_id
        if place not in told or call.ended < told[place].ended:
            told[place] = call
    for seen in case.history.seen:
        done = told.get((seen.call.group, *seen.place, seen.message_id))
        if done is not None and seen.call.began > done.ended:
            yield f"Given out again after {done} was told ok: {seen}."


def _order(case: Case) -> Iterator[str]:
    yield from _orders_of_sends(case)
    lines = {
        place: (one.topic, one.queue_id, one.properties["__SHARDINGKEY"])
        for place, (one, *_) in case.accepted.at_place.items()
        if "__SHARDINGKEY" in one.properties and one.timer_offset is None
    }
    tried = _first_tries(case)
    by_line: defaultdict[tuple[str, tuple[str, int, str]], list[Seen]] = defaultdict(list)
    for seen in case.history.seen:
        if (line := lines.get(seen.place)) is not None:
            by_line[seen.call.group, line].append(seen)
    for (group, line), many in by_line.items():
        places = sorted(offset for (_, _, offset), of in lines.items() if of == line)
        yield from _orders_of_line(group, places, many, tried)


def _orders_of_sends(case: Case) -> Iterator[str]:
    """Compare the offsets of the messages of a message group with the order of their sends."""
    newest: dict[tuple[str, str], tuple[Call, Record]] = {}
    sends = [call for call in case.history.of("send", OK) if call.fields.get("line")]
    for call in sorted(sends, key=lambda one: one.ended):
        found = [one for one in case.sent(call, case.accepted) if one.what is What.MESSAGE]
        if not found or call.fields["kind"] != "fifo":
            continue
        key, record = (call.topic, call.fields["line"]), found[0]
        before = newest.get(key)
        if before is not None and before[0].ended < call.began and record.offset < before[1].offset:
            yield f"{call} was sent after {before[0]} was told ok, and stands before it."
        if before is None or record.offset > before[1].offset:
            newest[key] = call, record


def _first_tries(case: Case) -> dict[tuple[str, str, int, int], int]:
    """Return the line of each group's first acknowledgement by (group, topic, queue, queue offset).

    A push consumer acknowledges without a line of its own: from the message's arrival on at the earliest.
    """
    tried: dict[tuple[str, str, int, int], int] = {}
    for call in case.history.of("ack"):
        place = call.group, call.topic, call.fields["queue"], call.fields["offset"]
        tried[place] = min(call.began, tried.get(place, call.began))
    places = defaultdict(list)
    for at, (record, *_) in case.accepted.at_place.items():
        places[at[0], record.message_id].append(at)
    for came in case.history.came:
        for at in places[came.topic, came.message_id]:
            tried[came.group, *at] = min(came.line, tried.get((came.group, *at), came.line))
    return tried


def _orders_of_line(
    group: str, places: list[int], many: list[Seen], tried: dict[tuple[str, str, int, int], int]
) -> Iterator[str]:
    """Compare the messages received by a group with the order of their message group in the queue.

    An acknowledgement tried before one line of the history was tried before all later lines: offsets before
    `done_count` are not examined again, so the cost of a message group is linear.
    """
    first_seen: dict[int, Seen] = {}
    offsets: list[int] = []
    done_count = 0
    for seen in sorted(many, key=lambda one: one.line):
        later = [first_seen[offset] for offset in offsets[bisect_right(offsets, seen.offset) :]]
        if any(one.line < seen.call.began for one in later):
            yield f"Behind a later one of its message group: {seen}."
        until = bisect_left(places, seen.offset)
        keys = [(group, *seen.place[:2], earlier) for earlier in places[done_count:until]]
        for key in keys:
            earlier = key[-1]
            at = first_seen.get(earlier)
            is_same_answer = at is not None and at.call is seen.call
            if not is_same_answer and tried.get(key, seen.line) >= seen.line:
                yield f"Before the one at {earlier} was acknowledged: {seen}."
                break
        for key in keys:
            if tried.get(key, seen.line) >= seen.line:
                break
            done_count += 1
        if seen.offset not in first_seen:
            first_seen[seen.offset] = seen
            insort(offsets, seen.offset)


def _never_shown(case: Case) -> Iterator[str]:
    tried = _first_tries(case)
    for group, topics in case.history.settled:
        seen = {one.place for one in case.history.seen if one.call.group == group}
        seen |= {(topic, queue, offset) for of, topic, queue, offset in tried if of == group}
        for place, records in case.accepted.at_place.items():
            is_sent = (records[0].topic, records[0].message_id) in case.sends
            if place[0] in topics and is_sent and place not in seen:
                yield f"All has settled, and {group} has not got {records[0].message_id} at {place}."
        yield from _never_due(case, topics)


def _never_due(case: Case, topics: list[str]) -> Iterator[str]:
    newest_ms = max((one.store_ms for one in case.accepted.messages), default=0)
    for timer in case.accepted.timers:
        is_due = timer.due_ms is not None and timer.due_ms < newest_ms
        if is_due and timer.topic in topics and timer.offset not in case.accepted.timer_ends:
            yield f"All has settled, and the timer of {timer.message_id} has not ended."


def _stalled(case: Case) -> Iterator[str]:
    yield from told_late(case.history.waiting.late)


KINDS: dict[str, Callable[[Case], Iterator[str]]] = {
    "broken": _broken,
    "trimmed": _trimmed,
    "lost": _lost,
    "zombie": _zombie,
    "doubled": _doubled,
    "false refusal": _false_refusal,
    "receipt": _receipt,
    "unsent": _unsent,
    "shown": _shown,
    "place": _place,
    "early": _early,
    "recalled": _recalled,
    "outcome": _outcome,
    "uncommitted": _uncommitted,
    "again": _again,
    "order": _order,
    "never shown": _never_shown,
    "stalled": _stalled,
}


def judged(case: Case) -> dict[str, list[str]]:
    """Return the violations by kind, without kinds that have none."""
    found = {kind: list(judge(case)) for kind, judge in KINDS.items()}
    return {kind: sentences for kind, sentences in found.items() if sentences}


def told_counts(history: History) -> dict[str, int]:
    """Return the number of calls by verb and outcome."""
    return dict(sorted(Counter(f"{one.verb} {one.outcome}" for one in history.calls.values()).items()))
