"""Between requests for sessions as messages and as leaves by path, along the descriptors of the contract;
and paths of field masks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retinue.manager.domain.errors import InvalidRequest, Violation
from retinue.manager.domain.session.overrides import Overrides, Path
from retinue.manager.v1 import session_pb2 as pb
from retinue.rpc.fields import fields_of, is_map, leaves, split_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from google.protobuf.message import Message

MAX_MASK_PATHS, MAX_MASK_PATH = 500, 256
# No part of what is asked for, but where it comes from.
_REFERENCE = "template"
_ROLES = "roles"


def overrides_of(spec: pb.SessionSpec, path: str) -> Overrides:
    """Returns the fields that a request sets and those its override_mask names: the latter are removed first,
    and so replaced whole.

    `path` is where the request is, in errors. Raises InvalidRequest.
    """
    mask = spec.template.override_mask.paths
    removed, wrong = mask_paths(mask, f"{path}.template.override_mask")
    seen: set[str] = set()
    for position, role in enumerate(spec.roles):
        if role.role in seen:
            wrong.append((f"{path}.roles[{position}].role", "is given twice"))
        seen.add(role.role)
    if wrong:
        raise InvalidRequest(wrong)
    return Overrides(dict(_leaves(spec, ())), frozenset(removed))


def spec_of(overrides: Overrides) -> pb.SessionSpec:
    """Returns the request that has these leaves."""
    spec = pb.SessionSpec()
    roles: dict[str, pb.RoleSpec] = {}
    for path, value in overrides.given.items():
        if path[0] == _ROLES:
            if path[1] not in roles:
                roles[path[1]] = spec.roles.add(role=path[1])
            _set(roles[path[1]], path[2:], value)
        else:
            _set(spec, path, value)
    return spec


def mask_paths(paths: Sequence[str], mask: str) -> tuple[list[Path], list[Violation]]:
    """The paths of a field mask in their parts, and what is wrong with them; `mask` is where it is.

    A part after a map is a key, with all its dots; one after `roles` is a role. Keys may stand in backticks.
    """
    if len(paths) > MAX_MASK_PATHS:
        return [], [(mask, f"must be at most {MAX_MASK_PATHS} paths")]
    found, wrong = [], []
    for text in paths:
        path = split_path(text, pb.SessionSpec.DESCRIPTOR, keyed=_ROLES) if len(text) <= MAX_MASK_PATH else None
        if path is None or path[0] == _REFERENCE:
            wrong.append((mask, f"{text[:64]!r} is not the path of a field"))
        else:
            found.append(path)
    return found, wrong


def _leaves(message: Message, above: Path) -> Iterator[tuple[Path, Any]]:
    for fields, value in leaves(message):
        path = (*above, *[field.name for field in fields])
        if path[0] == _REFERENCE:
            continue
        if not fields[-1].is_repeated:
            yield path, value
        elif is_map(fields[-1]):
            for key, item in value.items():
                yield (*path, key), item
        elif path == (_ROLES,):
            for role in value:
                yield from _leaves(role, (*path, role.role))
                yield (*path, role.role, "role"), role.role
        else:
            yield path, tuple(value)


def _set(message: Any, path: Path, value: Any) -> None:
    descriptor = message.DESCRIPTOR.fields_by_name[path[0]]
    if is_map(descriptor):
        getattr(message, path[0])[path[1]] = value
    elif descriptor.is_repeated:
        getattr(message, path[0]).extend(value)
    elif fields_of(descriptor) is not None:
        _set(getattr(message, path[0]), path[1:], value)
    elif descriptor.message_type is not None:
        getattr(message, path[0]).CopyFrom(value)
    else:
        setattr(message, path[0], value)
