"""Many records encoded at once are byte for byte what each is alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from commitlog import bulk, record
from commitlog.bulk import Unstamped
from commitlog.record import COMPRESSED, Record

HOSTS = st.sampled_from([("127.0.0.1", 0), ("10.1.2.3", 65_535), ("0.0.0.0", 80), ("fe80::1", 9_876)])
PROPERTIES = st.lists(st.sampled_from([b"KEYS\x01a b\x02", b"TAGS\x01x\x02", b"UNIQ_KEY\x01M\x02"])).map(
    b"".join
)
UNSTAMPED = st.builds(
    Unstamped,
    st.binary(min_size=1, max_size=600),
    PROPERTIES,
    st.sampled_from([0, COMPRESSED]),
    st.integers(0, 1 << 50),
    HOSTS,
)


@given(st.lists(UNSTAMPED, min_size=1, max_size=20), HOSTS, st.sampled_from(["t", "ü" * 100, "long" * 60]))
def test_many_are_what_each_is_alone(many: list[Unstamped], store_host: tuple[str, int], topic: str) -> None:
    encoded, lengths = bulk.encode_unstamped(topic, many, store_host)
    ends = lengths.cumsum()
    bulk.seal(encoded, ends - lengths, ends)
    alone = [record.encode(Record(topic=topic, store_host=store_host, **one._asdict())) for one in many]
    assert bytes(encoded) == b"".join(alone)
    assert lengths.tolist() == list(map(len, alone))
