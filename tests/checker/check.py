"""Verify the answers to clients against the raw log of the engine, without Tidewheel's code.

    python tests/checker/check.py HISTORY.jsonl LOG.bin [--restored LOG.bin] [--clock-ms N] [--needed OFFSET]
                                  [--cases N]

    told.py             HISTORY: the calls of clients, their answers and received messages
    raw_log.py          LOG: the records of the engine, as bytes
    folding.py          the accepted history and the dead records in them
    stored_records.py   the CommitLog records of the history
    ledger.py           the contents of these records, in tables
    progress.py         work that waited without a fault
    judging.py          the violations, by kind

An error in the broker's reading of its own log cannot affect this program, which shares no code with it: its
parsers were written from the format tables, its fold from the rules. Prints JSON: counts, and the first cases
of each kind as sentences. Exit code 0: no violation; 1: a violation; 2: an unreadable input.

Cost: history and log in memory; 45 MB of log and 40,000 lines of history take 2 s. Limitations: an error in
the tables is also an error here; effects that appear neither in an answer nor in a record are not verified.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import raw_log
import told
from folding import continued, fold
from judging import Case, judged, told_counts


def main(arguments: list[str] | None = None) -> int:
    """Verify a history and a log; return the exit code."""
    given = _parsed(arguments)
    try:
        history, log = told.load(given.history), raw_log.load(given.log)
        folded = fold(log, history.checkpoints)
        if given.restored:
            folded = continued(folded, fold(raw_log.load(given.restored), []))
    except raw_log.BadInput as error:
        print(error, file=sys.stderr)
        return 2
    case = Case(history, log, folded, given.clock_ms, given.needed)
    wrong = judged(case)
    print(json.dumps(_report(case, wrong, given.cases), indent=2))
    return 1 if wrong else 0


def _report(case: Case, wrong: dict[str, list[str]], shown: int) -> dict[str, Any]:
    folded, ledger = case.folded, case.accepted
    return {
        "sound": not wrong,
        "log": {
            "records": len(case.log.records),
            "first_offset": case.log.first_offset,
            "epochs": folded.epoch_count,
            "accepted": len(folded.accepted),
            "dead": len(folded.dead),
            "foreign": folded.foreign_count,
            "messages": len(ledger.messages),
            "timers": len(ledger.timers),
            "halves": len(ledger.halves),
        },
        "calls": told_counts(case.history),
        "seen": len(case.history.seen),
        "calm_seconds": case.history.waiting.calm_ms // 1000,
        "longest_wait_ms": case.history.waiting.longest_ms,
        "counts": {kind: len(sentences) for kind, sentences in wrong.items()},
        "cases": {kind: sentences[:shown] for kind, sentences in wrong.items()},
    }


def _parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Judge a history of clients by the raw log of the engine.")
    parser.add_argument("history", type=Path, help="JSON lines; see told.py")
    parser.add_argument("log", type=Path, help="a raw log; see raw_log.py")
    parser.add_argument("--restored", type=Path, help="the log of a cluster begun from a store of the other")
    parser.add_argument("--clock-ms", type=int, default=0, help="by how much clocks may differ")
    parser.add_argument("--needed", type=int, help="the first record of the engine that is still needed")
    parser.add_argument("--cases", type=int, default=5, help="how many cases of a kind to show")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
