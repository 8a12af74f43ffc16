"""The checker finds every planted fault, and reports nothing for sound runs.

Each fault is one rule omitted from the real code, which then runs in the simulation; the checker, in a
separate process, gets the clients' history and the engine's raw log, and must report the right kind. Faults
that no schedule of the simulation causes are planted in the two files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from commitlog import limits
from sharedlog.fold import Fold
from sharedlog.record import CHAIN_AT_GENESIS, NOBODY, Kind, SharedRecord, decode, encode
from tests.checker.planted import cluster_faults, cluster_play, sharedlog_faults, sharedlog_play
from tests.checker.progress import DUE_MS, LATE_MS
from tests.checker_process import judged
from tests.history_file import write_log
from tests.simulation import test_sharedlog
from tests.simulation.shared_world import Rules

SEEDS_MAX = 12
EPOCH, BYTES = 2, 3


@pytest.fixture(autouse=True)
def _timers_in_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliver due timers as columns, regardless of their number."""
    monkeypatch.setattr(limits, "TIMER_RUN_MIN", 1)


class Planted(NamedTuple):
    """An omitted rule, the kind expected of the checker, and a seed that triggers it."""

    rule: Callable[[pytest.MonkeyPatch], Any]
    kind: str
    seed: int = 0


CLUSTER = [
    Planted(cluster_faults.answers_are_believed, "zombie", 172),
    # Answers wait for a proof, with which such a leader catches up: the message is lost, not shown early.
    Planted(cluster_faults.shown_before_accepted, "lost", 1),
    Planted(cluster_faults.refused_without_proof, "false refusal", 24),
    Planted(cluster_faults.timeout_is_a_refusal, "false refusal"),
    Planted(cluster_faults.repeats_are_stored_again, "doubled", 2),
    Planted(cluster_faults.nothing_is_kept_at_a_cut, "outcome", 3),
    Planted(cluster_faults.second_end_is_not_refused, "outcome", 4),
    Planted(cluster_faults.commit_does_not_name_its_half, "uncommitted", 4),
    Planted(cluster_faults.clock_runs_ahead, "early"),
    Planted(cluster_faults.cancels_are_not_applied, "recalled"),
    Planted(cluster_faults.acknowledgements_are_not_kept, "again"),
    Planted(cluster_faults.message_groups_are_not_held_back, "order", 4),
    Planted(cluster_faults.follower_does_not_count_places, "place", 2),
]
SHARED_LOG = [
    Planted(test_sharedlog.gap_is_read_over, "zombie"),
    Planted(test_sharedlog.gap_is_believed, "lost", 3),
    Planted(sharedlog_faults.chain_is_skipped, "broken"),
    Planted(test_sharedlog.candidate_is_not_asked_for_its_history, "shown"),
    Planted(test_sharedlog.local_disk_is_believed, "place"),
    Planted(test_sharedlog.one_copy_is_enough_to_trim, "trimmed", 1),
    Planted(test_sharedlog.holder_is_the_name_of_the_node, "broken", 43),
]


def named(planted: Planted) -> str:
    return f"{planted.rule.__name__}-{planted.kind.replace(' ', '_')}"


def seeds(first: int) -> Iterator[int]:
    """Yield a seed known to find the fault; then others, in case schedules have changed."""
    yield first
    yield from (seed for seed in range(SEEDS_MAX) if seed != first)


