"""The benchmarks' modules, which find each other by their bare names."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def peers() -> Iterator[Any]:
    """`peers(name)` is a module of the comparison; its folder is last in the path, as it has a `rocketmq`."""
    sys.path.append(str(BENCHMARKS / "peers"))
    yield importlib.import_module
    sys.path.remove(str(BENCHMARKS / "peers"))
