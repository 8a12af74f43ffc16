"""Generates `services/shop/generated` from `services/shop/protos/shop.proto`.

python -m services.shop.generate
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from services.descriptors.compiling import compile_protos

ROOM: Final = Path(__file__).parent


def main(folder: Path = ROOM / "generated") -> None:
    """Write the generated files and replace existing files."""
    compile_protos(ROOM / "protos", ["shop.proto"], (), folder, "services.shop.generated")


if __name__ == "__main__":
    main()
