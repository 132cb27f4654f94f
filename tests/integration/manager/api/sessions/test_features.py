"""Calls on sessions of each type: what a type does not have is refused in any state, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc.aio
import pytest
from sqlalchemy import text

from retinue.manager.v1 import (
    app_service_pb2,
    app_service_pb2_grpc,
    kernel_service_pb2_grpc,
    session_pb2,
    session_service_pb2_grpc,
)
from retinue.manager.v1 import kernel_service_pb2 as pb
from retinue.types.v1 import file_pb2, terminal_pb2
from tests.integration.manager.api.sessions.ada import Ada
from tests.integration.manager.rig import Service, failure, reasons
from tests.support.eventually import NEVER

pytestmark = pytest.mark.asyncio(loop_scope="session")

INTERACTIVE, BATCH, INFERENCE, SYSTEM = "interactive", "batch", "inference", "system"
TYPES = (INTERACTIVE, BATCH, INFERENCE, SYSTEM)
PROGRAMS = {INTERACTIVE, BATCH, INFERENCE}
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAINdamAGCsQq31Uv+08lkBzoO4XLz2qYjJa8CGmj3B1Ea"
Request = Callable[[str], Any]
# A method, the feature that it needs, the types that have that, and a request.
CALLS: tuple[tuple[str, str, set[str], Request], ...] = (
    (
        "Attach",
        "ATTACH",
        PROGRAMS,
        lambda of: pb.AttachRequest(start=pb.AttachStart(session=of, spec=terminal_pb2.CommandSpec(command=["true"]))),
    ),
    ("ExecuteCode", "CODE_EXECUTION", {INTERACTIVE}, lambda of: pb.ExecuteCodeRequest(open=pb.CodeOpen(session=of))),
    ("UploadFiles", "FILES", PROGRAMS, lambda of: pb.UploadFilesRequest(start=pb.UploadStart(session=of))),
    (
        "DownloadFiles",
        "FILES",
        PROGRAMS,
        lambda of: pb.DownloadFilesRequest(session=of, files=[file_pb2.FileRange(path="x")]),
    ),
    ("ListFiles", "FILES", PROGRAMS, lambda of: pb.ListFilesRequest(session=of)),
    ("StartApp", "APPS", PROGRAMS, lambda of: app_service_pb2.StartAppRequest(session=of, app="web")),
    ("StopApp", "APPS", PROGRAMS, lambda of: app_service_pb2.StopAppRequest(session=of, app="web")),
    ("GetApp", "APPS", PROGRAMS, lambda of: app_service_pb2.GetAppRequest(session=of, app="web")),
    ("CreateSshCertificate", "SFTP", {SYSTEM}, lambda of: pb.CreateSshCertificateRequest(session=of, public_key=KEY)),
)


def spec(kind: str) -> session_pb2.SessionSpec:
    made = session_pb2.SessionSpec(name=kind, type=session_pb2.SessionType.Value(f"SESSION_TYPE_{kind.upper()}"))
    if kind == SYSTEM:
        made.mounts.add(source="/srv", target="/data")
    else:
        made.kernel.command.append("true")
    return made


@pytest.mark.attack("commands-where-none-run")
async def test_what_each_type_does_not_have_is_refused(service: Service) -> None:
    token = await service.user("ada")
    async with service.database.transaction() as tx:
        roots = '[{"path": "/srv", "writable": false, "projects": []}]'
        await tx.execute(text("UPDATE resource_group SET mount_roots = CAST(:roots AS jsonb)"), {"roots": roots})
    async with service.channel() as channel:
        ada = Ada(session_service_pb2_grpc.SessionServiceStub(channel), service, token)
        assert reasons(await ada.create(*(spec(kind) for kind in TYPES))) == [""] * len(TYPES)
        stubs = kernel_service_pb2_grpc.KernelServiceStub(channel), app_service_pb2_grpc.AppServiceStub(channel)
        for name, feature, types, request in CALLS:
            method = next(getattr(stub, name) for stub in stubs if hasattr(stub, name))
            takes_stream = isinstance(method, grpc.aio.StreamStreamMultiCallable)
            for kind in TYPES:
                asked = request(kind)
                call = method(iter([asked]) if takes_stream else asked, metadata=ada.metadata, timeout=NEVER)
                if feature == "SFTP" and kind in types:
                    assert (await call).certificate
                    continue
                refused = await failure(first_answer(call))
                # None of them runs.
                expected = ("STATE_FORBIDS", None) if kind in types else ("FEATURE_UNAVAILABLE", feature)
                assert (refused.code, refused.reason, refused.metadata.get("feature")) == (
                    *(grpc.StatusCode.FAILED_PRECONDITION, *expected),
                ), (name, kind)


async def first_answer(call: Any) -> Any:
    """Returns the first answer, of a stream or not."""
    return await (anext(aiter(call)) if hasattr(call, "__aiter__") else call)
