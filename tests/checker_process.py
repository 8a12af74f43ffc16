"""The checker (`tests/checker`) as a process of its own, over a history and the raw log of an engine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from tests.history_file import HistoryFile, write_log

CHECKER: Final = Path(__file__).parent / "checker" / "check.py"
_ROWS: Final = """
SELECT record, floor(extract(epoch FROM taken_at) * 1000)::bigint, stored FROM {log}_record ORDER BY record
"""


def dump_postgres(conninfo: str, path: Path, log: str = "tidewheel") -> None:
    """Write the raw log that lies in a database, whose tables begin with `log`."""
    import psycopg

    with psycopg.connect(conninfo) as connection:
        rows = connection.execute(_ROWS.format(log=log)).fetchall()
    write_log(path, rows[0][0] if rows else 0, rows)


def dump_kafka(servers: str, topic: str, path: Path) -> None:
    """Write the raw log that lies in a topic's only partition."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "dump", "enable.auto.commit": False, "log_level": 0}
    )
    first, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
    consumer.assign([TopicPartition(topic, 0, first)])
    rows: list[tuple[int, int, bytes]] = []
    while (rows[-1][0] + 1 if rows else first) < end:
        message = consumer.poll(30)
        assert message is not None, f"Kafka has records to {end}, and gave {len(rows)}"
        assert message.error() is None, message.error()
        offset, value = message.offset(), message.value()
        assert offset is not None
        rows.append((offset, message.timestamp()[1], value or b""))
    consumer.close()
    write_log(path, first, rows)


def judged(history: Path, log: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """Run the checker; return its exit code and its report (of bad input: the sentence, as "said")."""
    command = [sys.executable, "-S", "-E", "-s", str(CHECKER), str(history), str(log), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    return done.returncode, json.loads(done.stdout) if done.stdout else {"said": done.stderr}


def judged_shared_log(history: HistoryFile, url: str, folder: Path) -> tuple[int, dict[str, Any]]:
    """Write both files into a folder, and let the checker judge them."""
    paths = folder / "history.jsonl", folder / "log.bin"
    history.write(paths[0])
    parts = urlsplit(url)
    if parts.scheme == "kafka":
        dump_kafka(parts.netloc, parts.path.strip("/"), paths[1])
    else:
        dump_postgres(url, paths[1])
    return judged(*paths)
