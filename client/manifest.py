"""Sessions and templates from YAML or JSON text: the fields of the API's messages, each error with its line."""

from __future__ import annotations

import contextlib
import difflib
import re
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import yaml
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from retinue.client import app_catalogue, enum_names
from retinue.client.errors import UsageError
from retinue.client.time_spans import EXAMPLES, as_duration, parse_span, parse_time
from retinue.manager.v1 import endpoint_pb2, session_pb2, template_service_pb2
from retinue.rpc.fields import by_name, fields_of, is_map

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from google.protobuf.descriptor import Descriptor

MAX_BYTES = 8 * 1024 * 1024
# Aliases of YAML make much of little.
_MAX_VALUES = 1_000_000
_DEEPEST = 32
_MAX_MISTAKES = 20
_WHOLE = frozenset(
    {
        FieldDescriptor.TYPE_INT32,
        FieldDescriptor.TYPE_INT64,
        FieldDescriptor.TYPE_UINT32,
        FieldDescriptor.TYPE_UINT64,
    }
)
_MASK = "retinue.manager.v1.TemplateReference.override_mask"
_Path: TypeAlias = tuple[str, ...] | None
_Parsed = TypeVar("_Parsed", session_pb2.SessionSpec, template_service_pb2.Template, endpoint_pb2.EndpointSpec)


def read_specs(text: str, source: str) -> list[tuple[session_pb2.SessionSpec, int]]:
    """Returns the sessions in a text, each with its line, from 1. `source` is what the text is called in errors.

    Every document is the `spec` of a session, a session as `retinue get -o yaml` prints it, a list of these, or a
    mapping with such a list under `sessions` or `specs`. Fields are called as in the API's JSON; values of enums may be
    written short (`batch`), lengths of time as on the command line (`2h`). `template` may be just its name; beside it,
    what is `null` is not taken from the template.
    Raises UsageError.
    """
    reader = _Reader(source)
    return _read(text, reader, "session", ("sessions", "specs"), reader.spec)


class Manifest(NamedTuple):
    """What a file asks for, each with its line, from 1."""

    sessions: list[tuple[session_pb2.SessionSpec, int]]
    endpoints: list[tuple[endpoint_pb2.EndpointSpec, int]]


def read_manifest(text: str, source: str, *, default: str = "session") -> Manifest:
    """Returns the sessions and endpoints in a text: `kind: endpoint` says which a document is,
    `default` what one without a kind is.

    An endpoint is its spec, or what `retinue endpoint get -o yaml` prints; else as `read_specs`.
    """
    reader = _Reader(source)
    manifest = Manifest([], [])

    def take(node: Any, line: int) -> None:
        if reader.kind(node, default) == "endpoint":
            manifest.endpoints.append((reader.endpoint(node), line))
        else:
            manifest.sessions.append((reader.spec(node), line))

    _parse(text, reader, ("sessions", "specs", "endpoints"), take)
    if not manifest.sessions and not manifest.endpoints:
        raise UsageError(f"{source}: there is no {default} in it")
    return manifest


def read_templates(text: str, source: str) -> list[tuple[template_service_pb2.Template, int]]:
    """Returns the templates in a text, each with its line, as `retinue template get -o yaml` prints them;
    else as `read_specs`.
    """
    reader = _Reader(source)
    return _read(text, reader, "template", ("templates",), reader.template)


def _read(
    text: str, reader: _Reader, kind: str, names: tuple[str, ...], parse: Callable[[Any], _Parsed]
) -> list[tuple[_Parsed, int]]:
    found: list[tuple[_Parsed, int]] = []
    _parse(text, reader, names, lambda node, line: found.append((parse(node), line)))
    if not found:
        raise UsageError(f"{reader.source}: there is no {kind} in it")
    return found


def _parse(text: str, reader: _Reader, names: tuple[str, ...], take: Callable[[Any, int], None]) -> None:
    """Calls `take` with each thing in a text and its line. Raises UsageError with all mistakes, each on a line."""
    source = reader.source
    if len(text.encode()) > MAX_BYTES:
        raise UsageError(f"{source}: more than {MAX_BYTES} bytes")
    try:
        for document in yaml.compose_all(text, Loader=yaml.SafeLoader):
            with reader.collecting():
                for node in reader.items(document, names):
                    with reader.collecting():
                        take(node, node.start_mark.line + 1)
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f":{error.problem_mark.line + 1}"
        reader.mistakes.append(f"{source}{line}: {error.problem}")
    except yaml.YAMLError as error:
        reader.mistakes.append(f"{source}: {error}")
    except RecursionError as error:
        raise UsageError(f"{source}: it is nested too deeply") from error
    if reader.mistakes:
        # Aliases repeat them.
        mistakes = list(dict.fromkeys(reader.mistakes))
        more = len(mistakes) - _MAX_MISTAKES
        raise UsageError("\n".join([*mistakes[:_MAX_MISTAKES], *([f"{source}: {more} more"] if more > 0 else [])]))


