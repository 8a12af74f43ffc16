"""Decodes the message keys of many records by column, with the result of `keys_in`
(`commitlog.records.properties`).

As in RocketMQ, KEYS holds the keys of a message separated by spaces. If a key contains a space, KEY_LENGTHS
holds the length of each.

Cost of `first_keys`: a search for a space if no KEYS contains one. Otherwise, a regular expression per record
and one comparison of two columns. Only records with several keys, one of which contains a space, are decoded
one by one. Cost of `key_lists`: all records are decoded one by one.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from commitlog.records.properties import keys_in
from spark_jobs.log.columns.ragged import Ranges

KEY_LIST: Final = pa.list_(pa.string())


def first_keys(joined: pa.StringArray, lengths: pa.StringArray) -> pa.StringArray:
    """Return the first key of each record, or null, from its KEYS and KEY_LENGTHS."""
    if not _have_blanks(joined):
        return joined
    words = pc.struct_field(pc.extract_regex(joined, r"^ *(?P<key>[^ ]+)"), "key")
    if lengths.null_count == len(lengths):
        return words
    whole = pc.cast(pc.utf8_length(joined), pa.string())
    is_one = pc.fill_null(pc.equal(lengths, whole), False)
    found = pc.if_else(is_one, joined, words)
    is_left = pc.and_(pc.is_valid(joined), pc.and_(pc.is_valid(lengths), pc.invert(is_one)))
    pairs = zip(joined.filter(is_left).to_pylist(), lengths.filter(is_left).to_pylist(), strict=True)
    return pc.replace_with_mask(found, is_left, pa.array([_first(*pair) for pair in pairs], pa.string()))


def key_lists(joined: pa.StringArray, lengths: pa.StringArray) -> pa.ListArray:
    """Return a list with all keys of each record, from its KEYS and KEY_LENGTHS."""
    pairs = zip(joined.to_pylist(), lengths.to_pylist(), strict=True)
    return pa.array([keys_in(keys or "", of or "") for keys, of in pairs], KEY_LIST)


def _first(joined: str, lengths: str) -> str | None:
    return next(iter(keys_in(joined, lengths)), None)


def _have_blanks(keys: pa.StringArray) -> bool:
    stored = Ranges.of(keys)
    end = stored.starts[-1:] + stored.lengths[-1:]
    return len(keys) > 0 and b" "[0] in stored.data[stored.starts[0] : end[0]]
