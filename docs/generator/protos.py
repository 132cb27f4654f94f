"""The contract as it is compiled, with the comments of its sources."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    MethodDescriptorProto,
    ServiceDescriptorProto,
)
from grpc_tools import protoc

# Numbers of the fields of `descriptor.proto` that paths of comments are made of.
_MESSAGES, _ENUMS, _SERVICES = 4, 5, 6
_FIELDS, _NESTED, _VALUES, _METHODS = 2, 3, 2, 2
Place = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class File:
    """One proto file; comments are by the place of what they are about."""

    descriptor: FileDescriptorProto
    comments: dict[Place, str]

    @property
    def page(self) -> str:
        """Returns the name of its page."""
        return Path(self.descriptor.name).stem + ".md"

    def services(self) -> Iterator[tuple[ServiceDescriptorProto, str]]:
        """Services with their comments."""
        for number, service in enumerate(self.descriptor.service):
            yield service, self.comments.get((_SERVICES, number), "")

    def methods(self, service: ServiceDescriptorProto) -> Iterator[tuple[MethodDescriptorProto, str]]:
        """Methods of a service with their comments."""
        number = [one.name for one in self.descriptor.service].index(service.name)
        for place, method in enumerate(service.method):
            yield method, self.comments.get((_SERVICES, number, _METHODS, place), "")

    def messages(self) -> Iterator[tuple[str, DescriptorProto, Place]]:
        """Messages by their names in the package, with their places; entries of maps are none."""
        stack: list[tuple[str, Place, DescriptorProto]] = [
            ("", (_MESSAGES, number), one) for number, one in reversed(list(enumerate(self.descriptor.message_type)))
        ]
        while stack:
            before, place, message = stack.pop()
            if message.options.map_entry:
                continue
            yield before + message.name, message, place
            inner = enumerate(message.nested_type)
            stack += [(f"{before}{message.name}.", (*place, _NESTED, number), one) for number, one in inner]

    def enums(self) -> Iterator[tuple[EnumDescriptorProto, Place]]:
        """Enums of the package."""
        for number, enum in enumerate(self.descriptor.enum_type):
            yield enum, (_ENUMS, number)

    def fields(self, message: DescriptorProto, place: Place) -> Iterator[tuple[FieldDescriptorProto, str]]:
        """Fields of a message with their comments."""
        for number, field in enumerate(message.field):
            yield field, self.comments.get((*place, _FIELDS, number), "")

    def values(self, enum: EnumDescriptorProto, place: Place) -> Iterator[tuple[str, int, str]]:
        """Yields the names, numbers and comments of an enum's values."""
        for number, value in enumerate(enum.value):
            yield value.name, value.number, self.comments.get((*place, _VALUES, number), "")


@dataclass(frozen=True, slots=True)
class Contract:
    """All proto files, by name."""

    files: tuple[File, ...]

    @classmethod
    def read(cls, directory: Path) -> Contract:
        """Compiles all protos below a directory. Raises RuntimeError when one does not compile."""
        names = sorted(str(path) for path in directory.glob("retinue/**/*.proto"))
        well_known = Path(protoc.__file__).parent / "_proto"
        with tempfile.TemporaryDirectory() as temporary:
            target = Path(temporary, "contract")
            arguments = ["protoc", f"-I{directory}", f"-I{well_known}", "--include_source_info"]
            if protoc.main([*arguments, f"--descriptor_set_out={target}", *names]) != 0:
                raise RuntimeError("the protos do not compile")
            compiled = descriptor_pb2.FileDescriptorSet.FromString(target.read_bytes())
        return cls(tuple(_file(one) for one in sorted(compiled.file, key=lambda one: one.name)))

    def message(self, name: str) -> tuple[File, DescriptorProto, Place]:
        """Returns a message by its full name, `.package.Name`. Raises LookupError."""
        for file in self.files:
            for own, message, place in file.messages():
                if f".{file.descriptor.package}.{own}" == name:
                    return file, message, place
        raise LookupError(name)


def _file(descriptor: FileDescriptorProto) -> File:
    locations = descriptor.source_code_info.location
    return File(descriptor, {tuple(one.path): one.leading_comments for one in locations if one.leading_comments})
