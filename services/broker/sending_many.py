"""The messages of one request: plain delayed ones together, all others one by one.

    messages --> runs of plain ones --> known? in the place of another? --> bytes and columns --> log
             \\-> the others, each alone (`services.broker.sending`)

What is together is checked one by one, then looked up, stored and remembered at once. Plain is a delayed
message of a topic that is there, which carries no verb and shares no name with another of its run. Answers
are those that each would get alone, and so are the records; a run only shares the look-ups in the names, the
stamping of its records and what is remembered of them, which numpy does for all.

Cost: about half of what a message costs alone (`benchmarks/timers.py redis` measures it with its flush).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from commitlog import bulk, properties
from commitlog.errors import StoreDamaged, TidewheelError
from commitlog.kinds import TIMER_TOPIC
from commitlog.message import Message, MessageType
from consumequeue.entry import tags_code
from consumequeue.keyindex import hashes_of_many, words_of_message
from consumequeue.timerindex import hashes_of_all
from consumequeue.timerindex_fact import Facts
from consumequeue.timerindex_filter import Words
from services.broker import verb_properties
from services.broker.copies import NO_TIMER, Appended, Copies, TimersSet
from services.broker.housekeeping import Housekeeping
from services.broker.sending import Sending
from services.broker.store import Store
from services.broker.timer_ends import Named, text_of
from services.broker.timer_records import Replaced, unstamped_timer
from services.broker.timers import Timers
from services.broker.topics import Topics
from services.broker.values import SendReceipt

Answer = SendReceipt | TidewheelError
_TIMERS: Final = [(TIMER_TOPIC, 0)]
_NOBODY: Final = Replaced(NO_TIMER, 0)


@dataclass(slots=True, eq=False)
class _Waiting:
    """A message of a run on its way: where its answer goes, its queue, and what it takes the place of."""

    number: int
    message: Message
    queue_id: int
    replaced: Replaced | None = None

    @property
    def key(self) -> str:
        return self.message.properties.get(properties.TIMER_KEY, "")


class SendingMany:
    """The way in for many."""

    def __init__(
        self, store: Store, topics: Topics, timers: Timers, housekeeping: Housekeeping, sending: Sending
    ) -> None:
        self._store, self._topics, self._timers = store, topics, timers
        self._housekeeping, self._sending = housekeeping, sending

    def send(self, messages: list[Message], now_ms: int) -> list[Answer]:
        """Stores messages; one that is refused is answered with its error."""
        if (refusal := self._housekeeping.refusal()) is not None:
            return [refusal] * len(messages)
        answers: list[Answer] = []
        runs = self._runs(messages) if len(messages) > 1 else [messages]
        for run in runs:
            if len(run) == 1:
                answers.append(self._send_alone(run[0], now_ms))
            else:
                answers += self._send_run(run, now_ms)
        return answers

    def _runs(self, messages: list[Message]) -> Iterator[list[Message]]:
        """The messages in order, plain ones together as long as no name comes twice."""
        run: list[Message] = []
        ids: set[tuple[str, str]] = set()
        keys: set[tuple[str, str]] = set()
        for message in messages:
            is_plain = self._is_plain(message)
            message_id = (message.topic, message.message_id)
            key = (message.topic, message.properties.get(properties.TIMER_KEY, ""))
            if run and (not is_plain or message_id in ids or key in keys):
                yield run
                run, ids, keys = [], set(), set()
            if is_plain:
                run.append(message)
                ids.add(message_id)
                if key[1]:
                    keys.add(key)
            else:
                yield [message]
        if run:
            yield run

    def _is_plain(self, message: Message) -> bool:
        is_delayed = message.message_type is MessageType.DELAY
        return is_delayed and message.topic in self._topics and not verb_properties.carries(message)

    def _send_run(self, run: list[Message], now_ms: int) -> list[Answer]:
        answers: dict[int, Answer] = {}
        waiting = list(self._admitted(run, answers, now_ms))
        hashes = _hashes(waiting)
        try:
            is_known, facts = self._timers.ends.names.all_newest(hashes[:, 0], hashes[:, 1])
        except StoreDamaged:
            return [self._send_alone(message, now_ms) for message in run]
        known = {place: _named(facts, place) for place in np.flatnonzero(is_known).tolist()}
        if known:
            waiting, hashes = self._unknown(waiting, hashes, known, answers, now_ms)
        self._append(waiting, hashes, answers, now_ms)
        return [answers[number] for number in range(len(run))]

    def _send_alone(self, message: Message, now_ms: int) -> Answer:
        try:
            return self._sending.send(message, now_ms)
        except TidewheelError as error:
            return error

    def _admitted(self, run: list[Message], answers: dict[int, Answer], now_ms: int) -> Iterator[_Waiting]:
        """Those that nothing is wrong with; the others are answered."""
        more: Counter[str] = Counter()
        for number, message in enumerate(run):
            try:
                queue_id = self._sending.admit(message, MessageType.DELAY, now_ms)
                self._timers.check_room(message.topic, more[message.topic])
            except TidewheelError as error:
                answers[number] = error
            else:
                more[message.topic] += 1
                yield _Waiting(number, message, queue_id)

    def _unknown(
        self,
        waiting: list[_Waiting],
        hashes: Words,
        known: dict[int, Named],
        answers: dict[int, Answer],
        now_ms: int,
    ) -> tuple[list[_Waiting], Words]:
        """Those that are not answered with an earlier receipt or refused; what others replace is marked."""
        kept = []
        for place, one in enumerate(waiting):
            by_id, by_key = known.get(place), known.get(len(waiting) + place)
            try:
                again = self._sending.known_receipt(one.message, by_id, now_ms)
                one.replaced = self._sending.replaced(one.message, by_key, now_ms) if again is None else None
            except TidewheelError as error:
                answers[one.number] = error
                continue
            if again is None:
                kept.append(place)
            else:
                answers[one.number] = again
        rows = [*kept, *(len(waiting) + place for place in kept)]
        return [waiting[place] for place in kept], hashes[rows]

    def _append(
        self, waiting: list[_Waiting], hashes: Words, answers: dict[int, Answer], now_ms: int
    ) -> None:
        copies = _copies(waiting, hashes, self._store)
        done = 0
        while done < len(waiting):
            appended = self._store.append_copies(copies.part(done, len(copies)), now_ms)
            end = done + len(appended.copies)
            self._answer(waiting[done:end], appended, answers)
            done = end

    def _answer(self, waiting: list[_Waiting], appended: Appended, answers: dict[int, Answer]) -> None:
        offsets, queue_offsets = appended.physical_offsets, appended.queue_offsets
        sharing = self._timers.crowding.sharing_many(appended.copies.due_ms)
        topics = Counter(one.message.topic for one in waiting)
        self._sending.count_many([one.message for one in waiting], topics)
        ends = offsets + appended.copies.record_bytes
        places = zip(offsets.tolist(), queue_offsets.tolist(), ends.tolist(), sharing.tolist(), strict=True)
        for one, (offset, queue_offset, end, sharing_count) in zip(waiting, places, strict=True):
            answers[one.number] = self._sending.timer_receipt(
                one.message, queue_offset, offset, end, sharing_count
            )


def _hashes(waiting: list[_Waiting]) -> Words:
    """The hashes of all message ids, then of all keys; a message without a key has its id's there again."""
    ids = [(one.message.topic, one.message.message_id) for one in waiting]
    keys = [
        (one.message.topic, text_of("", one.key) if one.key else one.message.message_id) for one in waiting
    ]
    return hashes_of_all([*ids, *keys])


