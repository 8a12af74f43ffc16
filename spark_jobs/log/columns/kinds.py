"""Determines the kinds (`commitlog.records.kinds`) of many records. The kind of damaged bytes is "damage"."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from commitlog.records import kinds
from commitlog.records.kinds import BY_TOPIC, kind_of_topic
from commitlog.records.record import TYPE_COMMIT, TYPE_MASK
from spark_jobs.log.columns.ragged import Flags, Integers

KINDS: Final = (*kinds.KINDS, "damage")
TOPICS: Final = {kind: topic for topic, kind in BY_TOPIC.items()}


def kinds_of(topics: pa.DictionaryArray, sys_flags: Integers, delivers_timer: Flags) -> pa.StringArray:
    """Return the kind of each record, from its topic, `sys_flag`, and the presence of TW_TIMER_OFFSET."""
    by_topic = np.array([KINDS.index(kind_of_topic(name)) for name in topics.dictionary.to_pylist()], np.int8)
    codes = by_topic[topics.indices.to_numpy()]
    is_normal = codes == 0
    codes[is_normal & (sys_flags & TYPE_MASK == TYPE_COMMIT)] = KINDS.index("commit")
    codes[is_normal & delivers_timer] = KINDS.index("delivered")
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(KINDS)).dictionary_decode()
