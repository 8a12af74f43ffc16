"""Omit the rules of the product one at a time, for the cluster of the simulation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from commitlog.facts import acks, facts
from commitlog.log.sink import Part
from commitlog.records import kinds
from commitlog.records.record import TYPE_COMMIT, Record
from services.broker.broker import Broker
from services.broker.groups.receiving import MessageReceiver
from services.broker.halves.transactions import Transactions
from services.broker.housekeeping import Housekeeping
from services.broker.spine.recent_ids import RecentIds
from services.broker.spine.store import Store
from sharedlog.engine import Head
from sharedlog.fold import Position
from sharedlog.record import SharedRecord, encode
from sharedlog.sink import SharedSink
from tests.checker.planted.cluster_play import WatchedCluster
from txn import half
from txn.outcomes import Outcomes

AHEAD_MS = 3_000


def answers_are_believed(patch: pytest.MonkeyPatch) -> None:
    """Count an append as accepted once the engine has answered, regardless of its offset."""

    def lenient(sink: SharedSink, records: list[SharedRecord]) -> None:
        head = Head(*sink._right, Position(sink._fold.end, sink._fold.chain))
        sink._engine.append_if(head, [encode(one) for one in records], sink._current_head())
        sink._fold.end, sink._fold.chain = sink._leader.position

    patch.setattr(SharedSink, "_append_and_prove", lenient)


def repeats_are_stored_again(patch: pytest.MonkeyPatch) -> None:
    """Store a message again if its sender repeats it."""
    patch.setattr(RecentIds, "may_hold", lambda *_: False)


def nothing_is_kept_at_a_cut(patch: pytest.MonkeyPatch) -> None:
    """Keep no half below a cut of retention on a follower."""
    patch.setattr(Housekeeping, "preserve_records_below", lambda *_: None)


def shown_before_accepted(patch: pytest.MonkeyPatch) -> None:
    """Count a flush as durable once it is on the leader's disk; append it to the shared log with the next."""
    beat, late = SharedSink.beat, dict[int, list[SharedRecord]]()

    def catch_up(sink: SharedSink) -> None:
        if records := late.pop(id(sink), None):
            sink._append_proven(records)

    def lazy(sink: SharedSink, first_offset: int, parts: Sequence[Part], epoch: int) -> None:
        sink._require_leadership()
        catch_up(sink)
        sink._local.append(first_offset, parts, epoch)
        late[id(sink)] = sink._leader.make_flush(parts)

    def late_beat(sink: SharedSink, facts: dict[str, Any]) -> None:
        catch_up(sink)
        beat(sink, facts)

    patch.setattr(SharedSink, "append", lazy)
    patch.setattr(SharedSink, "beat", late_beat)


def timeout_is_a_refusal(patch: pytest.MonkeyPatch) -> None:
    """Answer calls of a leader that lost the engine with "fail", as if they had no effect."""
    patch.setattr(WatchedCluster, "tells_refusal", True)


def refused_without_proof(patch: pytest.MonkeyPatch) -> None:
    """Refuse an end by the leader's own table, before the other outcome is accepted."""
    patch.setattr(WatchedCluster, "refuses_at_once", True)


def clock_runs_ahead(patch: pytest.MonkeyPatch) -> None:
    """Deliver timers by a clock that is ahead of the leader's."""
    kept = Broker.tick
    patch.setattr(Broker, "tick", lambda core, now_ms: kept(core, now_ms + AHEAD_MS))


def acknowledgements_are_not_kept(patch: pytest.MonkeyPatch) -> None:
    """Write no acknowledgements to records."""
    patch.setattr(acks, "encoded_parts", lambda _: iter(()))


def cancels_are_not_applied(patch: pytest.MonkeyPatch) -> None:
    """Do not end the timer of a cancel's record."""

    def others(record: Record) -> Iterator[Any]:
        return (one for one in kinds.endings(record) if one.end is not kinds.End.CANCELLED)

    patch.setattr(facts, "endings", others)


def second_end_is_not_refused(patch: pytest.MonkeyPatch) -> None:
    """Accept a second end of a half."""
    kept = Outcomes.end

    def once(outcomes: Outcomes, half_offset: int, *given: Any) -> None:
        if half_offset not in outcomes._ended:
            kept(outcomes, half_offset, *given)

    patch.setattr(Transactions, "read_outcome", lambda *_: None)
    patch.setattr(Outcomes, "end", once)


def commit_does_not_name_its_half(patch: pytest.MonkeyPatch) -> None:
    """Publish the message of a half without ending the half."""
    kept = half._commit

    def unnamed(*given: Any) -> Record:
        made = kept(*given)
        made.sys_flag &= ~TYPE_COMMIT
        made.half_offset = 0
        return made

    patch.setattr(half, "_commit", unnamed)


def follower_does_not_count_places(patch: pytest.MonkeyPatch) -> None:
    """Do not count the queue offset of a record that a follower folds."""
    patch.setattr(Store, "reserve_offset", lambda *_: None)


def message_groups_are_not_held_back(patch: pytest.MonkeyPatch) -> None:
    """Deliver the next message of a message group before the previous one is done."""
    patch.setattr(MessageReceiver, "_may_lease", lambda *_: True)
