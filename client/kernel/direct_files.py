"""Files past the streams of the API: by TLS to the node, or by the manager's port to it.

TLS proves that content arrives as it was sent, so that neither side hashes it, unless a copy that broke is continued.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from typing import TYPE_CHECKING

from retinue.client.errors import Aborted, CallError, TransferError, Unavailable
from retinue.client.kernel.direct_connection import encrypted
from retinue.client.kernel.local_files import CHUNK
from retinue.client.kernel.port import PortConnection
from retinue.rpc import memory
from retinue.rpc.file_frames import Frame, FrameError
from retinue.types.v1 import file_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence

    from retinue.client.kernel.direct_connection import DirectConnection
    from retinue.client.kernel.local_files import IncomingFiles, Progress, Upload
    from retinue.client.kernel.port import Method

LEAST = 4 << 20
"""Bytes of all files from which on a direct connection is worth its opening."""
TRIES = 2
"""Connections that may break one after the other before the streams of the API are used."""
RESUMED_SIZE = 4 << 20
"""A file of so many bytes is resumed after the connection broke; a smaller one is sent again."""


class OtherContentError(Exception):
    """What is there of a file is not what would be sent."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


@contextlib.asynccontextmanager
async def direct_files(
    open_port: Method,
    session: str,
    hostname: str,
    access: file_pb2.FileAccess.ValueType,
    endpoint: str,
    *,
    continues: bool = False,
) -> AsyncIterator[DirectFiles | None]:
    """Yields a connection for one direction of files; None: there is none, for whatever reason.

    `endpoint` is where the manager is reached; empty: not known. One that `continues` what another has begun raises
    Unavailable while the node is not reached: by the streams, all of it would be sent again.
    """
    async with contextlib.AsyncExitStack() as stack:
        made = None
        if endpoint:
            try:
                port = PortConnection(open_port, session, "", hostname, direct=True, files=access)
                stream = await stack.enter_async_context(port)
                past = await stack.enter_async_context(encrypted(stream, endpoint))
                made = None if past is None else DirectFiles(past)
            except CallError as error:
                if continues and isinstance(error, Unavailable):
                    raise
        yield made


