"""UploadFiles, DownloadFiles, ListFiles: checks the request, finds the kernel, and passes all steps on to its agent."""

from __future__ import annotations

import logging
from contextlib import aclosing
from typing import TYPE_CHECKING

from retinue.agent.v1 import agent_service_pb2 as agent_pb
from retinue.manager.agent_rpc.dialer import Purpose
from retinue.manager.api.visibility import find_session, record_access, require_feature
from retinue.manager.domain import errors
from retinue.manager.domain.session.events import AccessMethod
from retinue.manager.domain.session.features import Feature
from retinue.manager.server.interceptors import current_principal
from retinue.manager.session import kernel_locator
from retinue.manager.v1 import kernel_service_pb2 as pb
from retinue.rpc.first_request import first_request

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from retinue.manager.agent_rpc.relay import AttemptLocation, Forwarder
    from retinue.manager.store.postgres.database import Database
    from retinue.types.v1 import file_pb2

_log = logging.getLogger(__name__)

MAX_DATA_BYTES = 1 << 20
MAX_PATH_BYTES, MAX_PART_BYTES, MAX_PARTS = 4096, 255, 100
MAX_FILES = 1000
MAX_MODE = 0o777
MAX_TARGET_BYTES = 4096
DIGEST_BYTES = 32


async def serve_upload(
    database: Database, forwarder: Forwarder, requests: AsyncIterator[pb.UploadFilesRequest]
) -> AsyncGenerator[pb.UploadFilesResponse, None]:
    """Serves one stream."""
    start = (await first_request(anext(requests), "start")).start
    location = await _locate(database, start.session, start.hostname, AccessMethod.UPLOAD)
    _log.info("%s uploads files to attempt %s", current_principal().name, location.attempt_id)
    steps = _steps(location.attempt_id, requests)
    async with aclosing(forwarder.exchange(location, lambda stub: stub.UploadFiles, steps, Purpose.FILES)) as responses:
        async for response in responses:
            yield pb.UploadFilesResponse(output=response.output)


async def serve_download(
    database: Database, forwarder: Forwarder, request: pb.DownloadFilesRequest
) -> AsyncGenerator[pb.DownloadFilesResponse, None]:
    """Serves one stream."""
    if violations := wrong_ranges(request):
        raise errors.InvalidRequest(violations)
    location = await _locate(database, request.session, request.hostname, AccessMethod.DOWNLOAD)
    _log.info("%s downloads files of attempt %s", current_principal().name, location.attempt_id)
    asked = agent_pb.DownloadFilesRequest(attempt_id=location.attempt_id, files=request.files)
    async with aclosing(forwarder.stream(location, lambda stub: stub.DownloadFiles, asked, Purpose.FILES)) as responses:
        async for response in responses:
            yield pb.DownloadFilesResponse(output=response.output)


async def serve_list(
    database: Database, forwarder: Forwarder, request: pb.ListFilesRequest
) -> AsyncGenerator[pb.ListFilesResponse, None]:
    """Serves one stream."""
    if request.path and (violation := wrong_path(request.path)):
        raise errors.InvalidRequest([("path", violation)])
    location = await _locate(database, request.session, request.hostname)
    asked = agent_pb.ListFilesRequest(attempt_id=location.attempt_id, path=request.path, recursive=request.recursive)
    async with aclosing(forwarder.stream(location, lambda stub: stub.ListFiles, asked, Purpose.FILES)) as responses:
        async for response in responses:
            yield pb.ListFilesResponse(entries=response.entries)


async def _locate(
    database: Database, session: str, hostname: str, method: AccessMethod | None = None
) -> AttemptLocation:
    hostname = hostname or "main1"
    async with database.transaction() as tx:
        session_id = await find_session(tx, session, owner_only=True)
        await require_feature(tx, session_id, Feature.FILES)
        location = await kernel_locator.locate(tx, session_id, hostname)
        if method is not None:
            await record_access(tx, session_id, method, hostname)
        return location


