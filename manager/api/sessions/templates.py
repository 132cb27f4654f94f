"""The TemplateService: stored partial requests, their versions, and what sessions made from them would be."""

from __future__ import annotations

from typing import Any

import grpc.aio
from google.protobuf import json_format
from sqlmodel.ext.asyncio.session import AsyncSession

from retinue.manager.api.sessions.refusal_convert import to_error
from retinue.manager.api.sessions.template_rendering import find_template, render, scope, stored_spec
from retinue.manager.api.sessions.template_requests import check_content, updated
from retinue.manager.server import errors
from retinue.manager.server.etags import check_etag, etag
from retinue.manager.server.fields import Violations
from retinue.manager.server.interceptors import current_principal
from retinue.manager.server.pages import open_page
from retinue.manager.server.revisions import with_revision
from retinue.manager.server.times import timestamp
from retinue.manager.session.core.refusals import Refused
from retinue.manager.store import requests, sessions, templates
from retinue.manager.store.database import Database
from retinue.manager.store.recordset import Row
from retinue.manager.v1 import template_service_pb2 as pb
from retinue.manager.v1 import template_service_pb2_grpc

_Context = grpc.aio.ServicerContext[Any, Any]


class TemplateServicer(template_service_pb2_grpc.TemplateServiceServicer):
    """Templates, for the members of their projects, and those of all projects for everybody."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def CreateTemplate(self, request: pb.CreateTemplateRequest, context: _Context) -> pb.CreateTemplateResponse:
        """See the proto."""
        given, caller = request.template, current_principal()
        project = _home(given)
        violations = Violations()
        violations.name("template.name", given.name)
        violations.request_id(request.request_id)
        check_content(given, violations)
        violations.raise_any()
        async with self._database.transaction() as tx:
            if project is not None:
                known, _, _ = await sessions.hold_references(tx, caller.name, {project}, ())
                if project not in known:
                    raise errors.ProjectDenied(project)

            async def create() -> pb.CreateTemplateResponse:
                made = await templates.create(tx, given.name, project, caller.name)
                if made is None:
                    raise errors.NameTaken("template", given.name)
                return await with_revision(tx, pb.CreateTemplateResponse(template=await _add_version(tx, made, given)))

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
                return await with_revision(tx, pb.CreateTemplateResponse(template=shown))
            return await requests.once(tx, caller.name, "CreateTemplate", request, pb.CreateTemplateResponse, create)

    async def GetTemplate(self, request: pb.GetTemplateRequest, context: _Context) -> pb.GetTemplateResponse:
        """See the proto."""
        async with self._database.transaction() as tx:
            row = await find_template(tx, request.template, request.project, version=request.version, deleted=True)
        return pb.GetTemplateResponse(template=_message(row))

    async def ListTemplates(self, request: pb.ListTemplatesRequest, context: _Context) -> pb.ListTemplatesResponse:
        """See the proto."""
        if request.view not in pb.TemplateView.values():
            raise errors.InvalidRequest([("view", "must be a known view")])
        full = request.view == pb.TEMPLATE_VIEW_FULL
        query = ["templates", request.project, request.versions_of, full]
        page = open_page(request.page_size, request.page_token, query)
        async with self._database.transaction() as tx:
            if request.versions_of:
                template = await find_template(tx, request.versions_of, request.project, deleted=True)
                before = int(page.after[0]) if page.after else 0
                rows = await templates.list_versions(tx, template["id"], before=before, limit=page.size + 1, full=full)
            else:
                seen = scope(request.project)
                if request.project:
                    seen = templates.Scope(seen.projects, shared=False)
                rows = await templates.list_page(tx, seen, after=page.after or ("", ""), limit=page.size + 1, full=full)

        def key(place: int) -> list[str]:
            row = rows[place]
            return [str(row["version"])] if request.versions_of else [row["name"], row["project"] or ""]

        listed, token = page.close([_message(row) for row in rows[: page.size]], rows[0]["found"] if rows else 0, key)
        return pb.ListTemplatesResponse(templates=listed, next_page_token=token)

    async def UpdateTemplate(self, request: pb.UpdateTemplateRequest, context: _Context) -> pb.UpdateTemplateResponse:
        """See the proto."""
        given = request.template
        async with self._database.transaction() as tx:
            row = await _changeable(tx, given.id or given.name, given.project, given.etag)
            before = _message(row)
            after = updated(request, before.description, before.spec)
            violations = Violations()
            check_content(after, violations)
            violations.raise_any()
            if (after.description, after.spec) == (before.description, before.spec):
                return await with_revision(tx, pb.UpdateTemplateResponse(template=before))
            if request.validate_only:
                before.spec.CopyFrom(after.spec)
                before.description = after.description
                return await with_revision(tx, pb.UpdateTemplateResponse(template=before))
            made = await _add_version(tx, row["id"], after)
            return await with_revision(tx, pb.UpdateTemplateResponse(template=made))

    async def DeleteTemplate(self, request: pb.DeleteTemplateRequest, context: _Context) -> pb.DeleteTemplateResponse:
        """See the proto."""
        async with self._database.transaction() as tx:
            row = await _changeable(tx, request.template, request.project, request.etag)
            await templates.delete(tx, row["id"])
            return await with_revision(tx, pb.DeleteTemplateResponse())

    async def RenderTemplate(self, request: pb.RenderTemplateRequest, context: _Context) -> pb.RenderTemplateResponse:
        """See the proto."""
        if not request.spec.HasField("template"):
            raise errors.InvalidRequest([("spec.template", "is required")])
        async with self._database.transaction() as tx:
            (made,) = await render(tx, [request.spec])
        if isinstance(made, Refused):
            raise to_error(made.reason)
        return pb.RenderTemplateResponse(spec=made)


def _home(given: pb.Template) -> str | None:
    """The project that a new template is to belong to; None for all. Raises MethodDenied, ProjectDenied and InvalidRequest."""
    caller = current_principal()
    if given.for_all_projects:
        if not caller.is_admin:
            raise errors.MethodDenied("only administrators make templates for all projects")
        if given.project:
            raise errors.InvalidRequest([("template.project", "has no place beside for_all_projects")])
        return None
    project = given.project or (caller.projects[0] if len(caller.projects) == 1 else "")
    if not project:
        raise errors.InvalidRequest([("template.project", "is required: you are not a member of exactly one project")])
    scope(project)
    return project


async def _changeable(tx: AsyncSession, reference: str, project: str, given_etag: str) -> Row:
    """The newest version of a template that the caller may change, held until the commit."""
    row = await find_template(tx, reference, project, lock=True)
    caller = current_principal()
    administered = [item.project for item in caller.memberships if item.role == "ADMIN"]
    if not caller.is_admin and (
        row["project"] is None or (row["owner"] != caller.name and row["project"] not in administered)
    ):
        raise errors.MethodDenied("only who made the template, and administrators, may change it")
    check_etag(given_etag, row["version"])
    return row


async def _add_version(tx: AsyncSession, template_id: Any, content: pb.Template) -> pb.Template:
    await templates.add_version(
        tx,
        template_id,
        description=content.description,
        spec=json_format.MessageToDict(content.spec),
        author=current_principal().name,
    )
    row = await templates.read(tx, template_id, templates.Scope(None))
    assert row is not None  # noqa: S101  # it was just made
    return _message(row)


def _message(row: Row) -> pb.Template:
    message = pb.Template(
        id=str(row["id"]),
        name=row["name"],
        project=row["project"] or "",
        for_all_projects=row["project"] is None,
        description=row["description"],
        version=row["version"],
        etag=etag(row["newest"]),
        author=row["author"],
        create_time=timestamp(row["create_time"]),
        update_time=timestamp(row["update_time"]),
        delete_time=timestamp(row["delete_time"]),
    )
    if "spec" in row:
        message.spec.CopyFrom(stored_spec(row))
    return message
