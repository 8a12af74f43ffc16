"""The first record of a shared log."""

from __future__ import annotations

from sharedlog.record import CHAIN_AT_GENESIS, NOBODY, Kind, SharedRecord, encode_facts
from sharedlog.versions import SUPPORTED


def genesis_of(cluster: bytes) -> SharedRecord:
    """Return the GENESIS of a cluster without a byte, at the newest version."""
    return SharedRecord(
        cluster, Kind.GENESIS, 0, NOBODY, 0, CHAIN_AT_GENESIS, encode_facts({"finalized": SUPPORTED})
    )