class DirectFiles:
    """One connection. All methods raise CallError, which is Unavailable when it is worth to try again."""

    def __init__(self, past: DirectConnection) -> None:
        """Exchanges nothing yet."""
        memory.reuse_freed()
        self._past = past

    async def download(self, incoming: IncomingFiles, paths: Sequence[str]) -> None:
        """Receives all files that are wanted of these. Raises TransferError and OSError as well."""
        await self._send(file_pb2.FileRanges(files=incoming.wanted(paths)).SerializeToString())
        async with contextlib.aclosing(self._frames()) as frames:
            async for frame in frames:
                if isinstance(frame, memoryview):
                    await asyncio.to_thread(incoming.add, frame)
                    continue
                await asyncio.to_thread(incoming.take, file_pb2.DownloadOutput.FromString(frame), proven=True)
                if not incoming.wanted(paths):
                    return
        raise Unavailable("the node ended the connection")

    async def upload(
        self, uploads: Sequence[Upload], progress: Progress | None, salts: Mapping[str, bytes]
    ) -> AsyncGenerator[None, None]:
        """Sends all of these; yields once for each that is stored. `salts` make those files others than before, by
        their path. Raises OtherContentError, TransferError and OSError as well.
        """
        ready: asyncio.Queue[file_pb2.FileReady] = asyncio.Queue()
        writing = asyncio.create_task(self._write(uploads, ready, progress, salts))
        try:
            async with contextlib.aclosing(self._frames()) as frames:
                for _ in uploads:
                    while (output := await _next_output(frames)).HasField("ready"):
                        ready.put_nowait(output.ready)
                    yield
        except (CallError, asyncio.CancelledError):
            if writing.done() and not writing.cancelled():
                # A failure on this side ended the connection, and is raised first.
                writing.result()
            raise
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    async def _write(
        self,
        uploads: Sequence[Upload],
        ready: asyncio.Queue[file_pb2.FileReady],
        progress: Progress | None,
        salts: Mapping[str, bytes],
    ) -> None:
        try:
            for upload in uploads:
                if upload.directory:
                    new = file_pb2.NewDirectory(path=upload.path, mode=upload.mode)
                    await self._send(file_pb2.UploadInput(directory=new).SerializeToString())
                elif upload.link:
                    link = file_pb2.NewLink(path=upload.path, target=upload.link)
                    await self._send(file_pb2.UploadInput(link=link).SerializeToString())
                else:
                    await self._write_file(upload, ready, progress, salts.get(upload.path, b""))
        except CallError:
            # Reading reports how the connection ended.
            return
        except BaseException:
            self._past.abort()
            raise

    async def _write_file(
        self, upload: Upload, ready: asyncio.Queue[file_pb2.FileReady], progress: Progress | None, salt: bytes
    ) -> None:
        descriptor = await asyncio.to_thread(os.open, upload.source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            status, resume = os.fstat(descriptor), upload.size >= RESUMED_SIZE
            new = file_pb2.NewFile(path=upload.path, size=upload.size, mode=upload.mode, resume=resume)
            if resume:
                new.upload_id = _identity(upload, status, salt)
            await self._send(file_pb2.UploadInput(file=new).SerializeToString())
            offset = 0
            if resume:
                found = await ready.get()
                offset = found.offset
                if offset and await asyncio.to_thread(_digest, descriptor, offset) != found.sha256:
                    raise OtherContentError(upload.path)
            async with contextlib.aclosing(_pieces(upload, descriptor, offset, status)) as pieces:
                async for piece in pieces:
                    await self._send(piece)
                    offset += len(piece)
                    if progress is not None:
                        progress(upload.path, offset, upload.size)
        finally:
            os.close(descriptor)

    async def _send(self, frame: Frame) -> None:
        try:
            await self._past.send_frame(frame)
        except Aborted as error:
            raise _passing(error) from error

    async def _frames(self) -> AsyncGenerator[Frame, None]:
        try:
            async with contextlib.aclosing(self._past.frames()) as frames:
                async for frame in frames:
                    yield frame
        except (Aborted, FrameError) as error:
            raise _passing(error) from error


def _passing(error: Exception) -> Unavailable:
    return Unavailable(f"the connection to the node broke: {error}")


async def _next_output(frames: AsyncGenerator[Frame, None]) -> file_pb2.UploadOutput:
    frame = await anext(frames, None)
    if not isinstance(frame, bytes):
        raise Unavailable("the node ended the connection")
    return file_pb2.UploadOutput.FromString(frame)


async def _pieces(
    upload: Upload, descriptor: int, offset: int, status: os.stat_result
) -> AsyncGenerator[memoryview, None]:
    """Yields the content of a file from an offset, each piece good until the next one is asked for, while that one is
    read. Raises TransferError when the file is not as it was by then.
    """
    rooms = [memoryview(bytearray(CHUNK)), memoryview(bytearray(CHUNK))]

    def read() -> asyncio.Task[int]:
        room = rooms[0][: min(CHUNK, upload.size - offset)]
        return asyncio.create_task(asyncio.to_thread(os.preadv, descriptor, [room], offset))

    reading = read()
    try:
        while offset < upload.size:
            count = await reading
            if not count:
                raise TransferError(f"{upload.source} became shorter while it was sent")
            offset += count
            rooms.reverse()
            if offset < upload.size:
                reading = read()
            elif _changes(os.fstat(descriptor)) != _changes(status):
                raise TransferError(f"{upload.source} was changed while it was sent")
            yield rooms[1][:count]
    finally:
        # Not cancelled: it reads a file that is closed behind it.
        await asyncio.wait((reading,))


def _changes(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


def _identity(upload: Upload, status: os.stat_result, salt: bytes) -> bytes:
    """Returns what a later copy of the same file, unchanged, has as well."""
    parts = (os.fsdecode(upload.source.absolute()), status.st_dev, status.st_ino, *_changes(status), salt.hex())
    return hashlib.sha256("\0".join(map(str, parts)).encode(errors="surrogateescape")).digest()


def _digest(descriptor: int, size: int) -> bytes:
    """Returns the SHA-256 of the first bytes of a file; b"" when there are fewer. Blocks."""
    digest, offset = hashlib.sha256(), 0
    while offset < size:
        piece = os.pread(descriptor, min(CHUNK, size - offset), offset)
        if not piece:
            return b""
        digest.update(piece)
        offset += len(piece)
    return digest.digest()
