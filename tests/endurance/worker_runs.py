"""The oracle of workers that are killed: judges the file in which they note their runs (`worker_process`).

    <monotonic ms> <process id> <what> <message id> <end of the lease at its receive>

A message id is `<topic>.<message group, or ->.<number>`; numbers of a message group count from 0. Lines are
in the order of their writes, so a run that begins after the line "acked" began after the broker's answer.

    (none) --began--> BEGAN --ended-----> ENDED -----acked--> ACKED
                        |----rejected---> REJECTED --dead---> DEAD
                        |----raised-----> RAISED

Rules
1. A message that is ACKED or DEAD never begins again.
2. A message begins again after it RAISED, and else only if the process of its last run was killed since.
   Thus a lease that is lost under a running function is an error, and so is a clean stop that leaves a run.
3. Of a message group number n + 1 begins when n is ENDED, REJECTED, or past that; then n does not begin
   again. Of one receive (the process and the end of the lease are equal) it begins when n is ACKED or DEAD.
4. A message is ACKED only after its function came to its end in that process.
5. At the end each message sent is ACKED or DEAD, or it is ENDED or REJECTED in a process that was killed, and
   the broker says that the group has nothing left.

Windows, which are no errors
- Killed before the end of the function, or between it and the broker's commit of the acknowledgement: the
  message begins again (`again`; `twice` is how many of these came to their end twice).
- Killed between that commit and the line "acked": it does not begin again (rule 5 has it).
- The answer to a receive may overtake the answer to the acknowledgement: n + 1 may begin before the line
  "acked" of n, except in one receive. An acknowledgement that is refused then brings n again: rule 3 fails.

Cost: a few hundred bytes for each message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final


class State(Enum):
    """How far a message is, by its last run."""

    BEGAN = "began"
    ENDED = "ended"
    REJECTED = "rejected"
    RAISED = "raised"
    ACKED = "acked"
    DEAD = "dead"


BEFORE: Final = {
    "ended": State.BEGAN,
    "rejected": State.BEGAN,
    "raised": State.BEGAN,
    "acked": State.ENDED,
    "dead": State.REJECTED,
}
"""The state that a line needs, of a run in the same process."""
PAST: Final = (State.ACKED, State.DEAD)
AT_END: Final = (State.ENDED, State.REJECTED)
NO_GROUP: Final = "-"


@dataclass(frozen=True, slots=True)
class Note:
    """A line."""

    ms: int
    process: int
    what: str
    message_id: str
    lease: str


@dataclass(slots=True)
class Run:
    """The last run of a message."""

    process: int
    lease: str
    began_ms: int
    state: State = State.BEGAN
    has_ended: bool = False
    """Whether this run or one before came to its end."""


class Oracle:
    """Reads notes as they come; `wrong` has a sentence for each rule that was broken."""

    def __init__(self, path: Path) -> None:
        self._file = path.open()
        self._rest = ""
        self._runs: dict[str, Run] = {}
        self._newest: dict[tuple[str, str], int] = {}
        self._killed_ms: dict[int, int] = {}
        self._stopped: set[int] = set()
        self.wrong: list[str] = []
        self.counts: Counter[str] = Counter()
        self.ended_count = 0
        self.begun_by: Counter[int] = Counter()
        self.longest_ms: dict[str, int] = {}
        """Of each topic, the longest from a kill to the next run of a message that the process had begun."""
        self.shortest_ms: dict[str, int] = {}
        """The shortest run of each topic."""

    def read(self) -> None:
        """Judge what was noted since the last look."""
        *lines, self._rest = (self._rest + self._file.read()).split("\n")
        for line in lines:
            ms, process, what, message_id, lease = line.split()
            self._judge(Note(int(ms), int(process), what, message_id, lease))

    def finish(self, sent: Iterable[str]) -> None:
        """Judge what is left, once all processes have ended and the group has nothing left."""
        self.read()
        for message_id in sent:
            run = self._runs.get(message_id)
            if run is None:
                self.wrong.append(f"{message_id} is lost: it never began")
            elif run.state not in (*PAST, *AT_END):
                self.wrong.append(f"{message_id} is lost: its last run {run.state.value}")
            elif run.state in AT_END and run.process not in self._killed_ms:
                self.wrong.append(f"{message_id} {run.state.value}, and was not confirmed")

    def dead(self) -> set[str]:
        """Return the messages that were rejected to their end."""
        return {one for one, run in self._runs.items() if run.state in (State.REJECTED, State.DEAD)}

    def _judge(self, note: Note) -> None:
        self.counts[note.what] += 1
        match note.what:
            case "killed":
                self._killed_ms[note.process] = note.ms
            case "stopped":
                self._stop(note)
            case "began":
                self._begin(note)
            case "again":  # of a run that raised, or of a message that was given back before it began
                pass
            case _:
                self._go_on(note)

    def _stop(self, note: Note) -> None:
        self._stopped.add(note.process)
        left = [
            f"{name} {run.state.value}, and its process stopped"
            for name, run in self._runs.items()
            if run.process == note.process and run.state in (State.BEGAN, *AT_END)
        ]
        self.wrong += left

    def _begin(self, note: Note) -> None:
        before = self._runs.get(note.message_id)
        self.begun_by[note.process] += 1
        for reason in filter(None, (self._repeated(before), self._out_of_order(note))):
            self.wrong.append(f"{note.message_id} began in {note.process}: {reason}")
        if before is not None and before.state is not State.RAISED and before.process in self._killed_ms:
            self.counts["begun again after a kill"] += 1
            topic, ms = note.message_id.partition(".")[0], note.ms - self._killed_ms[before.process]
            self.longest_ms[topic] = max(ms, self.longest_ms.get(topic, ms))
        has_ended = before is not None and before.has_ended
        self._runs[note.message_id] = Run(note.process, note.lease, note.ms, has_ended=has_ended)

    def _repeated(self, before: Run | None) -> str:
        """Return why a message may not begin again."""
        if before is None or before.state is State.RAISED:
            return ""
        if before.state in PAST:
            return f"it was {before.state.value} before"
        if before.process not in self._killed_ms:
            return f"it {before.state.value} in {before.process}, which was not killed"
        return ""

    def _out_of_order(self, note: Note) -> str:
        """Return why a message may not begin in its message group."""
        topic, group, digits = note.message_id.split(".")
        if group == NO_GROUP:
            return ""
        number, newest = int(digits), self._newest.get((topic, group), -1)
        self._newest[topic, group] = max(number, newest)
        if number == newest:
            return ""
        if number != newest + 1:
            return f"it came after number {newest} of its message group"
        if newest < 0:
            return ""
        earlier = self._runs[f"{topic}.{group}.{newest}"]
        is_one_receive = (earlier.process, earlier.lease) == (note.process, note.lease)
        if earlier.state in PAST or (earlier.state in AT_END and not is_one_receive):
            return ""
        return f"number {newest} of its message group {earlier.state.value}"

    def _go_on(self, note: Note) -> None:
        run = self._runs.get(note.message_id)
        if run is None or run.process != note.process or run.state is not BEFORE[note.what]:
            self.wrong.append(f"{note.message_id} {note.what} in {note.process}, of {run}")
            return
        run.state = State(note.what)
        if run.state in AT_END:
            self.counts["twice"] += run.has_ended
            self.ended_count += not run.has_ended
            run.has_ended = True
            topic, ms = note.message_id.partition(".")[0], note.ms - run.began_ms
            self.shortest_ms[topic] = min(ms, self.shortest_ms.get(topic, ms))
