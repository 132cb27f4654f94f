"""Files of running kernels, from a client through the manager and the agent into the work directory and back."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc.aio
import pytest
import pytest_asyncio

from retinue.client.aio import Client
from retinue.client.errors import CallError, FailedPrecondition, InvalidRequest, NotFound, OutOfRange, ResourceExhausted
from retinue.client.transport.bidi_stream import BidiStream
from retinue.client.transport.rpc_errors import from_rpc
from retinue.manager.v1 import kernel_service_pb2 as pb
from retinue.rpc.bidi_call import BidiCall
from retinue.types.v1 import file_pb2
from tests.integration.sessions.inside import shell
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from retinue.client.sessions import Session
    from retinue.devtools.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def session(cluster: Cluster) -> AsyncIterator[Session]:
    async with cluster.client() as client:
        session = await client.sessions.create(
            type="interactive",
            command=["sleep", "1000"],
            cluster_size=2,
            cluster_mode="multi-node",
            slots={"cpu": "0.5", "mem": "128m"},
            termination_grace=0,
        )
        await session.wait("RUNNING", timeout=NEVER)
        yield session
        await session.terminate(force=True)
        await session.wait_ended(NEVER)


async def test_there_and_back(session: Session, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep" / "empty").mkdir(parents=True)
    big = os.urandom(5 << 20)
    contents = {"big": big, "deep/ünïcode name": b"text", "deep/none": b"", "run.sh": b"#!/bin/sh\necho it ran\n"}
    for name, content in contents.items():
        (source / name).write_bytes(content)
    (source / "run.sh").chmod(0o750)
    (source / "link").symlink_to("/etc/passwd")
    seen: list[tuple[str, int, int]] = []
    files = session.files()
    copied = await files.upload(source, "in", recursive=True, progress=lambda *step: seen.append(step))
    assert (copied.files, copied.bytes) == (4, sum(map(len, contents.values())))
    assert copied.skipped == (("in/link", "is a link that leads out of what is copied"),)
    assert ("in/run.sh", len(contents["run.sh"]), len(contents["run.sh"])) in seen
    assert [done for path, done, _ in seen if path == "in/big"][-1] == len(big)
    script = 'cd in; ./run.sh; sha256sum big | cut -d" " -f1; stat -c "%u %a" run.sh deep; id -u; ls ..'
    said = (await shell(session, script)).splitlines()
    assert said[:2] == ["it ran", hashlib.sha256(big).hexdigest()]
    assert said[2:4] == [f"{said[4]} 750", f"{said[4]} 755"]
    assert said[5:] == ["in"], "nothing of an upload is seen before it is whole, or left after"
    back = await files.download("in", tmp_path / "back", recursive=True)
    assert (back.files, back.bytes, back.skipped) == (4, copied.bytes, ())
    for name, content in contents.items():
        assert (tmp_path / "back" / name).read_bytes() == content
    assert (tmp_path / "back" / "deep" / "empty").is_dir()
    assert (tmp_path / "back" / "run.sh").stat().st_mode & 0o777 == 0o750
    await files.download("in/run.sh", tmp_path / "one")
    assert (tmp_path / "one").read_bytes() == contents["run.sh"]
    assert sorted(os.listdir(tmp_path)) == ["back", "one", "source"]


async def test_any_kernel_of_the_session(session: Session, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("for sub1")
    await session.files("sub1").upload(tmp_path / "x", "only-there")
    assert await shell(session, "cat ~/only-there", "sub1") == "for sub1"
    with pytest.raises(NotFound) as caught:
        await session.files().list("only-there")
    assert caught.value.metadata == {"kind": "file", "id": "only-there"}


@pytest.mark.attack("planted-files")
async def test_what_a_kernel_plants_leads_nowhere(session: Session, tmp_path: Path) -> None:
    await shell(
        session,
        "mkdir trap; cd trap; ln -s / root; ln -s /etc/passwd file; ln -s ../.. up; mkfifo fifo; truncate -s 1T huge;"
        " mkdir sub; echo fine > sub/fine",
    )
    files = session.files()
    (tmp_path / "x").write_text("x")
    for path in ("trap/root/tmp/x", "trap/up/x", "trap/fifo/x", "trap/sub"):
        with pytest.raises(FailedPrecondition) as caught:
            await files.upload(tmp_path / "x", path)
        assert (caught.value.reason, caught.value.metadata) == ("FILE_REFUSED", {"path": path})
    for path in ("trap/file", "trap/fifo", "trap/root/etc/passwd"):
        with pytest.raises(FailedPrecondition) as caught:
            await read(session, file_pb2.FileRange(path=path))
        assert caught.value.reason == "FILE_REFUSED"
    kinds = {entry.path: entry.type for entry in await files.list("trap")}
    assert kinds == {
        "trap/root": file_pb2.FILE_TYPE_LINK,
        "trap/file": file_pb2.FILE_TYPE_LINK,
        "trap/up": file_pb2.FILE_TYPE_LINK,
        "trap/fifo": file_pb2.FILE_TYPE_OTHER,
        "trap/huge": file_pb2.FILE_TYPE_REGULAR,
        "trap/sub": file_pb2.FILE_TYPE_DIRECTORY,
    }
    # What does not fit is not begun; without it, only what is a file comes.
    with pytest.raises(Exception, match="do not fit"):
        await files.download("trap", tmp_path / "back", recursive=True)
    assert not (tmp_path / "back").exists()
    await shell(session, "rm trap/huge")
    copied = await files.download("trap", tmp_path / "back", recursive=True)
    assert sorted(path for path, _ in copied.skipped) == ["trap/fifo", "trap/file", "trap/root", "trap/up"]
    assert sorted(os.listdir(tmp_path)) == ["back", "x"]
    assert [(top, sorted(names), files) for top, names, files in os.walk(tmp_path / "back")] == [
        (str(tmp_path / "back"), ["sub"], []),
        (str(tmp_path / "back" / "sub"), [], ["fine"]),
    ]


async def read(session: Session, *ranges: file_pb2.FileRange) -> list[file_pb2.DownloadOutput]:
    stub = session._sessions._kernels  # noqa: SLF001  # as clients in other languages do
    request = pb.DownloadFilesRequest(session=session.id, files=ranges)
    try:
        return [response.output async for response in stub.DownloadFiles(request)]
    except grpc.aio.AioRpcError as error:
        raise from_rpc(error, "") from error


async def exchanged(session: Session, steps: Sequence[pb.UploadFilesRequest]) -> list[file_pb2.UploadOutput]:
    """All steps of an upload in one call, and the answers."""
    exchange = BidiStream[pb.UploadFilesRequest, pb.UploadFilesResponse](session._sessions._kernels.UploadFiles, "")  # noqa: SLF001
    with contextlib.suppress(CallError):
        for step in steps:
            await exchange.send(step)
        await exchange.end_requests()
    answers: list[file_pb2.UploadOutput] = []
    try:
        while True:
            answers.append((await exchange.receive()).output)
    except CallError:
        if not exchange.ended_well:
            raise
    return answers


def sending(**values: Any) -> pb.UploadFilesRequest:
    return pb.UploadFilesRequest(input=file_pb2.UploadInput(**values))


def started(session: Session, *steps: pb.UploadFilesRequest) -> list[pb.UploadFilesRequest]:
    return [pb.UploadFilesRequest(start=pb.UploadStart(session=session.id)), *steps]


async def test_a_download_continues_by_offset_and_version(session: Session) -> None:
    await shell(session, "printf 0123456789 > growing")
    whole = await read(session, file_pb2.FileRange(path="growing"))
    assert [step.WhichOneof("step") for step in whole] == ["begin", "data", "end"]
    version = whole[0].begin.entry.version
    part = await read(session, file_pb2.FileRange(path="growing", offset=4, version=version))
    assert (part[0].begin.offset, part[1].data) == (4, b"456789")
    assert part[2].end == whole[2].end, "the digest is that of the whole file"
    await shell(session, "printf abcdefghijkl > growing")
    again = await read(session, file_pb2.FileRange(path="growing", offset=4, version=version))
    assert (again[0].begin.offset, again[1].data) == (0, b"abcdefghijkl")
    with pytest.raises(OutOfRange) as caught:
        await read(session, file_pb2.FileRange(path="growing", offset=13))
    assert (caught.value.reason, caught.value.metadata) == ("OFFSET_PAST_END", {"size": "12"})
    for gone in ("gone", "g" * 200, "ideographic\u3000space"):
        several = await read(session, file_pb2.FileRange(path=gone), file_pb2.FileRange(path="growing"))
        assert several[0].skipped.path == gone
        assert several[2].data == b"abcdefghijkl"


def new(path: str, content: bytes = b"content", **values: Any) -> pb.UploadFilesRequest:
    digest = hashlib.sha256(content).digest()
    fields: dict[str, Any] = {"path": path, "size": len(content), "sha256": digest} | values
    file = file_pb2.NewFile(**fields)
    return sending(file=file)


DATA = sending(data=b"content")


async def test_what_arrived_is_kept_and_what_is_wrong_is_not(session: Session) -> None:
    half = sending(data=b"con")
    with pytest.raises(InvalidRequest):
        await exchanged(session, started(session, new("kept", resume=True), half))
    answers = await exchanged(session, started(session, new("kept", resume=True), sending(data=b"tent")))
    assert (answers[0].ready.offset, answers[1].stored.path) == (3, "kept")
    assert await shell(session, "cat kept") == "content"
    wrong = sending(data=b"CONTENT")
    with pytest.raises(InvalidRequest) as caught:
        await exchanged(session, started(session, new("kept"), wrong))
    assert [violation.field for violation in caught.value.violations] == ["input.file.sha256"]
    assert await shell(session, "cat kept") == "content"
    with pytest.raises(ResourceExhausted) as full:
        await exchanged(session, started(session, new("sparse", size=1 << 60)))
    assert (full.value.reason, full.value.metadata) == ("NO_SPACE", {"path": "sparse"})


@pytest.mark.parametrize(
    ("steps", "field"),
    [
        ([new("")], "input.file.path"),
        ([new("../x")], "input.file.path"),
        ([new("/etc/passwd")], "input.file.path"),
        ([new("a/../../x")], "input.file.path"),
        ([new("a\0b")], "input.file.path"),
        ([new("a" * 256)], "input.file.path"),
        ([new("a/" * 101 + "x")], "input.file.path"),
        ([new("x", size=-1)], "input.file.size"),
        ([new("x", mode=0o4755)], "input.file.mode"),
        ([new("x", sha256=b"short")], "input.file.sha256"),
        ([new("x", sha256=b"", resume=True)], "input.file.resume"),
        ([sending(directory=file_pb2.NewDirectory(path=".."))], "input.directory.path"),
        ([sending(directory=file_pb2.NewDirectory(path="x", mode=0o1777))], "input.directory.mode"),
        ([sending(link=file_pb2.NewLink(path="../x", target="y"))], "input.link.path"),
        ([sending(link=file_pb2.NewLink(path="x"))], "input.link.target"),
        ([pb.UploadFilesRequest()], "step"),
        ([sending()], "input.step"),
        ([pb.UploadFilesRequest(start=pb.UploadStart())], "start"),
        ([DATA], "input.data"),
        ([new("x"), new("y")], "input.file"),
        ([new("x"), sending(data=b"x" * ((1 << 20) + 1))], "input.data"),
        ([new("x"), sending(data=b"content and more")], "input.file.sha256"),
    ],
)
async def test_bad_steps(session: Session, steps: list[pb.UploadFilesRequest], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await exchanged(session, started(session, *steps))
    assert [violation.field for violation in caught.value.violations] == [field]


@pytest.mark.attack("hostile-uploads")
async def test_bad_requests(session: Session) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await exchanged(session, [DATA])
    assert [violation.field for violation in caught.value.violations] == ["start"]
    for path in ("..", "/etc", "a//b"):
        with pytest.raises(InvalidRequest) as caught:
            await session.files().list(path)
        assert [violation.field for violation in caught.value.violations] == ["path"]
    with pytest.raises(InvalidRequest) as caught:
        await session.files("sub9").list()
    assert [violation.field for violation in caught.value.violations] == ["hostname"]
    ranges = [file_pb2.FileRange(path="../x", offset=-1), file_pb2.FileRange()]
    with pytest.raises(InvalidRequest) as caught:
        await read(session, *ranges)
    fields = [violation.field for violation in caught.value.violations]
    assert fields == ["files[0].path", "files[0].offset", "files[1].path"]
    for ranges in ([], [file_pb2.FileRange(path="x")] * 1001):
        with pytest.raises(InvalidRequest) as caught:
            await read(session, *ranges)
        assert [violation.field for violation in caught.value.violations] == ["files"]


@pytest.mark.attack("commands-where-none-run")
async def test_only_what_runs_and_only_ones_own(
    session: Session, client: Client, cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "x").touch()
    waiting = await client.sessions.create(type="interactive", slots={"cpu": "64"})
    for attempt in (waiting.files().list(), waiting.files().upload(tmp_path / "x", "x")):
        with pytest.raises(FailedPrecondition) as caught:
            await attempt
        assert caught.value.reason == "STATE_FORBIDS"
    await waiting.terminate()
    user = await client.users.create("files-user", projects={"default": "admin"})
    token = await client.tokens.create(user=user.name, description="files")
    settings = cluster.settings
    try:
        async with Client.connect(settings.endpoint, token=token.secret, ca=settings.ca) as other:
            files = (await other.sessions.get(session.id)).files()
            calls = (files.list(), files.upload(tmp_path / "x", "x"), files.download("x", tmp_path / "y"))
            for attempt in calls:
                # Not even administrators of the project.
                with pytest.raises(NotFound):
                    await attempt
    finally:
        await client.users.delete(user.name)


async def drained(call: BidiCall[Any, Any]) -> None:
    while await call.read() is not None:
        pass


def arriving(directory: Path, kernel: str) -> list[str]:
    """Where files of a kernel wait until they are whole; directories that vanish on the way are passed over."""
    places = (Path(parent, name) for parent, names, _ in os.walk(directory) for name in names)
    return [str(place) for place in places if kernel in str(place) and place.suffix == ".partial"]


async def test_the_end_of_a_kernel_ends_what_comes_to_it(client: Client, cluster: Cluster) -> None:
    session = await client.sessions.create(type="interactive", slots={"cpu": "0.2", "mem": "64m"}, termination_grace=0)
    await session.wait("RUNNING", timeout=NEVER)
    stub: Any = session._sessions._kernels  # noqa: SLF001
    call = BidiCall[Any, Any](stub.UploadFiles())
    for step in started(session, new("x", resume=True), sending(data=b"con")):
        await call.write(step)
    ready = await call.read()
    assert ready is not None
    assert ready.output.ready.offset == 0
    kernel = session.kernels[0].id
    assert arriving(cluster.directory, kernel)
    await session.terminate(force=True)
    await session.wait_ended(NEVER)
    with contextlib.suppress(grpc.aio.AioRpcError):
        await call.write(sending(data=b"tent"))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await drained(call)
    assert from_rpc(caught.value, "").reason in ("STATE_FORBIDS", "UNAVAILABLE")
    await eventually(lambda: arriving(cluster.directory, kernel), lambda found: not found)
