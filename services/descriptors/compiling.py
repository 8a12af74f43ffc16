"""Generate a descriptor set and type stubs from .proto files; requires grpcio-tools (`make protos`).

FOLDER/NAME.binpb       the descriptor set (`services.descriptors.message_types`)
FOLDER/file_pb2.py      the names of one file's types
FOLDER/file_pb2.pyi     their types, for tools
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc  # type: ignore[import-untyped]  # ships no types

WELL_KNOWN: Final = Path(protoc.__file__).parent / "_proto"
FILE: Final = "messages.binpb"
PACKAGE: Final = '''"""Made by `make protos`; do not edit."""

from pathlib import Path

from services.descriptors.message_types import MessageTypes

TYPES = MessageTypes(Path(__file__).with_name("{file}"))
'''
MODULE: Final = '''"""Made by `make protos` from {source}; do not edit."""

from {package} import TYPES

globals().update(TYPES.names_of("{source}"))
'''


def compile_protos(
    sources: Path, protos: Iterable[str], others: Iterable[FileDescriptor], folder: Path, package: str
) -> None:
    """Generate `folder`, the Python package `package`, from .proto files below `sources`.

    `others` are file descriptors of installed libraries; imports of `protos` are included.
    """
    folder.mkdir(exist_ok=True)
    (folder / "__init__.py").write_text(PACKAGE.format(file=FILE))
    made = compiled(sources, list(protos), folder)
    for file in others:
        add_with_imports(file, made)
    (folder / FILE).write_bytes(FileDescriptorSet(file=made.values()).SerializeToString(deterministic=True))
    for source in made:
        name = f"{Path(source).stem}_pb2.py"
        (folder / name).write_text(MODULE.format(source=source, package=package))


def compiled(sources: Path, protos: list[str], folder: Path) -> dict[str, FileDescriptorProto]:
    """Return protoc's descriptors of files and their imports, by name; write stubs into `folder`."""
    with TemporaryDirectory() as scratch:
        described = Path(scratch) / FILE
        arguments = [f"-I{sources}", f"-I{WELL_KNOWN}", f"--pyi_out={scratch}", "--include_imports"]
        failed = protoc.main(["protoc", *arguments, f"--descriptor_set_out={described}", *protos])
        if failed:
            sys.exit(failed)
        for stub in Path(scratch).rglob("*_pb2.pyi"):
            beside = str(stub.parent.relative_to(scratch)).replace("/", ".")
            text = stub.read_text().replace(f"from {beside} import", "from . import")
            (folder / stub.name).write_text(text)
        return {one.name: one for one in FileDescriptorSet.FromString(described.read_bytes()).file}


def add_with_imports(file: FileDescriptor, made: dict[str, FileDescriptorProto]) -> None:
    """Add a library's file descriptor after its imports, unless present."""
    if file.name in made:
        return
    for imported in file.dependencies:
        add_with_imports(imported, made)
    made[file.name] = FileDescriptorProto.FromString(file.serialized_pb)
    name_for_json(made[file.name].message_type)


def name_for_json(messages: Iterable[DescriptorProto]) -> None:
    """Set `json_name` of all fields: Python's descriptors omit it, and tools print it."""
    for message in messages:
        for field in message.field:
            first, *others = field.name.split("_")
            field.json_name = first + "".join(other[:1].upper() + other[1:] for other in others)
        name_for_json(message.nested_type)
