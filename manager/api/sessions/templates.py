"""The TemplateService: stored partial requests, their versions, and what sessions made from them would be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc.aio
from google.protobuf import json_format

from retinue.manager.api.sessions.template_rendering import find_template, render, scope, stored_spec
from retinue.manager.api.sessions.template_requests import check_content, updated
from retinue.manager.domain import errors
from retinue.manager.domain.session.refusals import Refused, no_project
from retinue.manager.server.etags import check_etag, etag
from retinue.manager.server.fields import Violations
from retinue.manager.server.interceptors import current_principal
from retinue.manager.server.journal_positions import with_position
from retinue.manager.server.pages import open_page
from retinue.manager.store.journal import requests
from retinue.manager.store.sessions import admission, templates
from retinue.manager.v1 import template_service_pb2 as pb
from retinue.manager.v1 import template_service_pb2_grpc
from retinue.rpc.times import timestamp

if TYPE_CHECKING:
    import uuid

    from sqlmodel.ext.asyncio.session import AsyncSession

    from retinue.manager.store.postgres.database import Database
    from retinue.manager.store.sessions.templates import TemplateRecord

_Context = grpc.aio.ServicerContext[Any, Any]


class TemplateServicer(template_service_pb2_grpc.TemplateServiceServicer):
    """Templates, for the members of their projects, and those of all projects for every caller."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def CreateTemplate(self, request: pb.CreateTemplateRequest, context: _Context) -> pb.CreateTemplateResponse:
        given, caller = request.template, current_principal()
        project = _home(given)
        violations = Violations()
        violations.name("template.name", given.name)
        violations.request_id(request.request_id)
        check_content(given, violations)
        violations.raise_any()
        async with self._database.transaction() as tx:
            if project is not None:
                known, _, _ = await admission.lock_references(tx, caller.name, {project}, ())
                if project not in known:
                    raise errors.ProjectDenied(project, caller.projects)

            async def create() -> pb.CreateTemplateResponse:
                made = await templates.create(tx, given.name, project, caller.name)
                if made is None:
                    raise errors.NameTaken("template", given.name)
                return await with_position(tx, pb.CreateTemplateResponse(template=await _add_version(tx, made, given)))

            if request.validate_only:
                exact = templates.Scope(() if project is None else (project,), shared=project is None)
                if await templates.named(tx, given.name, exact):
                    raise errors.NameTaken("template", given.name)
                shown = pb.Template(
                    name=given.name,
                    project=project or "",
                    for_all_projects=project is None,
                    description=given.description,
                    spec=given.spec,
                )
                return await with_position(tx, pb.CreateTemplateResponse(template=shown))
            return await requests.once(tx, caller.name, "CreateTemplate", request, pb.CreateTemplateResponse, create)

    async def GetTemplate(self, request: pb.GetTemplateRequest, context: _Context) -> pb.GetTemplateResponse:
        async with self._database.transaction() as tx:
            found = await find_template(tx, request.template, request.project, version=request.version, deleted=True)
        return pb.GetTemplateResponse(template=_message(found))

    async def ListTemplates(self, request: pb.ListTemplatesRequest, context: _Context) -> pb.ListTemplatesResponse:
        if request.view not in pb.TemplateView.values():
            raise errors.InvalidRequest([("view", "must be a known view")])
        full = request.view == pb.TEMPLATE_VIEW_FULL
        query = ["templates", request.project, request.versions_of, full]
        page = open_page(request.page_size, request.page_token, query)
        async with self._database.transaction() as tx:
            if request.versions_of:
                template = await find_template(tx, request.versions_of, request.project, deleted=True)
                before = int(page.after[0]) if page.after else 0
                listing = await templates.list_versions(tx, template.id, before=before, limit=page.size + 1, full=full)
            else:
                allowed = scope(request.project)
                if request.project:
                    allowed = templates.Scope(allowed.projects, shared=False)
                listing = await templates.list_page(
                    tx, allowed, after=page.after or ("", ""), limit=page.size + 1, full=full
                )

        def key(number: int) -> list[str]:
            item = listing.templates[number]
            return [str(item.version)] if request.versions_of else [item.name, item.project or ""]

        listed, token = page.close([_message(item) for item in listing.templates[: page.size]], listing.found, key)
        return pb.ListTemplatesResponse(templates=listed, next_page_token=token)

    async def UpdateTemplate(self, request: pb.UpdateTemplateRequest, context: _Context) -> pb.UpdateTemplateResponse:
        given = request.template
        async with self._database.transaction() as tx:
            template = await _changeable(tx, given.id or given.name, given.project, given.etag)
            if stored_spec(template) is None and "spec" not in request.update_mask.paths:
                # Fields that are not named stay as they are, which is not known.
                raise errors.InvalidRequest(
                    [
                        (
                            "update_mask",
                            f"must name spec: version {template.version} cannot be read, another manager wrote it",
                        )
                    ]
                )
            before = _message(template)
            after = updated(request, before.description, before.spec)
            violations = Violations()
            check_content(after, violations)
            violations.raise_any()
            if (after.description, after.spec) == (before.description, before.spec):
                return await with_position(tx, pb.UpdateTemplateResponse(template=before))
            if request.validate_only:
                before.spec.CopyFrom(after.spec)
                before.description = after.description
                return await with_position(tx, pb.UpdateTemplateResponse(template=before))
            made = await _add_version(tx, template.id, after)
            return await with_position(tx, pb.UpdateTemplateResponse(template=made))

    async def DeleteTemplate(self, request: pb.DeleteTemplateRequest, context: _Context) -> pb.DeleteTemplateResponse:
        async with self._database.transaction() as tx:
            template = await _changeable(tx, request.template, request.project, request.etag)
            await templates.delete(tx, template.id)
            return await with_position(tx, pb.DeleteTemplateResponse())

    async def RenderTemplate(self, request: pb.RenderTemplateRequest, context: _Context) -> pb.RenderTemplateResponse:
        if not request.spec.HasField("template"):
            raise errors.InvalidRequest([("spec.template", "is required")])
        async with self._database.transaction() as tx:
            (made,) = await render(tx, [request.spec])
        if isinstance(made, Refused):
            raise made.error
        return pb.RenderTemplateResponse(spec=made)


