"""Makes `services/rpc/generated` from the proto files kept in `services/rpc/protos`.

    python -m services.rpc.generate

Two things are changed on the way, neither of which is seen on the wire. The package becomes `tidewheel.wire`:
left as it is, our messages and those of an official client would have the same full names, and the second to
be loaded into a process would fail with "duplicate symbol". Imports become relative: left as they are, a
top-level package `apache` would lie on everybody's path. Only messages are generated; the service, whose name
is seen on the wire, is a table of handlers (`services.rpc.service`).

`opencensus.proto` is our own: the part of OpenCensus' metrics that is read.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from grpc_tools import protoc  # type: ignore[import-untyped]

ROOM = Path(__file__).parent
SOURCES = ROOM / "protos" / "apache" / "rocketmq" / "v2"
PROTOS = ("definition.proto", "service.proto", "admin.proto")
OPENCENSUS = "opencensus.proto"
WELL_KNOWN = Path(protoc.__file__).parent / "_proto"
PACKAGE = "tidewheel/wire"
TITLE = '"""Made by `python -m services.rpc.generate` from apache/rocketmq-apis; do not edit."""\n'


def main() -> None:
    """Write the generated modules, replacing those that are there."""
    target = ROOM / "generated"
    target.mkdir(exist_ok=True)
    (target / "__init__.py").write_text(TITLE)
    with TemporaryDirectory() as scratch:
        renamed = Path(scratch) / PACKAGE
        renamed.mkdir(parents=True)
        for name in PROTOS:
            (renamed / name).write_text(rename((SOURCES / name).read_text()))
        (renamed / OPENCENSUS).write_text((ROOM / "protos" / OPENCENSUS).read_text())
        compile_in(Path(scratch))
        for made in sorted(renamed.glob("*_pb2.py*")):
            (target / made.name).write_text(
                made.read_text().replace("from tidewheel.wire import", "from . import")
            )


def rename(proto: str) -> str:
    """Return a proto file under our package."""
    return proto.replace('import "apache/rocketmq/v2/', f'import "{PACKAGE}/').replace(
        "package apache.rocketmq.v2;", "package tidewheel.wire;"
    )


def compile_in(folder: Path) -> None:
    """Run protoc; modules and their type stubs land beside the protos under `folder`."""
    protos = [f"{PACKAGE}/{name}" for name in (*PROTOS, OPENCENSUS)]
    failed = protoc.main(
        ["protoc", f"-I{folder}", f"-I{WELL_KNOWN}", f"--python_out={folder}", f"--pyi_out={folder}", *protos]
    )
    if failed:
        sys.exit(failed)


if __name__ == "__main__":
    main()
