"""Message classes from a serialized descriptor set, in a pool of their own.

    .proto --make protos--> NAME.binpb, stubs --this module--> the names that a module of protoc's would have

Code that protoc writes names the oldest library that may load it, and works with two majors of it at most. A
descriptor set works with all of them from 4.25 on (older ones crash where a message within a message is
written): the library makes the same classes of it.

Rules
1. A set has its own pool, and a name in it clashes with no other of the process: an official client loads its
   own `apache.rocketmq.v2` beside ours.
2. A set holds what its files import. So its `Timestamp` is a class of its own too, and a field does not take
   one of `google.protobuf.timestamp_pb2`.

Cost: none against protoc's code, neither to load nor to use. Weak spot: the classes are made at run time, so
only the stubs beside the modules tell tools of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message_factory import GetMessageClass


class MessageTypes:
    """The types of one descriptor set."""

    def __init__(self, path: Path) -> None:
        """Load a serialized FileDescriptorSet, whose files stand behind those that they import."""
        self.files = {one.name: one for one in FileDescriptorSet.FromString(path.read_bytes()).file}
        """The description of each file, by its name."""
        self._pool = DescriptorPool()
        for file in self.files.values():
            self._pool.Add(file)

    def names_of(self, file: str) -> dict[str, Any]:
        """Return what protoc's module of a file has: messages, enums and their values, and DESCRIPTOR."""
        descriptor = self._pool.FindFileByName(file)
        names: dict[str, Any] = {"DESCRIPTOR": descriptor}
        for name, enum in descriptor.enum_types_by_name.items():
            names[name] = EnumTypeWrapper(enum)
            names |= {value.name: value.number for value in enum.values}
        for name, message in descriptor.message_types_by_name.items():
            names[name] = GetMessageClass(message)
        return names

    def behind_imports(self, file: str) -> Iterator[FileDescriptorProto]:
        """Yield the description of a file behind those of what it imports."""
        for imported in self.files[file].dependency:
            yield from self.behind_imports(imported)
        yield self.files[file]
