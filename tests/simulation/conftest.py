"""`--seeds N` runs N seeds (a small number by default); `--seed S` replays one."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seeds", type=int, default=60, help="how many seeds to simulate")
    parser.addoption("--seed", type=int, default=None, help="replay this one seed")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        one = metafunc.config.getoption("--seed")
        metafunc.parametrize("seed", range(metafunc.config.getoption("--seeds")) if one is None else [one])