async def _steps(
    attempt_id: str, requests: AsyncIterator[pb.UploadFilesRequest]
) -> AsyncIterator[agent_pb.UploadFilesRequest]:
    yield agent_pb.UploadFilesRequest(attempt_id=attempt_id)
    async for request in requests:
        match request.WhichOneof("step"):
            case "input":
                if violations := wrong_input(request.input):
                    raise errors.InvalidRequest(violations)
                yield agent_pb.UploadFilesRequest(input=request.input)
            case "start":
                raise errors.InvalidRequest([("start", "must come once")])
            case _:
                raise errors.InvalidRequest([("step", "is required")])


def wrong_input(message: file_pb2.UploadInput) -> list[errors.Violation]:
    """Returns the error of a step after the first: (field path, description)."""
    found: list[errors.Violation] = []
    match message.WhichOneof("step"):
        case "file":
            found = wrong_file(message.file)
        case "data":
            if len(message.data) > MAX_DATA_BYTES:
                found = [("data", f"must be at most {MAX_DATA_BYTES} bytes")]
        case "directory":
            found = wrong_new("directory", message.directory.path, message.directory.mode)
        case "link":
            found = wrong_link(message.link)
        case _:
            found = [("step", "is required")]
    return [(f"input.{path}", description) for path, description in found]


def wrong_file(new: file_pb2.NewFile) -> list[errors.Violation]:
    """Returns the error of an announced file: (field path, description)."""
    violations = wrong_new("file", new.path, new.mode)
    if new.size < 0:
        violations.append(("file.size", "must not be negative"))
    if new.sha256 and len(new.sha256) != DIGEST_BYTES:
        violations.append(("file.sha256", f"must be {DIGEST_BYTES} bytes"))
    if new.resume and not new.sha256:
        violations.append(("file.resume", "needs sha256"))
    return violations


def wrong_new(field: str, path: str, mode: int) -> list[errors.Violation]:
    """Returns the error in the path and permissions of a file or directory to be made."""
    violations = [(f"{field}.path", violation)] if (violation := wrong_path(path)) else []
    if mode > MAX_MODE:
        violations.append((f"{field}.mode", "must be nine bits of permissions"))
    return violations


def wrong_link(new: file_pb2.NewLink) -> list[errors.Violation]:
    """Returns the error in a link to be made."""
    violations = wrong_new("link", new.path, 0)
    if not new.target or "\0" in new.target or len(new.target.encode()) > MAX_TARGET_BYTES:
        violations.append(("link.target", f"must be 1 to {MAX_TARGET_BYTES} bytes without NUL"))
    return violations


def wrong_ranges(request: pb.DownloadFilesRequest) -> list[errors.Violation]:
    """Returns the error in the ranges to be read."""
    if not 1 <= len(request.files) <= MAX_FILES:
        return [("files", f"must be 1 to {MAX_FILES}")]
    violations: list[errors.Violation] = []
    for number, wanted in enumerate(request.files):
        if violation := wrong_path(wanted.path):
            violations.append((f"files[{number}].path", violation))
        if wanted.offset < 0:
            violations.append((f"files[{number}].offset", "must not be negative"))
    return violations


def wrong_path(path: str) -> str:
    """Returns why a path cannot be one beneath a work directory; empty when it can."""
    parts = path.rstrip("/").split("/")
    rules = (
        (bool(path), "is required"),
        (not path.startswith("/"), "must be relative to the work directory"),
        ("\0" not in path, "must not hold NUL"),
        (not {"", ".", ".."}.intersection(parts), "must not hold `.`, `..` or empty parts"),
        (
            len(path.encode()) <= MAX_PATH_BYTES and len(parts) <= MAX_PARTS,
            f"must be at most {MAX_PATH_BYTES} bytes and {MAX_PARTS} parts",
        ),
        (
            all(len(part.encode()) <= MAX_PART_BYTES for part in parts),
            f"must have at most {MAX_PART_BYTES} bytes in a part",
        ),
    )
    return next((text for holds, text in rules if not holds), "")
