"""axe-core, which finds what of a page people with disabilities cannot use; npm fetches it into a cache.

The cache is `$XDG_CACHE_HOME/tidewheel-tests`, or `~/.cache/tidewheel-tests`. A machine without npm, or
without its registry, skips the tests of axe.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any, Final

import pytest

from tests.console.chromium import Tab

PACKAGE: Final = "axe-core@4.14.1"
FETCH_SECONDS: Final = 120
GRAVE: Final = ("serious", "critical")
RUN: Final = """axe.run(document, {resultTypes: ['violations']}).then((said) => said.violations.map((one) => (
  {rule: one.id, impact: one.impact, nodes: one.nodes.map((node) => node.html.slice(0, 200))})))"""


def axe_script() -> str:
    """Return the source of axe-core; skip the test where it cannot be fetched."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tidewheel-tests"
    kept = cache / f"{PACKAGE}.min.js"
    if not kept.exists():
        fetch(cache, kept)
    return kept.read_text()


def fetch(cache: Path, kept: Path) -> None:
    """Fetch axe-core by npm into the cache."""
    if not (npm := shutil.which("npm")):
        pytest.skip("npm is not installed")
    cache.mkdir(parents=True, exist_ok=True)
    try:
        said = subprocess.run(
            [npm, "pack", PACKAGE, "--silent", "--pack-destination", str(cache)],
            capture_output=True, text=True, timeout=FETCH_SECONDS, check=True, cwd=cache,
        ).stdout  # fmt: skip
    except (subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"npm does not fetch {PACKAGE}: {error}")
    archive = cache / said.split()[-1]
    with tarfile.open(archive) as found:
        member = found.extractfile("package/axe.min.js")
        assert member is not None
        part = kept.with_suffix(f".{os.getpid()}")
        part.write_bytes(member.read())
    part.replace(kept)
    archive.unlink()


def violations(tab: Tab, script: str) -> list[Any]:
    """Return what axe finds of a page that is serious or critical."""
    tab.run(f"window.axe || (() => {{ {script} }})(); true")
    found = tab.run(RUN)
    return [one for one in found if one["impact"] in GRAVE]
