"""The command with a limit set anew, so that a test need not wait for minutes:

TEST_LIMITS='{"FILTER_IDLE_MS": 2000}' python -m tests.clients.hurried_broker serve ...
"""

from __future__ import annotations

import json
import os

from commitlog import limits

for name, value in json.loads(os.environ["TEST_LIMITS"]).items():
    assert isinstance(getattr(limits, name), int), f"{name} is no limit"
    setattr(limits, name, value)

if __name__ == "__main__":
    from services.cli.main import main

    main()
