"""The checker (`tests/checker`) as a process of its own, over a history and the raw log of PostgreSQL."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

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


def judged(history: Path, log: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """Run the checker; return its exit code and its report (of bad input: the sentence, as "said")."""
    command = [sys.executable, "-S", "-E", "-s", str(CHECKER), str(history), str(log), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    return done.returncode, json.loads(done.stdout) if done.stdout else {"said": done.stderr}


def judged_postgres(history: HistoryFile, conninfo: str, folder: Path) -> tuple[int, dict[str, Any]]:
    """Write both files into a folder, and let the checker judge them."""
    paths = folder / "history.jsonl", folder / "log.bin"
    history.write(paths[0])
    dump_postgres(conninfo, paths[1])
    return judged(*paths)
