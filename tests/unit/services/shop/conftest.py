"""A real redis-server and a real SQLite file for the shop's tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from services.shop.carts.carts import open_redis
from services.shop.carts.redis_server import bundled_redis

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis import Redis


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with bundled_redis(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture
def redis(redis_url: str) -> Iterator[Redis]:
    with open_redis(redis_url) as redis:
        redis.flushdb()
        yield redis
