"""Finds the template that a request refers to, if the caller may read it, and merges the request over it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, TypeAlias

from google.protobuf import json_format

from retinue.manager.api.sessions.override_convert import overrides_of, spec_of
from retinue.manager.domain import errors
from retinue.manager.domain.session.refusals import Refused
from retinue.manager.server.fields import parse_uuid
from retinue.manager.server.interceptors import current_principal
from retinue.manager.store.sessions import templates
from retinue.manager.store.sessions.templates import TemplateRecord
from retinue.manager.v1 import session_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlmodel.ext.asyncio.session import AsyncSession

    from retinue.manager.domain.session.overrides import Overrides

_log = logging.getLogger(__name__)

# In one request: few bytes may name a template of many.
MAX_TEMPLATES = 100
MAX_RENDERED_BYTES = 8 * 1024 * 1024

Rendered: TypeAlias = session_pb2.SessionSpec | Refused
# Name or id, project, version.
_Key: TypeAlias = tuple[str, str, int]


def scope(project: str = "") -> templates.Scope:
    """Returns the templates that the caller may read, of one project only if that is given. Raises ProjectDenied."""
    principal = current_principal()
    if not project:
        return templates.Scope(None if principal.is_admin else principal.projects)
    if not principal.is_admin and project not in principal.projects:
        raise errors.ProjectDenied(project, principal.projects)
    return templates.Scope((project,))


async def find_template(
    tx: AsyncSession, reference: str, project: str, *, version: int = 0, deleted: bool = False, lock: bool = False
) -> TemplateRecord:
    """Returns the version of a template that a name or an id refers to; with `deleted`, by its id also a deleted one.

    Raises NotFound, also for what the caller may not read, ProjectDenied,
    and InvalidRequest when several projects have the name.
    """
    if version < 0:
        raise errors.InvalidRequest([("version", "must not be negative")])
    allowed, template = scope(project), None
    if (by_id := parse_uuid(reference)) is not None:
        template = await templates.read(tx, by_id, allowed, version=version, lock=lock)
    if template is None and "\0" not in reference:
        found = await templates.named(tx, reference, allowed)
        if len(found) > 1 and found[1].project is not None:
            raise errors.InvalidRequest([("project", "is required: templates of several projects have this name")])
        if found:
            template = await templates.read(tx, found[0].id, allowed, version=version, lock=lock)
    if template is None or (template.delete_time is not None and not deleted):
        raise errors.NotFound("template", reference if version == 0 else f"{reference} in version {version}")
    return template


def stored_spec(template: TemplateRecord) -> session_pb2.SessionSpec | None:
    """Returns the partial request of a version; None, with a warning in the log, when it cannot be read."""
    try:
        return json_format.Parse(template.spec or "{}", session_pb2.SessionSpec(), ignore_unknown_fields=True)
    except json_format.ParseError as error:
        _log.warning("version %d of template %s cannot be read: %s", template.version, template.id, error)
        return None


async def render(tx: AsyncSession, messages: Sequence[session_pb2.SessionSpec]) -> list[Rendered]:
    """Returns requests merged over their templates, those without one as they are, or why there is none.

    Raises InvalidRequest when there is too much of it.
    """
    found: dict[_Key, TemplateRecord | errors.ApiError] = {}
    for message in messages:
        if message.HasField("template") and (key := _key(message)) not in found:
            if len(found) == MAX_TEMPLATES:
                raise errors.InvalidRequest([("specs", f"must be of at most {MAX_TEMPLATES} templates")])
            found[key] = await _look_up(tx, message)
    return await asyncio.to_thread(_render_all, messages, found)


def _key(message: session_pb2.SessionSpec) -> _Key:
    reference = message.template
    return reference.name, reference.project or message.project, reference.version


async def _look_up(tx: AsyncSession, message: session_pb2.SessionSpec) -> TemplateRecord | errors.ApiError:
    name, project, version = _key(message)
    if not name:
        return errors.InvalidRequest((("spec.template.name", "is required"),))
    try:
        return await find_template(tx, name, project, version=version)
    except errors.InvalidRequest as error:
        return error.with_paths(lambda path: f"spec.template.{path}")
    except errors.ProjectDenied as error:
        return error
    except errors.NotFound:
        return errors.NotFound("template", name if version == 0 else f"{name} in version {version}")


def _render_all(
    messages: Sequence[session_pb2.SessionSpec], found: Mapping[_Key, TemplateRecord | errors.ApiError]
) -> list[Rendered]:
    bases: dict[_Key, tuple[Overrides, int]] = {}
    unreadable: dict[_Key, errors.ApiError] = {}
    for key, template in found.items():
        if isinstance(template, TemplateRecord):
            if (spec := stored_spec(template)) is None:
                unreadable[key] = errors.InvalidRequest(
                    (("spec.template", "cannot be read: another version wrote it"),)
                )
                continue
            bases[key] = overrides_of(spec, "spec"), spec.ByteSize()
    sizes = (bases[_key(message)][1] for message in messages if message.HasField("template") and _key(message) in bases)
    if sum(sizes) > MAX_RENDERED_BYTES:
        raise errors.InvalidRequest([("specs", f"must be at most {MAX_RENDERED_BYTES} bytes with their templates")])
    rendered: list[Rendered] = []
    for message in messages:
        if not message.HasField("template"):
            rendered.append(message)
            continue
        template = unreadable.get(_key(message), found[_key(message)])
        if not isinstance(template, TemplateRecord):
            rendered.append(Refused(message.name, template))
            continue
        try:
            rendered.append(_rendered(template, bases[_key(message)][0], message))
        except errors.InvalidRequest as error:
            rendered.append(Refused(message.name, error))
    return rendered


def _rendered(template: TemplateRecord, base: Overrides, message: session_pb2.SessionSpec) -> session_pb2.SessionSpec:
    made = spec_of(base.then(overrides_of(message, "spec")))
    made.project = made.project or template.project or ""
    made.template.CopyFrom(
        session_pb2.TemplateReference(
            id=str(template.id), name=template.name, project=template.project or "", version=template.version
        )
    )
    return made