def _home(given: pb.Template) -> str | None:
    """Returns the project that a new template belongs to; None for all.
    Raises MethodDenied, ProjectDenied and InvalidRequest.
    """
    caller = current_principal()
    if given.for_all_projects:
        if not caller.is_admin:
            raise errors.MethodDenied("only administrators make templates for all projects")
        if given.project:
            raise errors.InvalidRequest([("template.project", "has no place beside for_all_projects")])
        return None
    project = given.project or (caller.projects[0] if len(caller.projects) == 1 else "")
    if not project:
        raise errors.InvalidRequest([("template.project", no_project(caller.name, caller.projects))])
    scope(project)
    return project


async def _changeable(tx: AsyncSession, reference: str, project: str, given_etag: str) -> TemplateRecord:
    """Returns the newest version of a template that the caller may change, locked until the commit."""
    template = await find_template(tx, reference, project, lock=True)
    caller = current_principal()
    if not caller.is_admin and (
        template.project is None or (template.owner != caller.name and template.project not in caller.administered)
    ):
        raise errors.MethodDenied("only who made the template, and administrators, may change it")
    check_etag(given_etag, template.version)
    return template


async def _add_version(tx: AsyncSession, template_id: uuid.UUID, content: pb.Template) -> pb.Template:
    await templates.add_version(
        tx,
        template_id,
        description=content.description,
        spec=json_format.MessageToJson(content.spec, indent=None),
        author=current_principal().name,
    )
    made = await templates.read(tx, template_id, templates.Scope(None))
    assert made is not None  # noqa: S101  # it was just inserted
    return _message(made)


def _message(template: TemplateRecord) -> pb.Template:
    message = pb.Template(
        id=str(template.id),
        name=template.name,
        project=template.project or "",
        for_all_projects=template.project is None,
        description=template.description,
        version=template.version,
        etag=etag(template.newest),
        author=template.author,
        create_time=timestamp(template.create_time),
        update_time=timestamp(template.update_time),
        delete_time=timestamp(template.delete_time),
    )
    if template.spec is not None and (spec := stored_spec(template)) is not None:
        message.spec.CopyFrom(spec)
    return message