class _MistakeError(UsageError):
    """A mistake in a file, beside which there may be others."""


def _is_null(node: Any) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null")


class _Reader:
    """Nodes of YAML made into values as proto JSON has them, along the descriptors of messages."""

    def __init__(self, source: str) -> None:
        self.source = source
        # Each with its line.
        self.mistakes: list[str] = []
        # The name of the field that is read, as it is written in the file.
        self._written = ""
        self._values = 0
        # Paths of fields that are not taken from the template; None without one.
        self._removed: list[str] | None = None

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """Keeps a mistake in the block, and goes on after it."""
        try:
            yield
        except _MistakeError as mistake:
            self.mistakes.append(str(mistake))

    def items(self, node: Any, names: tuple[str, ...], depth: int = 0) -> Iterator[Any]:
        """Yields the mappings that stand for one thing each in a document; `names` are those of lists of them."""
        if node is None or _is_null(node):
            return
        # Before going into it: lists of nothing but aliases have next to no values, and no end.
        self._count(node, depth)
        if isinstance(node, yaml.SequenceNode):
            for item in node.value:
                yield from self.items(item, names, depth + 1)
            return
        keys = self._entries(node)
        lists = [key for key in names if key in keys]
        if lists and len(keys.keys() - {"position", "nextPageToken", "next_page_token"}) == 1:
            yield from self.items(keys[lists[0]][1], names, depth + 1)
            return
        yield node

    def kind(self, node: Any, default: str) -> str:
        """Returns what a mapping stands for, and takes the field that says so out of it."""
        entries = self._entries(node)
        if "kind" not in entries:
            return default
        key, value = entries["kind"]
        found = value.value if isinstance(value, yaml.ScalarNode) else ""
        if found not in ("session", "endpoint"):
            raise self._error(value, "kind must be session or endpoint")
        node.value = [item for item in node.value if item[0] is not key]
        return str(found)

    def endpoint(self, node: Any) -> endpoint_pb2.EndpointSpec:
        """Returns the endpoint that a mapping stands for."""
        keys = self._entries(node)
        self._removed = None
        return self._parsed(keys["spec"][1] if "spec" in keys else node, endpoint_pb2.EndpointSpec())

    def template(self, node: Any) -> template_service_pb2.Template:
        """Returns the template that a mapping stands for."""
        self._removed = None
        template = self._parsed(node, template_service_pb2.Template())
        self._completed(node, template.spec)
        return template

    def _completed(self, node: Any, spec: session_pb2.SessionSpec) -> session_pb2.SessionSpec:
        try:
            return app_catalogue.complete(spec)
        except UsageError as error:
            raise self._error(node, str(error)) from error

    def spec(self, node: Any) -> session_pb2.SessionSpec:
        """Returns the session that a mapping stands for."""
        keys = self._entries(node)
        if "spec" in keys:
            # The rest of what the API shows of a session is no part of what is asked for, but must be that.
            known = by_name(session_pb2.Session.DESCRIPTOR)
            for name, (key, _) in keys.items():
                if name not in known:
                    raise self._error(key, f"unknown field {name!r} of Session")
            node = keys["spec"][1]
            keys = self._entries(node)
        self._removed = [] if "template" in keys and not _is_null(keys["template"][1]) else None
        spec = self._parsed(node, session_pb2.SessionSpec())
        if self._removed:
            spec.template.override_mask.paths.extend(self._removed)
        return self._completed(node, spec)

    def _parsed(self, node: Any, message: _Parsed) -> _Parsed:
        known = len(self.mistakes)
        value = self._message(node, message.DESCRIPTOR, 0, ())
        if len(self.mistakes) > known:
            return message
        try:
            return json_format.ParseDict(value, message)
        except json_format.ParseError as error:
            raise self._error(node, str(error)) from error

    def _message(self, node: Any, descriptor: Descriptor, depth: int, path: _Path) -> dict[str, Any]:
        """Returns the fields of a message; `path` is its path in a request,
        None where a mask cannot name its fields.
        """
        known = by_name(descriptor)
        made: dict[str, Any] = {}
        for name, (key, value) in self._entries(node).items():
            with self.collecting():
                field = known.get(name)
                if field is None:
                    raise self._error(key, f"unknown field {name!r} of {descriptor.name}{_hint(name, descriptor)}")
                if field.json_name in made:
                    raise self._error(key, f"field {name!r} is given twice")
                below = None if path is None else (*path, field.name)
                self._written = name
                if _is_null(value):
                    self._remove(below)
                elif field.full_name == _MASK:
                    self._take_mask(value)
                else:
                    made[field.json_name] = self._field(value, field, depth + 1, below)
        return made

    def _remove(self, path: _Path) -> None:
        if self._removed is not None and path is not None:
            self._removed.append(".".join(path))

    def _take_mask(self, node: Any) -> None:
        """A list of paths; the JSON form of a mask cannot spell all keys."""
        if not isinstance(node, yaml.SequenceNode) or not all(isinstance(item, yaml.ScalarNode) for item in node.value):
            raise self._error(node, "override_mask must be a list of paths")
        if self._removed is not None:
            self._removed += [item.value for item in node.value]

    def _field(self, node: Any, field: FieldDescriptor, depth: int, path: _Path) -> Any:
        if field.message_type is not None and is_map(field):
            inner = field.message_type.fields_by_name["value"]
            entries = {}
            for name, (_, value) in self._entries(node).items():
                if self._removed is not None and _is_null(value):
                    self._remove(None if path is None else (*path, name))
                else:
                    entries[name] = self._single(value, inner, depth, None)
            return entries
        if field.is_repeated:
            if not isinstance(node, yaml.SequenceNode):
                raise self._error(node, f"{self._written} must be a list")
            return [self._single(item, field, depth, self._path_of_role(item, path)) for item in node.value]
        return self._single(node, field, depth, path)

    def _path_of_role(self, node: Any, path: _Path) -> _Path:
        """Roles are merged by their names; all other lists are replaced as a whole."""
        if path != ("roles",):
            return None
        name = self._entries(node).get("role")
        return (*path, str(name[1].value)) if name is not None else None

    def _count(self, node: Any, depth: int) -> None:
        self._values += 1
        if self._values > _MAX_VALUES or depth > _DEEPEST:
            # Nothing after it is read.
            raise UsageError(str(self._error(node, "there is too much in it")))

    def _single(self, node: Any, field: FieldDescriptor, depth: int, path: _Path) -> Any:
        self._count(node, depth)
        if (kind := fields_of(field)) is not None:
            if kind is session_pb2.TemplateReference.DESCRIPTOR and isinstance(node, yaml.ScalarNode):
                return {"name": node.value}
            return self._message(node, kind, depth, path)
        if not isinstance(node, yaml.ScalarNode):
            raise self._error(node, f"{self._written} must be a single value")
        if field.type == FieldDescriptor.TYPE_BOOL:
            if node.tag.endswith(":bool"):
                return node.value.lower() in ("true", "yes", "on")
            raise self._error(node, f"{self._written} must be true or false")
        if field.enum_type is not None and not node.value.isdecimal():
            try:
                return enum_names.number(field.enum_type, node.value)
            except UsageError as error:
                raise self._error(node, f"{self._written}: {error}") from error
        if field.message_type is not None:
            return self._time(node, field.message_type)
        if field.type in _WHOLE and re.fullmatch(r"-?\d{1,19}", node.value) is None:
            raise self._error(node, f"{self._written} must be a whole number, not {node.value!r}")
        # As written: an amount or an argument that looks like a number is text all the same.
        return node.value

    def _time(self, node: Any, kind: Descriptor) -> Any:
        """Returns a length of time, written as on the command line, or a moment, as proto JSON has them."""
        if kind.full_name == Duration.DESCRIPTOR.full_name:
            if (seconds := parse_span(node.value)) is None:
                raise self._error(node, f"{self._written} must be a time such as {EXAMPLES}, not {node.value!r}")
            return as_duration(seconds).ToJsonString()
        if (at := parse_time(node.value)) is None:
            raise self._error(
                node, f"{self._written} must be a moment such as 2026-01-31T12:00:00Z, not {node.value!r}"
            )
        moment = Timestamp()
        moment.FromDatetime(at)
        return moment.ToJsonString()

    def _entries(self, node: Any) -> dict[str, tuple[Any, Any]]:
        if not isinstance(node, yaml.MappingNode):
            raise self._error(node, "there must be fields here")
        entries: dict[str, tuple[Any, Any]] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self._error(key, "is not the name of a field")
            if key.value in entries:
                self.mistakes.append(str(self._error(key, f"{key.value!r} is given twice")))
                continue
            entries[key.value] = (key, value)
        return entries

    def _error(self, node: Any, text: str) -> _MistakeError:
        return _MistakeError(f"{self.source}:{node.start_mark.line + 1}: {text}")


def _hint(name: str, descriptor: Descriptor) -> str:
    """Returns where a field of that name is, or which one of the message is nearly called so; empty for neither."""
    for field in descriptor.fields:
        inner = None if field.is_repeated else fields_of(field)
        if inner is not None and name in by_name(inner):
            return f"; write it under {field.json_name}"
    near = difflib.get_close_matches(name, [field.json_name for field in descriptor.fields], n=1)
    return f"; did you mean {near[0]}?" if near else ""