@pytest.mark.parametrize("planted", CLUSTER, ids=named)
def test_a_rule_that_a_cluster_leaves_out_is_found(
    planted: Planted, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    planted.rule(monkeypatch)
    for seed in seeds(planted.seed):
        code, report = judged(*cluster_play.play(seed).dump(tmp_path))
        if planted.kind in report["counts"]:
            assert code == 1
            return
    pytest.fail(f"{SEEDS_MAX} schedules have not found it")


@pytest.mark.parametrize("planted", SHARED_LOG, ids=named)
def test_a_rule_that_the_shared_log_leaves_out_is_found(
    planted: Planted, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rules: Rules = planted.rule(monkeypatch)
    for seed in seeds(planted.seed):
        if seed % 3 == 2:
            continue  # with these seeds the engine itself breaks its promise
        code, report = judged(*sharedlog_play.play(seed, rules).dump(tmp_path))
        if planted.kind in report["counts"]:
            assert code == 1
            return
    pytest.fail(f"{SEEDS_MAX} schedules have not found it")


@pytest.mark.parametrize("seed", range(5))
def test_a_sound_cluster_passes(seed: int, tmp_path: Path) -> None:
    world = cluster_play.play(seed)
    code, report = judged(*world.dump(tmp_path))
    assert (world.stopped, report["cases"], code) == ("", {}, 0)
    assert report["log"]["epochs"] > 1
    assert report["calls"]["send unknown"] > 0


def test_clocks_are_noted_as_off_since_the_first_call() -> None:
    world = cluster_play.WatchedCluster(1)
    assert world.nodes[0].ahead_ms, "the clock by which the world begins is off"
    calls = [line["time_ms"] for line in world.history.lines if line["type"] == "invoke"]
    assert max(since_ms for _, since_ms in world._clocks.values()) <= min(calls)


def test_among_the_sound_ones_are_zombies(tmp_path: Path) -> None:
    world = cluster_play.play(0)
    _, report = judged(*world.dump(tmp_path))
    assert world.zombie_count > 0
    assert report["log"]["dead"] > 0


@pytest.mark.parametrize("seed", [seed for seed in range(30) if seed % 3 != 2])
def test_a_sound_shared_log_passes_trimmed_or_not(seed: int, tmp_path: Path) -> None:
    world = sharedlog_play.play(seed)
    code, report = judged(*world.dump(tmp_path))
    assert (world.stopped, report["cases"], code) == ("", {}, 0)


def test_an_engine_that_loses_its_end_is_found(tmp_path: Path) -> None:
    world = sharedlog_play.play(8)
    assert world.engine.is_short
    code, report = judged(*world.dump(tmp_path))
    assert code == 1
    assert report["counts"].keys() >= {"lost", "broken", "shown"}


@pytest.mark.parametrize("seed", [8, 11, 14, 20])
def test_a_restored_backup_that_nodes_believe_is_found_though_the_log_has_grown_again(
    seed: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rules = sharedlog_faults.restored_backup_is_believed(monkeypatch)
    world = sharedlog_play.play(seed, rules)
    assert (world.engine.is_short, world.stopped) == (True, "")
    _, report = judged(*world.dump(tmp_path))
    assert "broken" not in report["counts"], "the log itself is as sound as one that was never restored"
    assert report["counts"]["lost"]


# Faults planted in the files of a sound run.


class Files:
    """The history and the log of a sound run, to be modified."""

    def __init__(self, folder: Path, world: cluster_play.WatchedCluster) -> None:
        self.folder, self.lines = folder, deepcopy(world.history.lines)
        self.records = [(at, world.engine._taken_ms[at], one) for at, one in enumerate(world.engine.records)]
        self.first_offset = 0
        self.restored: list[tuple[int, int, bytes]] = []
        """The log of a cluster created from a node's store after the loss of the engine."""

    def kind_at(self, at: int) -> int:
        """Return the kind of a record of the shared log."""
        return self.records[at][2][20]

    def is_same_right(self, at: int) -> bool:
        """Return whether a record and the next one have the same epoch and holder."""
        return self.records[at][2][22:46] == self.records[at + 1][2][22:46]

    def is_followed_by_others(self, at: int) -> bool:
        """Return whether a record and the next are different BYTES of the same epoch and holder."""
        is_doubled = self.records[at][2] == self.records[at + 1][2]
        is_bytes = self.kind_at(at) == BYTES == self.kind_at(at + 1)
        return is_bytes and self.is_same_right(at) and not is_doubled

    def is_only_right(self, at: int) -> bool:
        """Return whether a record is an unrepeated EPOCH, followed by a record of its leader."""
        is_doubled = self.records[at][2] in (self.records[at - 1][2], self.records[at + 1][2])
        return self.kind_at(at) == EPOCH and self.is_same_right(at) and not is_doubled

    def judged(self) -> tuple[int, dict[str, Any]]:
        """Write both files, and run the checker; return its exit code and report."""
        history, log = self.folder / "history.jsonl", self.folder / "log.bin"
        history.write_text("".join(f"{json.dumps(line)}\n" for line in self.lines))
        write_log(log, self.first_offset, self.records)
        if not self.restored:
            return judged(history, log)
        restored = self.folder / "restored.bin"
        write_log(restored, 0, self.restored)
        return judged(history, log, "--restored", str(restored))

    def accepted_end(self, count: int) -> int:
        """Return the end of the accepted history of the first `count` records."""
        fold = Fold(decode(self.records[0][2], None).cluster)
        for at, _, stored in self.records[:count]:
            fold.apply_record(at, stored)
        return fold.end

    def restore(self, start: int) -> None:
        """Simulate the loss of the engine, and a new cluster from a store with the history up to `start`."""
        genesis = SharedRecord(b"a cluster anew  ", Kind.GENESIS, 1_000, NOBODY, start, CHAIN_AT_GENESIS)
        self.restored = [(0, 0, encode(genesis))]

    def told(self, **fields: Any) -> tuple[dict[str, Any], int]:
        """Return the first send with these fields that was answered ok, and the index of its answer."""
        ends = {line["call"]: at for at, line in enumerate(self.lines) if line["type"] == "ok"}
        sends = [line for line in self.lines if line.get("verb") == "send" and line["call"] in ends]
        send = next(line for line in sends if fields.items() <= line.items())
        return send, ends[send["call"]]

    def calm(self, at: int, lasts_ms: int) -> None:
        """Insert the start of a calm before a line, and its end, `lasts_ms` later, after all lines."""
        time_ms = next(line["time_ms"] for line in self.lines[at:] if "time_ms" in line)
        self.lines.insert(at, {"type": "calm", "is_calm": True, "time_ms": time_ms})
        self.lines.append({"type": "calm", "is_calm": False, "time_ms": time_ms + lasts_ms})


@pytest.fixture(scope="module")
def sound() -> cluster_play.WatchedCluster:
    return cluster_play.play(4)


def bit_is_flipped(files: Files) -> str:
    at, taken_ms, stored = files.records[40]
    files.records[40] = at, taken_ms, stored[:-1] + bytes((stored[-1] ^ 1,))
    return "broken"


def bytes_are_missing(files: Files) -> str:
    del files.records[next(at for at in range(60, 999) if files.is_followed_by_others(at))]
    return "broken"


def epoch_is_missing(files: Files) -> str:
    del files.records[next(at for at in range(60, 999) if files.is_only_right(at))]
    return "broken"


def trimmed_without_a_checkpoint(files: Files) -> str:
    files.first_offset = 20
    del files.records[:20]
    return "trimmed"


def accepted_copy_is_dropped_at_open(files: Files) -> str:
    """Lose the engine, with a node that has cut its log to its newest checkpoint at its restart."""
    files.restore(files.accepted_end(len(files.records) // 2))
    return "lost"


def backup_is_restored_unnoticed(files: Files) -> str:
    del files.records[len(files.records) // 2 :]
    return "lost"


def hole_is_acknowledged_on(files: Files) -> str:
    """Delete a row from the middle; the leader continues, and no other node can fold its later records."""
    bytes_are_missing(files)
    return "lost"


def doubled_row_kills_nodes(files: Files) -> str:
    """Let each node exit at each start: no call is answered from then on, although there is no fault."""
    ends = len(files.lines) // 2
    del files.lines[ends:]
    time_ms = max(line.get("time_ms", 0) for line in files.lines)
    double(files, 60)
    files.lines.append({"type": "calm", "is_calm": True, "time_ms": time_ms})
    files.lines.append({"type": "calm", "is_calm": False, "time_ms": time_ms + 50_000})
    return "stalled: No send"


def double(files: Files, at: int) -> None:
    """Duplicate a row."""
    files.records.insert(at, files.records[at])


def check_backs_make_no_progress(files: Files) -> str:
    waiting_half(files, lasts_ms=DUE_MS + LATE_MS + 1)
    return "stalled: about the half"


def waiting_half(files: Files, lasts_ms: int) -> str:
    """Leave a half to check-backs, during a calm of `lasts_ms`; return the half's id."""
    send, at = files.told(kind="half")
    send["asks"], time_ms = True, files.lines[at]["time_ms"]
    gone = {line["call"] for line in files.lines if line.get("verb") == "end" and line["id"] == send["id"]}
    files.lines = [line for line in files.lines if line.get("call", 0) not in gone]
    files.lines.append({"type": "calm", "is_calm": True, "time_ms": time_ms})
    files.lines.append({"type": "calm", "is_calm": False, "time_ms": time_ms + lasts_ms})
    return str(send["id"])


def message_group_makes_no_progress(files: Files) -> str:
    """Remove the consumer of a message group without releasing the group."""
    send, _ = files.told(kind="fifo")
    names = {line["id"] for line in files.lines if line.get("line") == send["line"]}
    tries = {line["call"] for line in files.lines if line.get("verb") == "ack" and line["id"] in names}
    files.lines = [
        line
        for line in files.lines
        if line.get("call", 0) not in tries and not (line["type"] == "seen" and line["id"] in names)
    ]
    files.calm(files.told(kind="fifo")[1], lasts_ms=LATE_MS + 1)
    return "stalled: message group"


def receipt_of_another_place(files: Files) -> str:
    told = next(line for line in files.lines if line["type"] == "ok" and "queue_offset" in line)
    told["queue_offset"] += 1
    return "receipt"


def message_that_nobody_sent(files: Files) -> str:
    sends = [line for line in files.lines if line.get("verb") == "send" and line["kind"] == "plain"]
    gone = next(one for one in sends if _was_seen(files, one["id"]))
    files.lines = [line for line in files.lines if line.get("call") != gone["call"]]
    return "unsent"


def message_that_never_came(files: Files) -> str:
    gone = next(line["id"] for line in files.lines if line["type"] == "seen")
    files.lines = [
        line
        for line in files.lines
        if line.get("id") != gone or (line["type"] != "seen" and line["verb"] != "ack")
    ]
    calls = {line["call"] for line in files.lines if line["type"] == "invoke"}
    files.lines = [line for line in files.lines if line.get("call", 0) in {0, *calls}]
    return "never shown"


def seen_before_the_engine_had_it(files: Files) -> str:
    files.records = [(at, taken_ms + 60_000, stored) for at, taken_ms, stored in files.records]
    return "shown"


def _was_seen(files: Files, message_id: str) -> bool:
    return any(line["type"] == "seen" and line["id"] == message_id for line in files.lines)


SPOILED = [
    accepted_copy_is_dropped_at_open,
    backup_is_restored_unnoticed,
    hole_is_acknowledged_on,
    doubled_row_kills_nodes,
    check_backs_make_no_progress,
    message_group_makes_no_progress,
    bit_is_flipped,
    bytes_are_missing,
    epoch_is_missing,
    trimmed_without_a_checkpoint,
    receipt_of_another_place,
    message_that_nobody_sent,
    message_that_never_came,
    seen_before_the_engine_had_it,
]


@pytest.mark.parametrize("spoil", SPOILED, ids=lambda one: one.__name__)
def test_what_is_planted_in_the_files_is_found(
    spoil: Callable[[Files], str], tmp_path: Path, sound: cluster_play.WatchedCluster
) -> None:
    files = Files(tmp_path, sound)
    kind, _, said = spoil(files).partition(": ")
    code, report = files.judged()
    assert code == 1
    assert any(said in sentence for sentence in report["cases"].get(kind, ())), report


def test_a_cluster_begun_from_a_store_that_holds_all_is_sound(
    sound: cluster_play.WatchedCluster, tmp_path: Path
) -> None:
    files = Files(tmp_path, sound)
    files.restore(files.accepted_end(len(files.records)))
    assert files.judged()[1]["counts"] == {}


def test_a_doubled_row_that_all_step_over_is_sound(
    sound: cluster_play.WatchedCluster, tmp_path: Path
) -> None:
    files = Files(tmp_path, sound)
    double(files, 60)
    assert files.judged()[1]["counts"] == {}
    at, taken_ms, stored = files.records[60]
    files.records[60] = at, taken_ms, stored[:-1] + bytes((stored[-1] ^ 1,))
    assert "broken" in files.judged()[1]["counts"], "two rows that are not equal"


def test_a_half_that_is_asked_about_or_whose_calm_is_short_is_not_stalled(
    sound: cluster_play.WatchedCluster, tmp_path: Path
) -> None:
    files = Files(tmp_path, sound)
    name = waiting_half(files, lasts_ms=DUE_MS + LATE_MS)

    def is_stalled() -> bool:
        return any(name in sentence for sentence in files.judged()[1]["cases"].get("stalled", ()))

    assert not is_stalled()
    files.lines[-1]["time_ms"] += 10_000
    assert is_stalled()
    files.lines.insert(-1, {"type": "asked", "id": name, "time_ms": files.lines[-1]["time_ms"] - 20_000})
    assert not is_stalled()


def test_a_message_that_a_push_consumer_got_holds_back_none_of_its_group(
    sound: cluster_play.WatchedCluster, tmp_path: Path
) -> None:
    files = Files(tmp_path, sound)
    lines, earlier = files.lines, next(one for one in files.lines if is_of_a_group(files, one))
    tries = {one["call"] for one in lines if one.get("verb") == "ack" and one["id"] == earlier["id"]}
    receive = next(one for one in lines if one.get("call") == earlier["call"])
    came = {"type": "came", **{name: earlier[name] for name in ("id", "time_ms")}}
    came |= {name: receive[name] for name in ("topic", "group")}
    files.lines = [came if one is earlier else one for one in lines if one.get("call") not in tries]
    files.lines = [one for one in files.lines if one.get("id") != earlier["id"] or one["type"] != "seen"]
    assert files.judged()[1]["counts"] == {}
    files.lines.remove(came)
    assert "order" in files.judged()[1]["counts"]
    files.lines.append(came)
    assert "order" in files.judged()[1]["counts"], "it came after a later one was received"


def is_of_a_group(files: Files, line: dict[str, Any]) -> bool:
    """Return whether a message of a message group was received, and later ones of it too."""
    if line["type"] != "seen":
        return False
    groups = {one["id"]: one["line"] for one in files.lines if one.get("verb") == "send" and one.get("line")}
    seen = [one["id"] for one in files.lines if one["type"] == "seen"]
    later = {groups.get(one) for one in seen[seen.index(line["id"]) + 1 :] if one != line["id"]}
    return groups.get(line["id"]) in later - {None}


def test_what_came_early_came_in_time_by_a_clock_of_its_leader_that_was_off(
    sound: cluster_play.WatchedCluster, tmp_path: Path
) -> None:
    files = Files(tmp_path, sound)
    due_ms = {one["id"]: one["due_ms"] for one in files.lines if one.get("due_ms")}
    seen = next(one for one in files.lines if one["type"] == "seen" and one["id"] in due_ms)
    due = due_ms[seen["id"]]
    seen["time_ms"] = due - 5_000
    assert files.judged()[1]["counts"]["early"] == 1
    lines, long_ms = files.lines, {"from_ms": due - 600_000, "until_ms": due + 600_000}

    def is_excused(node: str, **fields: int) -> bool:
        files.lines = [*lines, {"type": "clock", "node": node, "offset_ms": 5_000} | long_ms | fields]
        return "early" not in files.judged()[1]["counts"]

    [leader] = [one.name for one in sound.nodes if is_excused(one.name)]
    assert not is_excused(leader, from_ms=due + 300_000), "its clock stepped later"
    assert not is_excused(leader, until_ms=due - 300_000), "it was right again by then"
    assert not is_excused(leader, offset_ms=-600_000), "it was behind"
