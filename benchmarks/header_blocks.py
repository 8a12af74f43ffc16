"""What taking recorded header blocks apart costs, with a table of size 0 and of 4,096. Prints JSON.

    .venv/bin/python benchmarks/header_blocks.py [--rounds 5]

Blocks are those that official clients sent (`tests/interop/record_headers.py`), each connection's in order,
played `REPEATS` times, each time as a new connection. Figures: processor microseconds a block from the
`SETTLED`th of a connection on, and of those before (`first`), the least of all rounds; and bytes a block.
`ours` is the decoder of the front (`services.front.header_fields`), which looks blocks up by their shapes
once the table is 0; `table` walks fields and keeps a table, as any decoder must that lets clients use one;
`hpack` is that library.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from hpack import Decoder

from services.front.header_fields import FieldDecoder, _static, integer, text_of

RECORDED = Path(__file__).parents[1] / "tests" / "vectors" / "header_blocks.json"
REPEATS, SETTLED = 20, 15
STATIC_COUNT = 61
FIELD_BYTES = 32


class TableDecoder:
    """A decoder with a table of 4,096 bytes, written for speed: strings are decoded once for each entry."""

    def __init__(self) -> None:
        self._table: deque[tuple[str, str]] = deque()
        self._bytes, self._max = 0, 4_096
        self._strings: dict[bytes, str] = {}

    def decode(self, block: bytes) -> dict[str, str]:
        """Return the fields of a block."""
        found: dict[str, str] = {}
        at, end, table = 0, len(block), self._table
        while at < end:
            first = block[at]
            if first & 0x80:
                number, at = integer(block, at, 0x7F)
                name, value = _static(number) if number <= STATIC_COUNT else table[number - STATIC_COUNT - 1]
            elif first & 0xE0 == 0x20:
                self._max, at = integer(block, at, 0x1F)
                self._evict()
                continue
            else:
                number, at = integer(block, at, 0x3F if first & 0x40 else 0x0F)
                if number:
                    name = (_static(number) if number <= STATIC_COUNT else table[number - STATIC_COUNT - 1])[
                        0
                    ]
                else:
                    name, at = self._string(block, at)
                value, at = self._string(block, at)
                if first & 0x40:
                    table.appendleft((name, value))
                    self._bytes += len(name) + len(value) + FIELD_BYTES
                    self._evict()
            found[name] = value
        return found

    def _evict(self) -> None:
        while self._bytes > self._max:
            name, value = self._table.pop()
            self._bytes -= len(name) + len(value) + FIELD_BYTES

    def _string(self, block: bytes, at: int) -> tuple[str, int]:
        size, begins = integer(block, at, 0x7F)
        raw = block[at : begins + size]
        known = self._strings.get(raw)
        if known is None:
            known = self._strings[raw] = text_of(raw)
        return known, begins + size


def ours() -> Callable[[bytes], Any]:
    """Return the front's decoder, of a client that has acknowledged its table of 0 with its second block."""
    decoder = FieldDecoder({})
    taken = [0]

    def decode(block: bytes) -> Any:
        taken[0] += 1
        if taken[0] == 2:
            decoder.acknowledged()
        head = decoder.decode(block)
        head.get("grpc-timeout")
        return head

    return decode


DECODERS: dict[str, tuple[str, Callable[[], Callable[[bytes], Any]]]] = {
    "ours": ("0", ours),
    "table": ("4096", lambda: TableDecoder().decode),
    "hpack": ("4096", lambda: Decoder(1 << 20).decode),
}


def each_us(
    connections: list[list[bytes]], make: Callable[[], Callable[[bytes], Any]]
) -> tuple[float, float]:
    """Return what a block costs: of the first ones of a connection, and of later ones (0: there are none)."""
    spent, counts = [0, 0], [0, 0]
    for _ in range(REPEATS):
        for blocks in connections:
            decode = make()
            for part, some in enumerate((blocks[:SETTLED], blocks[SETTLED:])):
                began = time.process_time_ns()
                for block in some:
                    decode(block)
                spent[part] += time.process_time_ns() - began
                counts[part] += len(some)
    return spent[0] / 1_000 / counts[0], spent[1] / 1_000 / max(1, counts[1])


def main() -> None:
    """Measure every decoder with every client's blocks."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--rounds", type=int, default=5)
    rounds = arguments.parse_args().rounds
    recorded = json.loads(RECORDED.read_text())
    figures: dict[str, Any] = {}
    for client, tables in recorded.items():
        row = figures[client] = {}
        for name, (table, make) in DECODERS.items():
            connections = [[bytes.fromhex(block) for block in blocks] for blocks in tables[table]]
            found_us = [each_us(connections, make) for _ in range(rounds)]
            row[f"{name}_first_us"] = round(min(first for first, _ in found_us), 2)
            row[f"{name}_us"] = round(min(later for _, later in found_us), 2)
        for table, found in tables.items():
            sizes = [len(block) // 2 for blocks in found for block in islice(blocks, 2, None)]
            row[f"bytes_with_{table}"] = round(sum(sizes) / max(1, len(sizes)))
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