def _named(facts: Facts, place: int) -> Named:
    row = facts[place]
    return Named(int(row["offset"]), int(row["at"]), int(row["extra"]))


def _copies(waiting: list[_Waiting], hashes: Words, store: Store) -> Copies:
    """The records of timers, with nothing in the fields that are stamped, and what they say."""
    unstamped = [unstamped_timer(one.message, one.queue_id, one.replaced) for one in waiting]
    encoded, lengths = bulk.encode_unstamped(TIMER_TOPIC, unstamped, store.host)
    tags = np.array([tags_code(one.message.tag) for one in waiting], np.int64)
    queues = np.zeros(len(waiting), np.int64)
    due_ms = np.array([one.message.delivery_ms for one in waiting], np.int64)
    replaced = np.array([one.replaced or _NOBODY for one in waiting], np.int64).reshape(-1, 2)
    names = hashes.reshape(2, -1, 2).swapaxes(0, 1)
    timers = TimersSet([one.message.topic for one in waiting], names, replaced[:, 1])
    key_hashes = _key_hashes(waiting)
    return Copies(encoded, lengths, _TIMERS, queues, tags, key_hashes, due_ms, replaced[:, 0], timers)


def _key_hashes(waiting: list[_Waiting]) -> Words:
    """The hashes of the names that messages are found by; rows are filled up with `NO_HASH`."""
    found = [words_of_message(one.message) for one in waiting]
    counts = np.array(list(map(len, found)), np.int64)
    is_name = np.arange(counts.max(initial=1)) < counts[:, np.newaxis]
    hashes = np.zeros(is_name.shape, np.uint64)
    hashes[is_name] = hashes_of_many(
        (one.message.topic, name) for one, names in zip(waiting, found, strict=True) for name in names
    )
    return hashes
