"""Files past the streams of the API: what comes is what the streams bring, a copy that broke is continued, and content
that is not what it was is not stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from retinue.client.errors import CallError, NotFound, TransferError, Unavailable
from retinue.client.kernel.direct_files import DirectFiles, direct_files
from retinue.client.kernel.files import Files
from retinue.client.kernel.local_files import CHUNK
from retinue.client.kernel.port import open_port_method
from retinue.client.transport.channel import open_channel
from retinue.types.v1 import file_pb2
from tests.integration.sessions.direct_ways import WAYS, isolate, restrict
from tests.integration.sessions.inside import shell
from tests.integration.sessions.journal import accesses
from tests.integration.sessions.port_sessions import serving
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from retinue.client.aio import Client
    from retinue.client.sessions import Session
    from retinue.devtools.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")
LARGE = 24 << 20


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def session(cluster: Cluster) -> AsyncIterator[Session]:
    async with cluster.client() as client:
        session = await serving(client)
        yield session
        await session.terminate(force=True)
        await session.wait_ended(NEVER)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(tmp_path, monkeypatch)


@pytest.fixture
def past(monkeypatch: pytest.MonkeyPatch) -> None:
    """The streams of the API carry nothing."""

    def refused(*_: Any) -> None:
        raise AssertionError("a stream is used")

    monkeypatch.setattr(Files, "_sent", refused)
    monkeypatch.setattr(Files, "_fetch", refused)


async def restricted(session: Session, cluster: Cluster, way: str) -> None:
    async with session.open_port("echo", direct=True) as stream:
        restrict(stream, cluster.settings.endpoint, way)


@pytest.mark.parametrize("way", WAYS)
async def test_all_ways_bring_the_same(
    session: Session, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    await restricted(session, cluster, way)
    used: list[DirectFiles] = []
    for method in ("upload", "download"):
        former = getattr(DirectFiles, method)

        def noted(self: DirectFiles, *arguments: Any, former: Any = former) -> Any:
            used.append(self)
            return former(self, *arguments)

        monkeypatch.setattr(DirectFiles, method, noted)
    source = tmp_path / "source"
    (source / "deep" / "empty").mkdir(parents=True)
    contents = {"big": os.urandom(LARGE + 1), "deep/small": b"text", "deep/none": b"", "exact": os.urandom(CHUNK)}
    for name, content in contents.items():
        (source / name).write_bytes(content)
    (source / "exact").chmod(0o750)
    (source / "deep" / "link").symlink_to("../big")
    there = await session.files().upload(source, f"by-{way}", recursive=True)
    assert (there.files, there.bytes) == (len(contents), sum(map(len, contents.values())))
    listed = await shell(session, f"cd by-{way} && find . -type f -exec sha256sum {{}} + && stat -c %a exact")
    for name, content in contents.items():
        assert f"{hashlib.sha256(content).hexdigest()}  ./{name}" in listed
    assert listed.split()[-1] == "750"
    back = await session.files().download(f"by-{way}", tmp_path / "back", recursive=True)
    assert (back.files, back.bytes) == (there.files, there.bytes)
    for name, content in contents.items():
        assert (tmp_path / "back" / name).read_bytes() == content
    assert (tmp_path / "back" / "deep" / "link").readlink() == (source / "deep" / "link").readlink()
    assert (tmp_path / "back" / "deep" / "empty").is_dir()
    assert len(used) == (0 if way == "stream" else 2)


class BreakError(Exception):
    """Breaks a copy off."""


async def broken_off(session: Session, source: Path, path: str) -> None:
    """Sends more of a file than what lies between may hold, and breaks off."""

    def progress(_path: str, done: int, _size: int) -> None:
        if done >= 2 * LARGE:
            raise BreakError

    with pytest.raises(BreakError):
        await session.files().upload(source, path, progress=progress)


@pytest.mark.usefixtures("past")
@pytest.mark.parametrize("other", [False, True], ids=["same", "other"])
async def test_a_copy_that_broke_is_continued_if_it_is_the_same(session: Session, tmp_path: Path, other: bool) -> None:
    source, path = tmp_path / "source", f"broken-{other}"
    source.write_bytes(os.urandom(3 * LARGE))
    await broken_off(session, source, path)
    if other:
        # Nothing but the content tells.
        status = source.stat()
        with source.open("r+b") as file:
            file.write(b"other content")
        os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))
    begun: list[int] = []
    await session.files().upload(source, path, progress=lambda _path, done, _size: begun.append(done))
    assert (begun[0] == CHUNK) == other
    found = await shell(session, f"sha256sum {path}")
    assert found.split()[0] == hashlib.sha256(source.read_bytes()).hexdigest()


@pytest.mark.usefixtures("past")
async def test_a_copy_that_gets_on_is_continued_however_often_it_breaks(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(4 * LARGE))
    breaks = [LARGE, 2 * LARGE, 3 * LARGE]
    former, used = DirectFiles.upload, list[DirectFiles]()

    def noted(self: DirectFiles, *arguments: Any) -> Any:
        used.append(self)
        return former(self, *arguments)

    def progress(_path: str, done: int, _size: int) -> None:
        if breaks and done >= breaks[0]:
            breaks.pop(0)
            used[-1]._past.abort()  # noqa: SLF001

    monkeypatch.setattr(DirectFiles, "upload", noted)
    await session.files().upload(source, "broken-thrice", progress=progress)
    assert (len(used), breaks) == (4, [])
    found = await shell(session, "sha256sum broken-thrice")
    assert found.split()[0] == hashlib.sha256(source.read_bytes()).hexdigest()


@pytest.mark.usefixtures("past")
async def test_what_is_changed_while_it_is_sent_is_not_stored(session: Session, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(LARGE))

    def change(_path: str, _done: int, _size: int) -> None:
        os.utime(source, ns=(1, 1))

    with pytest.raises(TransferError, match="was changed"):
        await session.files().upload(source, "changed", progress=change)
    with pytest.raises(NotFound):
        await session.files().list("changed")


@pytest.mark.usefixtures("past")
async def test_a_download_that_broke_is_continued(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shell(session, f"head -c {LARGE} /dev/urandom >to-break")
    former, begun = DirectFiles.download, []

    async def breaks(self: DirectFiles, incoming: Any, paths: Any) -> None:
        begun.append(incoming.progress)
        if len(begun) == 1:
            monkeypatch.setattr(incoming, "_progress", lambda *_: self._past.abort())
        else:
            monkeypatch.setattr(incoming, "_progress", None)
        await former(self, incoming, paths)

    monkeypatch.setattr(DirectFiles, "download", breaks)
    await session.files().download("to-break", tmp_path / "back")
    assert len(begun) > 1
    assert begun[1] > 0
    digest = hashlib.sha256((tmp_path / "back").read_bytes()).hexdigest()
    assert digest in await shell(session, "sha256sum to-break")


async def test_content_that_comes_by_both_ways_is_hashed_as_a_whole(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that breaks past the streams, again and again, ends by a stream, whose digest is of all of it."""
    await shell(session, f"head -c {LARGE} /dev/urandom >by-both")
    former, begun = DirectFiles.download, []

    async def breaks(self: DirectFiles, incoming: Any, paths: Any) -> None:
        begun.append(incoming.progress)
        if len(begun) > 1:
            raise Unavailable("it is broken on purpose")
        monkeypatch.setattr(incoming, "_progress", lambda *_: self._past.abort())
        try:
            await former(self, incoming, paths)
        finally:
            monkeypatch.setattr(incoming, "_progress", None)

    monkeypatch.setattr(DirectFiles, "download", breaks)
    await session.files().download("by-both", tmp_path / "back")
    assert begun[1] > 0
    digest = hashlib.sha256((tmp_path / "back").read_bytes()).hexdigest()
    assert digest in await shell(session, "sha256sum by-both")


