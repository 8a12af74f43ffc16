"""`tidewheel serve` whose leases for push consumers last a second, for tests that cannot wait for minutes."""

from __future__ import annotations

from commitlog import limits

limits.AUTO_RENEW_LEASE_MS = 1_000

from services.cli.main import main  # noqa: E402 -- the limit is read when the broker's settings are made

main()
