"""Fields that numpy reads and writes in many records are those that the codec reads."""

from __future__ import annotations

import numpy as np
import pytest

from commitlog import bulk, record
from commitlog.record import Record

HOSTS = {"IPv4": ("10.1.2.3", 4001), "IPv6": ("2001:db8::7", 4001)}


@pytest.mark.parametrize("first", HOSTS)
@pytest.mark.parametrize("second", HOSTS)
def test_store_times_are_read_behind_hosts_of_either_kind(first: str, second: str) -> None:
    made = [
        record.encode(
            Record(topic="t", body=b"b" * number, born_host=HOSTS[kind], store_ms=1_763_700_000_000 + number)
        )
        for number, kind in enumerate((first, second, first))
    ]
    starts = np.cumsum([0, *map(len, made[:-1])])
    times = bulk.store_times_ms(bytearray(b"".join(made)), starts)
    assert times.tolist() == [record.decode(one).store_ms for one in made]
    assert times.tolist() == [1_763_700_000_000 + number for number in range(3)]
