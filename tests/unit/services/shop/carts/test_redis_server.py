"""The bundled redis-server keeps its data from one run to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from services.shop.carts.carts import open_redis
from services.shop.carts.redis_server import bundled_redis
from tidewheel.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path


def test_data_is_there_again_in_the_next_run(tmp_path: Path) -> None:
    with bundled_redis(tmp_path) as url, open_redis(url) as redis:
        redis.hset("cart:C1", "85123A", 6)
    with bundled_redis(tmp_path) as url, open_redis(url) as redis:
        assert redis.hget("cart:C1", "85123A") == "6"


def test_a_server_that_cannot_start_names_its_log(tmp_path: Path) -> None:
    (tmp_path / "appendonly.aof").mkdir()
    with pytest.raises(ConfigurationError, match=r"redis\.log"), bundled_redis(tmp_path):
        raise AssertionError("it started")
