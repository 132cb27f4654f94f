"""The stored document of a session's spec: one encoder, and one typed decoder that never raises. Pure.

A document has a member for each field of `SessionSpec`, but for empty ones, and `version`: the oldest version of this
format whose readers may run the session, ignoring members that they do not know. So an older manager runs every session
that does without newer fields or may do without them, and leaves the others to newer managers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, Final, TypeAlias, get_type_hints

import orjson
from pydantic import TypeAdapter, ValidationError

from retinue.manager.domain.session import spec as specs
from retinue.manager.domain.session.apps import AppSpec
from retinue.manager.domain.session.service_ports import PortRange, ServicePortSpec
from retinue.manager.domain.session.spec import SessionSpec
from retinue.manager.domain.session.states import SessionType

VERSION: Final = 1
"""The newest version of documents that this manager writes and reads. A field that an older manager must not ignore
gets the next one: `field(default=…, metadata={"since": …})`.
"""

Document: TypeAlias = dict[str, Any]
_ALWAYS: Final = object()


@dataclass(frozen=True, slots=True)
class UnreadableSpec:
    """A document that this version cannot read: a newer version wrote it, or it is damaged. `error` says for people
    which and why; `known` has the members that can be read, and defaults in place of the others.
    """

    error: str
    known: SessionSpec


DecodedSpec: TypeAlias = SessionSpec | UnreadableSpec


def known_part(spec: DecodedSpec) -> SessionSpec:
    """Returns a spec, with defaults in place of what cannot be read."""
    return spec.known if isinstance(spec, UnreadableSpec) else spec


def encode(spec: SessionSpec) -> Document:
    """Returns the document of a spec, without the secrets of its webhooks."""
    versions = [1]
    document = _members(spec, versions)
    return {"version": max(versions), **document}


class Encoder:
    """Encodes specs that sessions share, each once."""

    def __init__(self) -> None:
        # By identity, with the spec, so that no other gets its identity.
        self._encoded: dict[int, tuple[SessionSpec, Document]] = {}

    def document(self, spec: SessionSpec, name: str) -> Document:
        """Returns the document of the spec of a session that is called `name`."""
        known = self._encoded.get(id(spec))
        if known is None:
            known = self._encoded[id(spec)] = (spec, encode(spec))
        return {**known[1], "name": name}


def decode(stored: object) -> DecodedSpec:
    """Returns a document as a spec. Never raises."""
    if not isinstance(stored, Mapping):
        return UnreadableSpec("the spec cannot be read: it is no mapping", _known({}))
    version = stored.get("version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        return UnreadableSpec("the spec cannot be read: it has no version", _known(stored))
    if version > VERSION:
        error = f"the spec is of version {version}, and this manager reads versions up to {VERSION}: upgrade it"
        return UnreadableSpec(error, _known(stored))
    try:
        # JSON has no tuples and no enumerations: only in text may arrays and words be read strictly as these. A spec
        # has no member that is called `version`, so the document is read as it is: sessions are read by the thousand.
        return _WHOLE.validate_json(orjson.dumps(stored))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        path = ".".join(map(str, first["loc"]))
        return UnreadableSpec(f"the spec cannot be read: {path}: {first['msg']}", _known(stored))
    except (TypeError, ValueError, RecursionError) as error:
        return UnreadableSpec(f"the spec cannot be read: {type(error).__name__}", _known(stored))


def _known(members: Mapping[str, Any]) -> SessionSpec:
    found: dict[str, Any] = {"name": "", "project": "", "resource_group": "", "type": SessionType.BATCH}
    for name, adapter in _MEMBER.items():
        if name in members:
            try:
                found[name] = adapter.validate_json(orjson.dumps(members[name]))
            except (TypeError, ValueError, RecursionError):
                continue
    return SessionSpec(**found)


def _members(value: object, versions: list[int]) -> Document:
    document: Document = {}
    for name, left_out, since in _FIELDS[type(value)]:
        if (member := getattr(value, name)) != left_out:
            document[name] = _stored(member, versions)
            versions.append(since)
    return document


def _stored(value: object, versions: list[int]) -> object:
    kind = type(value)
    if kind in _FIELDS:
        return _members(value, versions)
    # Of texts and numbers, what writes JSON takes as it is: variables are many.
    if kind is tuple and value and type(value[0]) in _FIELDS:  # type: ignore[index]
        return [_members(item, versions) for item in value]  # type: ignore[attr-defined]
    if isinstance(value, Mapping):
        if value and type(next(iter(value.values()))) in _FIELDS:
            return {key: _members(item, versions) for key, item in value.items()}
        return dict(value)
    return value


def _left_out(item: Field[Any]) -> object:
    """Returns the value with which a field is left out: an empty default, which no later version changes."""
    default = item.default if item.default_factory is MISSING else item.default_factory()
    return _ALWAYS if default is MISSING or default else default


# By type: the names of its fields, with which value each is left out, and the version that knows it.
_FIELDS: Mapping[type, tuple[tuple[str, object, int], ...]] = {
    kind: tuple(
        (item.name, _left_out(item), item.metadata.get("since", 1))
        for item in fields(kind)
        if item.metadata.get("stored", True)
    )
    for kind in (
        SessionSpec,
        specs.KernelSpec,
        specs.RetryPolicy,
        specs.MountSpec,
        specs.WebhookSpec,
        specs.TimeWarning,
        specs.TemplateOrigin,
        specs.SftpSpec,
        ServicePortSpec,
        PortRange,
        AppSpec,
    )
}
_WHOLE = TypeAdapter(SessionSpec)
_MEMBER: Mapping[str, TypeAdapter[Any]] = {
    name: TypeAdapter(hint) for name, hint in get_type_hints(SessionSpec).items()
}