async def drained(past: DirectFiles) -> None:
    async with contextlib.aclosing(past._frames()) as frames:  # noqa: SLF001
        async for _ in frames:
            pass


async def test_errors_are_those_of_the_streams(session: Session, cluster: Cluster) -> None:
    settings = cluster.settings
    with open(settings.ca or "", "rb") as file:  # noqa: ASYNC230
        ca = file.read()
    async with open_channel(settings.endpoint, settings.token, ca) as channel:
        for access, frame, reason in (
            (file_pb2.FILE_ACCESS_DOWNLOAD, file_pb2.FileRanges(files=[file_pb2.FileRange(path="no")]), "NOT_FOUND"),
            (file_pb2.FILE_ACCESS_DOWNLOAD, file_pb2.FileRanges(), "INVALID_FIELD"),
            (
                file_pb2.FILE_ACCESS_UPLOAD,
                file_pb2.UploadInput(file=file_pb2.NewFile(path="../out", size=1)),
                "INVALID_FIELD",
            ),
        ):
            async with (
                asyncio.timeout(NEVER),
                direct_files(open_port_method(channel), session.id, "", access, settings.endpoint) as past,
            ):
                assert past is not None
                await past._send(frame.SerializeToString())  # noqa: SLF001
                with pytest.raises(CallError) as said:
                    await drained(past)
                assert said.value.reason == reason


async def test_it_is_in_the_journal(client: Client, tmp_path: Path) -> None:
    session = await serving(client)
    try:
        source = tmp_path / "source"
        source.write_bytes(bytes(LARGE))
        await session.files().upload(source, "there")
        await session.files().download("there", tmp_path / "back")
        assert await accesses(client, session) == [
            ("UPLOAD", "admin", "main1", 0),
            ("DOWNLOAD", "admin", "main1", 0),
        ]
    finally:
        await session.terminate(force=True)
        await session.wait_ended(NEVER)
