"""Converts the host fields of many records to text such as `10.0.0.1:9876` or `[fe80::1]:9876`.

A log contains few distinct hosts, so each one is formatted once per batch. In a batch with an IPv6 host, the
hosts are formatted one by one.
"""

from __future__ import annotations

import ipaddress
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from commitlog.records import record
from spark_jobs.log.columns.records import Records

_FIELDS: Final = {
    "born_host": (48, 0, record.BORN_HOST_V6),
    "store_host": (64, 1, record.STORE_HOST_V6),
}


def hosts(records: Records, name: str) -> pa.StringArray:
    """Return the host of each record as text. `name` is "born_host" or "store_host"."""
    offset, hosts_before, v6_flag = _FIELDS[name]
    if records.shifts is None:
        words = records.numbers(name.replace("host", "v4"))
        if len(words) and (words == words[0]).all():
            return _repeated(_text(int(words[0]).to_bytes(8, "little")), len(words))
        indexed = pc.dictionary_encode(pa.array(words))
        written = [_text(int(word).to_bytes(8, "little")) for word in indexed.dictionary.to_pylist()]
        texts = pa.array(written, pa.string())
        return pa.DictionaryArray.from_arrays(indexed.indices, texts).dictionary_decode()
    starts = records.positions + offset + records.shifts[hosts_before]
    widths = np.where(records.numbers("sys_flag") & v6_flag > 0, 20, 8)
    view = records.data.data
    pairs = zip(starts.tolist(), widths.tolist(), strict=True)
    return pa.array([_text(bytes(view[start : start + width])) for start, width in pairs], pa.string())


def _repeated(written: str, count: int) -> pa.StringArray:
    encoded = written.encode()
    edges = np.arange(0, (count + 1) * len(encoded), len(encoded), dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(edges), pa.py_buffer(encoded * count))


def _text(stored: bytes) -> str:
    """Return the text of a packed address (4 or 16 bytes) followed by its port (4 bytes, big-endian)."""
    address, port = ipaddress.ip_address(stored[:-4]), int.from_bytes(stored[-4:], "big")
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"
