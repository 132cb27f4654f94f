"""Files of a kernel's work directory: read, written and listed, over broken connections."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections import deque
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from retinue.client.errors import REQUEST_ID_KEY, CallError, ClientClosed
from retinue.client.kernel.direct_files import (
    LEAST,
    RESUMED_SIZE,
    TRIES,
    DirectFiles,
    OtherContentError,
    direct_files,
)
from retinue.client.kernel.local_files import (
    Copied,
    IncomingFiles,
    Progress,
    Upload,
    check_room,
    found,
    local_links,
    local_paths,
    pieces,
)
from retinue.client.transport.backoff import Backoff, RetryBudget
from retinue.client.transport.bidi_stream import BidiStream
from retinue.client.transport.calls import resumed
from retinue.client.transport.opening import Opening
from retinue.client.transport.rpc_errors import from_rpc
from retinue.manager.v1 import kernel_service_pb2 as pb
from retinue.types.v1 import file_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from contextlib import AbstractAsyncContextManager

    from retinue.client.kernel.port import Method
    from retinue.manager.v1 import kernel_service_pb2_grpc

BATCH = 500
"""Files asked for in one call."""


class Files:
    """Files of one kernel."""

    def __init__(
        self,
        stub: kernel_service_pb2_grpc.KernelServiceAsyncStub,
        session: str,
        hostname: str,
        retry_budget: RetryBudget,
        *,
        open_port: Method,
        endpoint: str = "",
    ) -> None:
        """`hostname` may be empty, for `main1`. Large files go past the streams where the manager is reached at
        `endpoint`.
        """
        self._open_port = open_port
        self._endpoint = endpoint
        self._stub = stub
        self._session = session
        self._hostname = hostname
        self._retry_budget = retry_budget

    async def list(self, path: str = "", *, recursive: bool = False) -> Sequence[file_pb2.FileEntry]:
        """Returns the entries of a directory of the work directory, by path; of anything else its own entry.
        Raises CallError.
        """
        backoff = Backoff(self._retry_budget)
        request = pb.ListFilesRequest(session=self._session, hostname=self._hostname, path=path, recursive=recursive)
        while True:
            entries: list[file_pb2.FileEntry] = []
            identity = str(uuid.uuid4())
            stream = self._stub.ListFiles(request, metadata=((REQUEST_ID_KEY, identity),))
            opening = Opening(self._stub.ListFiles, stream.cancel, identity)
            try:
                with opening.errors():
                    async for response in stream:
                        entries += response.entries
            except grpc.aio.AioRpcError as error:
                # Entries listed before may have changed: list them again.
                await backoff.failed(from_rpc(error, identity))
            else:
                return sorted(entries, key=lambda entry: entry.path)
            finally:
                opening.end()
                stream.cancel()

    async def upload(
        self, source: str | os.PathLike[str], path: str, *, recursive: bool = False, progress: Progress | None = None
    ) -> Copied:
        """Copies a local file to `path`, or with `recursive` a directory and all beneath it. Links that lead out of it
        and what is no regular file are left out, and what cannot be sent is, too; the answer lists both.

        A file is in its place once it is whole. Raises CallError, TransferError, OSError.
        """
        uploads, skipped, missing = await asyncio.to_thread(found, Path(source), path, recursive=recursive)
        left = deque(uploads)
        backoff = Backoff(self._retry_budget)
        salts: dict[str, bytes] = {}
        broken, steps = 0, 0

        def carried(name: str, done: int, size: int) -> None:
            nonlocal steps
            steps += 1
            if progress is not None:
                progress(name, done, size)

        while left:
            before = steps
            try:
                async with AsyncExitStack() as stack:
                    past = None
                    if broken < TRIES and sum(upload.size for upload in left) >= LEAST:
                        past = await stack.enter_async_context(
                            self._past(file_pb2.FILE_ACCESS_UPLOAD, continues=broken > 0)
                        )
                    if past is None:
                        sent = self._sent(tuple(left), progress)
                    else:
                        broken += 1
                        sent = past.upload(tuple(left), carried, salts)
                    async for _ in await stack.enter_async_context(aclosing(sent)):
                        left.popleft()
                        backoff.progressed()
                        broken = 0 if past is not None else broken
            except OtherContentError as error:
                salts[error.path] = os.urandom(32)
            except CallError as error:
                if broken and steps > before:
                    # It gets on, and only this way goes on with what is there.
                    broken = 1
                await backoff.failed(error)
        files = [upload for upload in uploads if not upload.directory and not upload.link]
        return Copied(len(files), sum(upload.size for upload in files), tuple(skipped), tuple(missing))

    def _past(
        self, access: file_pb2.FileAccess.ValueType, *, continues: bool = False
    ) -> AbstractAsyncContextManager[DirectFiles | None]:
        return direct_files(self._open_port, self._session, self._hostname, access, self._endpoint, continues=continues)

    async def _sent(self, uploads: Sequence[Upload], progress: Progress | None) -> AsyncGenerator[None, None]:
        """Sends all of these in one call; yields once for each that is stored."""
        identity = str(uuid.uuid4())
        exchange = BidiStream[pb.UploadFilesRequest, pb.UploadFilesResponse](self._stub.UploadFiles, identity)
        ready: asyncio.Queue[int] = asyncio.Queue()
        writing = asyncio.create_task(self._write(exchange, uploads, ready, progress))
        try:
            for _ in uploads:
                while (output := (await exchange.receive()).output).HasField("ready"):
                    ready.put_nowait(output.ready.offset)
                yield
        except (CallError, ClientClosed, asyncio.CancelledError):
            if writing.done() and not writing.cancelled():
                # A failure on this side ended the call, and is raised first.
                writing.result()
            raise
        finally:
            writing.cancel()
            exchange.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    async def _write(
        self,
        exchange: BidiStream[pb.UploadFilesRequest, pb.UploadFilesResponse],
        uploads: Sequence[Upload],
        ready: asyncio.Queue[int],
        progress: Progress | None,
    ) -> None:
        try:
            start = pb.UploadStart(session=self._session, hostname=self._hostname)
            await exchange.send(pb.UploadFilesRequest(start=start))
            for upload in uploads:
                if upload.directory:
                    new = file_pb2.NewDirectory(path=upload.path, mode=upload.mode)
                    await _send(exchange, file_pb2.UploadInput(directory=new))
                elif upload.link:
                    link = file_pb2.NewLink(path=upload.path, target=upload.link)
                    await _send(exchange, file_pb2.UploadInput(link=link))
                else:
                    await _write_file(exchange, upload, ready, progress)
            await exchange.end_requests()
        except CallError:
            # Reading from the call reports how it ended.
            return
        except BaseException:
            exchange.cancel()
            raise

    async def download(
        self,
        path: str,
        target: str | os.PathLike[str],
        *,
        recursive: bool = False,
        progress: Progress | None = None,
    ) -> Copied:
        """Copies a file of the kernel to a local one, or with `recursive` a directory and all
        beneath it into a local one.

        Links that lead out of it and what is no regular file are left out and listed. What a kernel says of its files
        is not trusted: nothing is written outside of `target`, and no link leads there. Raises CallError,
        TransferError, OSError.
        """
        target = Path(target)
        entries = await self.list(path, recursive=recursive)
        paths = local_paths(entries, path, target, recursive=recursive)
        links, skipped = local_links(entries, path, target) if recursive else ({}, [])
        await asyncio.to_thread(check_room, sum(entry.size for entry in entries), target)
        incoming = IncomingFiles(target, paths, progress)
        try:
            await asyncio.to_thread(incoming.make_directories, entries)
            regular = [entry.path for entry in entries if entry.type == file_pb2.FILE_TYPE_REGULAR]
            large = sum(entry.size for entry in entries) >= LEAST
            for begin in range(0, len(regular), BATCH):
                batch = regular[begin : begin + BATCH]
                if not large or not await self._fetch_past(incoming, batch):
                    await self._fetch(incoming, batch)
            await asyncio.to_thread(incoming.make_links, links)
        finally:
            await asyncio.to_thread(incoming.close)
        return Copied(incoming.files, incoming.bytes, tuple(skipped), tuple(incoming.missing))

    async def _fetch_past(self, incoming: IncomingFiles, paths: Sequence[str]) -> bool:
        """Returns whether all files have come past the streams."""
        backoff, broken = Backoff(self._retry_budget), 0
        while broken < TRIES:
            before = incoming.progress
            try:
                async with self._past(file_pb2.FILE_ACCESS_DOWNLOAD) as past:
                    if past is None:
                        return False
                    await past.download(incoming, paths)
            except CallError as error:
                broken += 1
                if incoming.progress > before:
                    backoff.progressed()
                    broken = 0
                await backoff.failed(error)
            else:
                return True
        return False

    async def _fetch(self, incoming: IncomingFiles, paths: Sequence[str]) -> None:
        def request() -> pb.DownloadFilesRequest:
            return pb.DownloadFilesRequest(session=self._session, hostname=self._hostname, files=incoming.wanted(paths))

        responses = resumed(self._stub.DownloadFiles, request, endless=False, retry_budget=self._retry_budget)
        async with aclosing(responses):
            async for response in responses:
                await asyncio.to_thread(incoming.take, response.output)
                if not response.output.HasField("data") and not incoming.wanted(paths):
                    # A break behind the last file would be asked again for nothing.
                    return


async def _send(
    exchange: BidiStream[pb.UploadFilesRequest, pb.UploadFilesResponse], step: file_pb2.UploadInput
) -> None:
    await exchange.send(pb.UploadFilesRequest(input=step))


async def _write_file(
    exchange: BidiStream[pb.UploadFilesRequest, pb.UploadFilesResponse],
    upload: Upload,
    ready: asyncio.Queue[int],
    progress: Progress | None,
) -> None:
    resume = upload.size >= RESUMED_SIZE
    digest = await asyncio.to_thread(upload.digest)
    new = file_pb2.NewFile(path=upload.path, size=upload.size, mode=upload.mode, sha256=digest, resume=resume)
    await _send(exchange, file_pb2.UploadInput(file=new))
    offset = await ready.get() if resume else 0
    reading = pieces(upload, offset)
    try:
        while data := await asyncio.to_thread(next, reading, b""):
            await _send(exchange, file_pb2.UploadInput(data=data))
            offset += len(data)
            if progress is not None:
                progress(upload.path, offset, upload.size)
    finally:
        reading.close()
