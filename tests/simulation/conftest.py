"""`--seeds N` runs N seeds (12 by default), from `--first-seed` on; `--seed S` replays one."""

from __future__ import annotations

import pytest

from commitlog import limits
from services.broker.spine import recent_ids, store
from services.cluster import replica


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seeds", type=int, default=12, help="how many seeds to simulate")
    parser.addoption("--first-seed", type=int, default=0, help="the first of them")
    parser.addoption("--seed", type=int, default=None, help="replay this one seed")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        one = metafunc.config.getoption("--seed")
        first = metafunc.config.getoption("--first-seed")
        many = range(first, first + metafunc.config.getoption("--seeds"))
        metafunc.parametrize("seed", many if one is None else [one])


@pytest.fixture(autouse=True)
def _few_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start cores with a small table of recent ids, most of whose buckets are full."""
    monkeypatch.setattr(recent_ids, "BUCKET_BITS_MIN", 1)
    monkeypatch.setattr(recent_ids, "BUCKET_BITS_MAX", 4)
    monkeypatch.setattr(store, "NEWEST_COUNT", 6)


@pytest.fixture(autouse=True)
def _little_again(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With odd seeds, let a replica write an additional checkpoint after a few records at its start."""
    seed = getattr(request.node, "callspec", None) and request.node.callspec.params.get("seed", 0)
    if (seed or 0) % 2:
        monkeypatch.setattr(replica, "EXTRA_CHECKPOINT_BYTES", 4_096)


@pytest.fixture(autouse=True)
def _timer_runs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliver due timers as columns regardless of their number, or one by one, depending on the seed."""
    seed = getattr(request.node, "callspec", None) and request.node.callspec.params.get("seed", 0)
    monkeypatch.setattr(limits, "TIMER_RUN_MIN", (1, limits.TIMER_RUN_MIN, 2)[(seed or 0) % 3])
