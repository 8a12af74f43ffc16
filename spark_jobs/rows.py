"""The rows of a log that the options of the data source select, in batches and in streams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from spark_jobs.datasets import ACK_COLUMNS, ACKS, dataset, ranges
from spark_jobs.log.parts import Part, part_batches
from spark_jobs.log.scan.decode import ALL, SCHEMA, Wanted
from spark_jobs.log.scan.walk import Check
from spark_jobs.source_options import choice
from tidewheel.errors import UnknownChoice


@dataclass
class Task(InputPartition):
    """The input of one task: a part of the log, and the store times of the wanted records.

    `stored_ms` is from the first to before the second, in milliseconds since 1970; None for all.
    """

    part: Part
    stored_ms: tuple[int, int] | None = None


NOTHING: Final[Part] = ()
"""A part without rows, since Spark takes an empty plan for a source that is not partitioned."""


class Rows:
    """The rows that the options select, from any part of the log."""

    def __init__(self, options: Mapping[str, str], columns: tuple[str, ...]) -> None:
        """Check the options and the names of the columns; raise `UnknownChoice`."""
        self.is_acks = options.get("dataset") == "acks"
        if self.is_acks and (given := [name for name in ("topics", "bodies") if name in options]):
            raise UnknownChoice(
                f"{given[0]!r} has no meaning for dataset=acks, whose records are of all topics. Choose rows "
                "by the column topic."
            )
        known = ACKS if self.is_acks else SCHEMA
        unknown = [name for name in columns if name not in known.names]
        if unknown:
            raise UnknownChoice(f"A log has no column {unknown[0]!r}; it has {', '.join(known.names)}.")
        self.has_index = choice(options, "index", ("auto", "never")) == "auto"
        self.schema = pa.schema([known.field(name) for name in columns])
        chosen = dataset(options.get("dataset", "records"))
        topics = _topics(options.get("topics", "*"))
        if not topics:
            raise UnknownChoice(f"topics={options['topics']!r} names no topic. Leave it out for all of them.")
        self.wanted = Wanted(
            ACK_COLUMNS if self.is_acks else columns,
            topics=chosen.topics if topics == ALL or self.is_acks else topics,
            bodies=ALL if self.is_acks else _topics(options.get("bodies", "")),
            check=Check(choice(options, "verify", [check.value for check in Check])),
            kinds=chosen.kinds,
            only_of_halves=chosen.only_of_halves,
        )

    def of(self, task: InputPartition) -> Iterator[Any]:
        """Return the rows of one task as record batches."""
        assert isinstance(task, Task)
        found = part_batches(task.part, replace(self.wanted, stored_ms=task.stored_ms))
        return (ranges(batch, self.schema) for batch in found) if self.is_acks else found


def _topics(listed: str) -> frozenset[str]:
    topics = frozenset(topic.strip() for topic in listed.split(",") if topic.strip())
    return ALL if topics >= ALL else topics
