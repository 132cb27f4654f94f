"""The form of `retinue.client.admin.templates` for callers that block.

Written by scripts/generate-sync-client; do not edit it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.client.admin import templates as aio_templates
from retinue.client.blocking import iterate, run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TYPE_CHECKING

    from retinue.manager.v1 import session_pb2
    from retinue.manager.v1 import template_service_pb2 as pb


class Templates:
    """The templates that the caller may read, by name or id. All methods raise CallError."""

    def __init__(self, asynchronous: aio_templates.Templates) -> None:
        """Takes the asynchronous form."""
        self._asynchronous = asynchronous

    def create(self, template: pb.Template, *, request_id: str = "", validate_only: bool = False) -> pb.Template:
        """Makes a template with the name, project, description and spec of a message; `validate_only` only checks."""
        return run(self._asynchronous.create(template, request_id=request_id, validate_only=validate_only))

    def get(self, template: str, *, project: str = "", version: int = 0) -> pb.Template:
        """Returns a template, by default in its newest version."""
        return run(self._asynchronous.get(template, project=project, version=version))

    def list(
        self, *, project: str = "", versions_of: str = "", full: bool = False, limit: int | None = None
    ) -> Iterator[pb.Template]:
        """Templates by name, or all versions of one, newest first; with `full` also their `spec`."""
        return iterate(self._asynchronous.list(project=project, versions_of=versions_of, full=full, limit=limit))

    def update(self, template: pb.Template, *, mask: Sequence[str] = (), validate_only: bool = False) -> pb.Template:
        """Creates a new version: takes what `mask` names (default: what is given of
        description and spec) from the message.

        An `etag` in the message must be the current one.
        """
        return run(self._asynchronous.update(template, mask=mask, validate_only=validate_only))

    def delete(self, template: str, *, project: str = "", etag: str = "") -> None:
        """Removes a template; sessions made from it stay as they are."""
        run(self._asynchronous.delete(template, project=project, etag=etag))

    def render(self, spec: session_pb2.SessionSpec) -> session_pb2.SessionSpec:
        """Returns the merged specification of a session: the template that the message names,
        with the rest of the message over it.
        """
        return run(self._asynchronous.render(spec))
