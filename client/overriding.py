"""Single fields of a request by their paths, as in `slots.cpu=2`: set,
or named in the mask of those that a template's must not be taken.
"""

from __future__ import annotations

import datetime as dt
import re
import shlex
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.timestamp_pb2 import Timestamp

from retinue.client import enum_names
from retinue.client.errors import UsageError
from retinue.client.time_spans import EXAMPLES, MOMENT_EXAMPLES, as_duration, parse_moment, parse_span
from retinue.manager.v1 import session_pb2
from retinue.rpc.fields import is_map, split_path

_DURATION, _TIMESTAMP = "google.protobuf.Duration", "google.protobuf.Timestamp"
_ROLES = "roles"
_INTEGERS = {FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_INT64}
_TRUTH = {"true": True, "yes": True, "false": False, "no": False}


def locate(path: str) -> tuple[str, ...]:
    """Returns the parts of a path: fields as in the contract, keys of maps and names of roles. Raises UsageError.

    `kernel` may be left out, of a role too: `slots.cpu` is `kernel.slots.cpu`,
    `roles.worker.image` is `roles.worker.kernel.image`.
    """
    parts = split_path(path, session_pb2.SessionSpec.DESCRIPTOR, keyed=_ROLES, implied="kernel")
    if parts is None:
        raise UsageError(f"{path!r} is not the path of a field of a session's spec")
    return parts


def set_field(spec: session_pb2.SessionSpec, path: str, text: str) -> None:
    """Sets a field from text: lists are split as a shell would, lengths of time are `90s` or `2h`.
    Raises UsageError.

    A field that is set to nothing cannot be told from one that is not set: it is not taken from a template either.
    """
    message: Any = spec
    parts = list(locate(path))
    while True:
        name = parts.pop(0)
        field = message.DESCRIPTOR.fields_by_name[name]
        if field.name == _ROLES and len(parts) > 1:
            role = parts.pop(0)
            message = next((item for item in spec.roles if item.role == role), None) or spec.roles.add(role=role)
        elif is_map(field) and parts:
            getattr(message, name)[parts[0]] = text
            return
        elif parts and not field.is_repeated:
            message = getattr(message, name)
        else:
            break
    if is_map(field) or (field.is_repeated and field.message_type is not None):
        raise UsageError(f"{path} holds more than one value: set its parts, or write it into a file")
    if field.is_repeated:
        del getattr(message, name)[:]
        getattr(message, name).extend(_split(path, text))
    elif field.message_type is not None:
        getattr(message, name).CopyFrom(_well_known(path, field, text))
    else:
        setattr(message, name, _scalar(path, field, text))
    if spec.HasField("template") and not field.has_presence and not getattr(message, name):
        remove_field(spec, path)


def remove_field(spec: session_pb2.SessionSpec, path: str) -> None:
    """Marks a field of the template as not to be taken. Raises UsageError."""
    spec.template.override_mask.paths.append(".".join(locate(path)))


def _scalar(path: str, field: FieldDescriptor, text: str) -> Any:
    if field.enum_type is not None:
        return enum_names.number(field.enum_type, text)
    if field.type == FieldDescriptor.TYPE_BOOL:
        if text.lower() not in _TRUTH:
            raise UsageError(f"{path} is true or false, not {text!r}")
        return _TRUTH[text.lower()]
    if field.type in _INTEGERS:
        if not re.fullmatch(r"-?\d{1,9}", text):
            raise UsageError(f"{path} is a whole number, not {text!r}")
        return int(text)
    return text


def _well_known(path: str, field: FieldDescriptor, text: str) -> Any:
    kind = field.message_type.full_name if field.message_type is not None else ""
    if kind not in {_DURATION, _TIMESTAMP}:
        raise UsageError(f"{path} has fields of its own: set those")
    if kind == _DURATION:
        if (seconds := parse_span(text)) is None:
            raise UsageError(f"{path} is a time such as {EXAMPLES}, not {text!r}")
        return as_duration(seconds)
    if (at := parse_moment(text, dt.datetime.now(dt.UTC), 1)) is None:
        raise UsageError(f"{path} is a time such as {MOMENT_EXAMPLES}, not {text!r}")
    moment = Timestamp()
    moment.FromDatetime(at)
    return moment


def _split(path: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from error
