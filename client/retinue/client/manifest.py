"""Sessions from YAML or JSON text: the fields of the API's messages, each error with its line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor

from retinue.client import words
from retinue.client.errors import UsageError
from retinue.manager.v1 import session_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.descriptor import Descriptor

MAX_BYTES = 8 * 1024 * 1024
# Aliases of YAML make much of little.
_MOST_VALUES = 1_000_000
_DEEPEST = 32
_WELL_KNOWN = ("google.protobuf.Duration", "google.protobuf.Timestamp")


def read_specs(text: str, source: str) -> list[tuple[session_pb2.SessionSpec, int]]:
    """The sessions in a text, each with its line, from 1. `source` is what the text is called in errors.

    Every document is the `spec` of a session, a session as `retinue get -o yaml` prints it, a list of these, or a mapping with such a list under
    `sessions` or `specs`. Fields are called as in the API's JSON; values of enums may be written short (`batch`). Raises UsageError.
    """
    if len(text.encode()) > MAX_BYTES:
        raise UsageError(f"{source}: more than {MAX_BYTES} bytes")
    reader = _Reader(source)
    found = []
    try:
        for document in yaml.compose_all(text, Loader=yaml.SafeLoader):
            found += [(reader.spec(node), node.start_mark.line + 1) for node in reader.sessions(document)]
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f":{error.problem_mark.line + 1}"
        raise UsageError(f"{source}{line}: {error.problem}") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{source}: {error}") from error
    if not found:
        raise UsageError(f"{source}: there is no session in it")
    return found


class _Reader:
    """Nodes of YAML made into values as proto JSON has them, along the descriptors of messages."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._values = 0

    def sessions(self, node: Any) -> Iterator[Any]:
        """The mappings that stand for sessions in a document."""
        if node is None or (isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null")):
            return
        if isinstance(node, yaml.SequenceNode):
            for item in node.value:
                yield from self.sessions(item)
            return
        keys = self._entries(node)
        lists = [key for key in ("sessions", "specs") if key in keys]
        if lists and len(keys.keys() - {"revision", "nextPageToken", "next_page_token"}) == 1:
            yield from self.sessions(keys[lists[0]][1])
            return
        yield node

    def spec(self, node: Any) -> session_pb2.SessionSpec:
        """The session that a mapping stands for."""
        keys = self._entries(node)
        if "spec" in keys:
            # The rest of what the API shows of a session is no part of what is asked for, but must be that.
            known = self._names(session_pb2.Session.DESCRIPTOR)
            for name, (key, _) in keys.items():
                if name not in known:
                    raise self._error(key, f"unknown field {name!r} of Session")
            node = keys["spec"][1]
        value = self._message(node, session_pb2.SessionSpec.DESCRIPTOR, 0)
        try:
            return json_format.ParseDict(value, session_pb2.SessionSpec())
        except json_format.ParseError as error:
            raise self._error(node, str(error)) from error

    def _message(self, node: Any, descriptor: Descriptor, depth: int) -> dict[str, Any]:
        known = self._names(descriptor)
        made: dict[str, Any] = {}
        for name, (key, value) in self._entries(node).items():
            field = known.get(name)
            if field is None:
                raise self._error(key, f"unknown field {name!r} of {descriptor.name}")
            if field.json_name in made:
                raise self._error(key, f"field {name!r} is given twice")
            if not (isinstance(value, yaml.ScalarNode) and value.tag.endswith(":null")):
                made[field.json_name] = self._field(value, field, depth + 1)
        return made

    def _field(self, node: Any, field: FieldDescriptor, depth: int) -> Any:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            inner = field.message_type.fields_by_name["value"]
            return {name: self._single(value, inner, depth) for name, (_, value) in self._entries(node).items()}
        if field.is_repeated:
            if not isinstance(node, yaml.SequenceNode):
                raise self._error(node, f"{field.name} must be a list")
            return [self._single(item, field, depth) for item in node.value]
        return self._single(node, field, depth)

    def _single(self, node: Any, field: FieldDescriptor, depth: int) -> Any:
        self._values += 1
        if self._values > _MOST_VALUES or depth > _DEEPEST:
            raise self._error(node, "there is too much in it")
        if field.message_type is not None and field.message_type.full_name not in _WELL_KNOWN:
            return self._message(node, field.message_type, depth)
        if not isinstance(node, yaml.ScalarNode):
            raise self._error(node, f"{field.name} must be a single value")
        if field.type == FieldDescriptor.TYPE_BOOL:
            if node.tag.endswith(":bool"):
                return node.value.lower() in ("true", "yes", "on")
            raise self._error(node, f"{field.name} must be true or false")
        if field.enum_type is not None and not node.value.isdecimal():
            try:
                return words.number(field.enum_type, node.value)
            except UsageError as error:
                raise self._error(node, f"{field.name}: {error}") from error
        # As written: an amount or an argument that looks like a number is text all the same.
        return node.value

    def _entries(self, node: Any) -> dict[str, tuple[Any, Any]]:
        if not isinstance(node, yaml.MappingNode):
            raise self._error(node, "there must be fields here")
        entries: dict[str, tuple[Any, Any]] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self._error(key, "is not the name of a field")
            if key.value in entries:
                raise self._error(key, f"{key.value!r} is given twice")
            entries[key.value] = (key, value)
        return entries

    @staticmethod
    def _names(descriptor: Descriptor) -> dict[str, FieldDescriptor]:
        return {name: field for field in descriptor.fields for name in (field.name, field.json_name)}

    def _error(self, node: Any, text: str) -> UsageError:
        return UsageError(f"{self._source}:{node.start_mark.line + 1}: {text}")
