"""Makes `services/rpc/generated` from the proto files kept in `services/rpc/protos`.

    python -m services.rpc.generate

protoc writes imports from the proto's own package (`apache.rocketmq.v2`). Left alone, they would put a
top-level `apache` package on everybody's path; so they are rewritten to relative imports, and the files lie
flat. Only messages are generated: the service is a table of handlers (`services.rpc.service`).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from grpc_tools import protoc  # type: ignore[import-untyped]

ROOM = Path(__file__).parent
PACKAGE = "apache/rocketmq/v2"
PROTOS = ("definition.proto", "service.proto")
WELL_KNOWN = Path(protoc.__file__).parent / "_proto"
FOREIGN_IMPORT = re.compile(r"^from apache\.rocketmq\.v2 import ", re.MULTILINE)


def main() -> None:
    """Write the generated modules, replacing those that are there."""
    target = ROOM / "generated"
    target.mkdir(exist_ok=True)
    with TemporaryDirectory() as scratch:
        compile_into(Path(scratch))
        for made in sorted((Path(scratch) / PACKAGE).iterdir()):
            (target / made.name).write_text(FOREIGN_IMPORT.sub("from . import ", made.read_text()))
    (target / "__init__.py").write_text(
        '"""Made by `python -m services.rpc.generate` from apache/rocketmq-apis; do not edit."""\n'
    )


def compile_into(folder: Path) -> None:
    """Run protoc; modules and their type stubs land under `folder`."""
    sources = [f"{PACKAGE}/{name}" for name in PROTOS]
    includes = [f"-I{ROOM / 'protos'}", f"-I{WELL_KNOWN}"]
    outputs = [f"--python_out={folder}", f"--pyi_out={folder}"]
    failed = protoc.main(["protoc", *includes, *outputs, *sources])
    if failed:
        sys.exit(failed)


if __name__ == "__main__":
    main()
