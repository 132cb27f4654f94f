"""Templates of a manager: partial requests that sessions are made from."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from google.protobuf.field_mask_pb2 import FieldMask

from retinue.client.transport.calls import call
from retinue.client.transport.pages import paged
from retinue.manager.v1 import template_service_pb2 as pb
from retinue.manager.v1 import template_service_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    import grpc.aio

    from retinue.manager.v1 import session_pb2


class Templates:
    """The templates that the caller may read, by name or id. All methods raise CallError."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        """Sends nothing yet."""
        self._stub: template_service_pb2_grpc.TemplateServiceAsyncStub = template_service_pb2_grpc.TemplateServiceStub(
            channel
        )

    async def create(self, template: pb.Template, *, request_id: str = "", validate_only: bool = False) -> pb.Template:
        """Makes a template with the name, project, description and spec of a message; `validate_only` only checks."""
        request = pb.CreateTemplateRequest(
            template=template, request_id=request_id or str(uuid.uuid4()), validate_only=validate_only
        )
        return (await call(self._stub.CreateTemplate, request)).template

    async def get(self, template: str, *, project: str = "", version: int = 0) -> pb.Template:
        """Returns a template, by default in its newest version."""
        request = pb.GetTemplateRequest(template=template, project=project, version=version)
        return (await call(self._stub.GetTemplate, request)).template

    async def list(
        self, *, project: str = "", versions_of: str = "", full: bool = False, limit: int | None = None
    ) -> AsyncGenerator[pb.Template, None]:
        """Templates by name, or all versions of one, newest first; with `full` also their `spec`."""
        view = pb.TEMPLATE_VIEW_FULL if full else pb.TEMPLATE_VIEW_BASIC

        async def fetch(token: str, size: int) -> pb.ListTemplatesResponse:
            request = pb.ListTemplatesRequest(
                page_size=size, page_token=token, project=project, versions_of=versions_of, view=view
            )
            return await call(self._stub.ListTemplates, request)

        async for template in paged(fetch, lambda page: page.templates, limit):
            yield template

    async def update(
        self, template: pb.Template, *, mask: Sequence[str] = (), validate_only: bool = False
    ) -> pb.Template:
        """Creates a new version: takes what `mask` names (default: what is given of
        description and spec) from the message.

        An `etag` in the message must be the current one.
        """
        request = pb.UpdateTemplateRequest(
            template=template, update_mask=FieldMask(paths=mask), validate_only=validate_only
        )
        return (await call(self._stub.UpdateTemplate, request)).template

    async def delete(self, template: str, *, project: str = "", etag: str = "") -> None:
        """Removes a template; sessions made from it stay as they are."""
        await call(self._stub.DeleteTemplate, pb.DeleteTemplateRequest(template=template, project=project, etag=etag))

    async def render(self, spec: session_pb2.SessionSpec) -> session_pb2.SessionSpec:
        """Returns the merged specification of a session: the template that the message names,
        with the rest of the message over it.
        """
        return (await call(self._stub.RenderTemplate, pb.RenderTemplateRequest(spec=spec))).spec
