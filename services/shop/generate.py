"""Makes `services/shop/generated` from `services/shop/protos/shop.proto`.

    python -m services.shop.generate

protoc derives Python imports from the path by which it is told of a file; mapping the folder of the proto to
`services/shop/generated` makes the generated modules import each other by their full names.
"""

from __future__ import annotations

import sys
from pathlib import Path

from grpc_tools import protoc  # type: ignore[import-untyped]

ROOM = Path(__file__).parent
ROOT = ROOM.parent.parent
PACKAGE = "services/shop/generated"
HEAD = '"""Made by `python -m services.shop.generate` from shop.proto; do not edit."""\n'


def main() -> None:
    """Write the generated modules, replacing those that are there."""
    (ROOM / "generated").mkdir(exist_ok=True)
    (ROOM / "generated" / "__init__.py").write_text(HEAD)
    outputs = [f"--python_out={ROOT}", f"--pyi_out={ROOT}", f"--grpc_python_out={ROOT}"]
    failed = protoc.main(["protoc", f"-I{PACKAGE}={ROOM / 'protos'}", *outputs, f"{PACKAGE}/shop.proto"])
    if failed:
        sys.exit(failed)


if __name__ == "__main__":
    main()
