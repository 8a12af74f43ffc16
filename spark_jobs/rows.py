"""What the data source reads of a log, in batch and as a stream alike: the rows that the options ask for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from spark_jobs.datasets import ACK_COLUMNS, ACKS, dataset, ranges
from spark_jobs.log.decode import ALL, SCHEMA, Wanted
from spark_jobs.log.parts import Part, part_batches
from spark_jobs.log.ranges import Range
from spark_jobs.log.walk import Check
from tidewheel.errors import UnknownChoice


@dataclass
class Task(InputPartition):
    """What one task reads."""

    part: Part


class Rows:
    """The rows that the options ask for, from any part of the log."""

    def __init__(self, options: Mapping[str, str], columns: tuple[str, ...]) -> None:
        """Raise `UnknownChoice`."""
        self.is_acks = options.get("dataset") == "acks"
        known = ACKS if self.is_acks else SCHEMA
        unknown = [name for name in columns if name not in known.names]
        if unknown:
            raise UnknownChoice(f"A log has no column {unknown[0]!r}; it has {', '.join(known.names)}.")
        self.schema = pa.schema([known.field(name) for name in columns])
        chosen = dataset(options.get("dataset", "records"))
        topics = _topics(options.get("topics", "*"))
        self.wanted = Wanted(
            ACK_COLUMNS if self.is_acks else columns,
            topics=chosen.topics if topics == ALL or self.is_acks else topics,
            bodies=ALL if self.is_acks else _topics(options.get("bodies", "")),
            check=_check(options.get("verify", "record")),
            kinds=chosen.kinds,
            only_of_halves=chosen.only_of_halves,
        )

    def of(self, part: Part, within: Range | None) -> Iterator[Any]:
        """Return the rows of one part, those of a range of time only if it is one."""
        wanted = replace(self.wanted, stored_ms=within.stored_ms if within else None)
        found = part_batches(part, wanted)
        return (ranges(batch, self.schema) for batch in found) if self.is_acks else found


def _topics(listed: str) -> frozenset[str]:
    return ALL if listed == "*" else frozenset(topic.strip() for topic in listed.split(",") if topic.strip())


def _check(name: str) -> Check:
    try:
        return Check(name)
    except ValueError as error:
        choices = ", ".join(check.value for check in Check)
        raise UnknownChoice(f"verify={name!r} is none of {choices}.") from error
