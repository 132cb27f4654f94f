"""UploadFiles, DownloadFiles, ListFiles: files of a running kernel's work directory, for a manager's user."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import stat
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import DecodeError

from retinue.agent.api.errors import invalid, unknown_attempt
from retinue.agent.errors import KernelRuntimeError, NotRunningError, UnknownAttemptError, WorkDirectoryMissingError
from retinue.agent.inside import upload as uploads
from retinue.agent.inside.workdir import MissingError, PathError, RefusedError
from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.rpc.core.errors import ApiError, Code, ServiceError
from retinue.rpc.core.reasons import ErrorReason
from retinue.rpc.file_frames import FrameError, received, send
from retinue.rpc.stream_limits import OpenStreams
from retinue.types.v1 import file_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence

    from retinue.agent.inside.workdir import Entry
    from retinue.agent.runtime.contract import Runtime
    from retinue.agent.runtime.kernel import OpenFile, Upload, WorkDirectory
    from retinue.rpc.file_frames import Frame
    from retinue.rpc.tls_socket import TlsSocket

MAX_PER_ATTEMPT = 16
"""Streams at a time with files of one kernel."""
MAX_FILES = 1000
LARGEST_PIECE = 1 << 20
PIECE = 1 << 20
"""Bytes of a file in one response."""
SILENCE = 60.0
"""Seconds that an upload may stand still; a caller who is gone is noticed sooner."""
_DIGEST = 32
_Step = TypeVar("_Step")
_KINDS = {
    stat.S_IFREG: file_pb2.FILE_TYPE_REGULAR,
    stat.S_IFDIR: file_pb2.FILE_TYPE_DIRECTORY,
    stat.S_IFLNK: file_pb2.FILE_TYPE_LINK,
}


class FileService:
    """All streams with files of an agent."""

    def __init__(self, runtime: Runtime) -> None:
        """Opens nothing yet."""
        self._runtime = runtime
        self._open = OpenStreams({}, MAX_PER_ATTEMPT)

    async def upload(
        self, requests: AsyncIterator[pb.UploadFilesRequest]
    ) -> AsyncGenerator[pb.UploadFilesResponse, None]:
        """Serves one stream to its end."""
        first = await _next(requests)
        if first is None or first.WhichOneof("step") != "attempt_id":
            raise invalid("attempt_id", "must come first")
        steps = (request.input async for request in requests)
        async with contextlib.aclosing(self._stored(first.attempt_id, steps)) as outputs:
            async for output in outputs:
                yield pb.UploadFilesResponse(output=output)

    async def serve_directly(self, tls: TlsSocket, attempt_id: str, access: file_pb2.FileAccess.ValueType) -> None:
        """Serves one connection to its end. Raises ApiError, OSError."""
        try:
            async with contextlib.aclosing(received(tls)) as frames:
                outputs: AsyncGenerator[file_pb2.UploadOutput | file_pb2.DownloadOutput | memoryview, None]
                if access == file_pb2.FILE_ACCESS_UPLOAD:
                    outputs = self._stored(attempt_id, _inputs(frames))
                else:
                    outputs = self._wanted(attempt_id, await _ranges(frames), hashed=False)
                async with contextlib.aclosing(outputs):
                    async for output in outputs:
                        await send(tls, output if isinstance(output, memoryview) else output.SerializeToString())
                await tls.end_data()
        except (FrameError, DecodeError) as error:
            raise invalid("frame", "cannot be read") from error

    async def _stored(
        self, attempt_id: str, steps: AsyncIterator[file_pb2.UploadInput | memoryview]
    ) -> AsyncGenerator[file_pb2.UploadOutput, None]:
        """Takes in the steps of an upload, in which content may come by itself."""
        current: Upload | None = None
        announced = file_pb2.NewFile()
        with self._open.hold("files", attempt_id), to_api_errors(attempt_id, lambda: announced.path):
            await self._files(attempt_id).remove_stale_uploads()
            try:
                while (new := await _next(steps)) is not None:
                    # It may have ended since.
                    files = self._files(attempt_id)
                    data = new if isinstance(new, memoryview) else new.data
                    step = "data" if isinstance(new, memoryview) else new.WhichOneof("step")
                    if (step == "data") != (current is not None):
                        raise invalid(f"input.{step or 'step'}", "makes no sense here")
                    match step:
                        case "data" if current is not None and len(data) <= LARGEST_PIECE:
                            await current.write(data)
                        case _ if isinstance(new, memoryview):
                            raise invalid("input.data", "makes no sense here")
                        case "file":
                            announced = new.file
                            current = await _begun(files, announced)
                            if announced.resume:
                                yield _ready(current, checked=bool(announced.sha256))
                        case "directory" | "link":
                            announced = file_pb2.NewFile(path=new.directory.path or new.link.path)
                            await _make(files, new)
                            yield _stored(announced.path)
                        case _:
                            raise invalid(f"input.{step or 'step'}", "makes no sense here")
                    if current is not None and current.complete:
                        await current.store()
                        closing, current = current, None
                        await closing.close()
                        yield _stored(announced.path)
                if current is not None:
                    raise invalid("input.data", f"ended before all of {announced.path} was there")
            finally:
                if current is not None:
                    await current.close()

    async def download(self, request: pb.DownloadFilesRequest) -> AsyncGenerator[pb.DownloadFilesResponse, None]:
        """Serves one stream to its end."""
        async with contextlib.aclosing(self._wanted(request.attempt_id, request.files, hashed=True)) as outputs:
            async for output in outputs:
                if isinstance(output, memoryview):
                    output = file_pb2.DownloadOutput(data=bytes(output))  # noqa: PLW2901
                yield pb.DownloadFilesResponse(output=output)

    async def _wanted(
        self, attempt_id: str, files: Sequence[file_pb2.FileRange], *, hashed: bool
    ) -> AsyncGenerator[file_pb2.DownloadOutput | memoryview, None]:
        """Yields the steps of a download, in which content is by itself."""
        if not 1 <= len(files) <= MAX_FILES:
            raise invalid("files", f"must be 1 to {MAX_FILES}")
        with self._open.hold("files", attempt_id):
            for wanted in files:
                try:
                    with to_api_errors(attempt_id, lambda wanted=wanted: wanted.path):  # type: ignore[misc]
                        async with contextlib.aclosing(_sent(self._files(attempt_id), wanted, hashed=hashed)) as steps:
                            async for output in steps:
                                yield output
                except ApiError as error:
                    # The metadata has the path as text of a bounded length.
                    if len(files) == 1 or "path" not in error.metadata:
                        raise
                    skipped = file_pb2.FileSkipped(path=wanted.path, message=str(error))
                    yield file_pb2.DownloadOutput(skipped=skipped)

    async def list(self, request: pb.ListFilesRequest) -> AsyncGenerator[pb.ListFilesResponse, None]:
        """Serves one stream to its end."""
        with (
            self._open.hold("files", request.attempt_id),
            to_api_errors(request.attempt_id, lambda: request.path),
        ):
            entries = self._files(request.attempt_id).entries(request.path, recursive=request.recursive)
            async with contextlib.aclosing(entries) as batches:
                async for batch in batches:
                    yield pb.ListFilesResponse(entries=[_entry(entry) for entry in batch])

    def _files(self, attempt_id: str) -> WorkDirectory:
        return self._runtime.kernel(attempt_id).files()


async def _inputs(frames: AsyncIterator[Frame]) -> AsyncIterator[file_pb2.UploadInput | memoryview]:
    async for frame in frames:
        yield frame if isinstance(frame, memoryview) else file_pb2.UploadInput.FromString(frame)


async def _ranges(frames: AsyncIterator[Frame]) -> Sequence[file_pb2.FileRange]:
    first = await _next(frames)
    if not isinstance(first, bytes):
        raise invalid("files", "must come first")
    return file_pb2.FileRanges.FromString(first).files


async def _next(steps: AsyncIterator[_Step]) -> _Step | None:
    try:
        async with asyncio.timeout(SILENCE):
            return await anext(steps, None)
    except TimeoutError as error:
        raise _unavailable(f"nothing came for {SILENCE:.0f} s") from error


def _ready(current: Upload, *, checked: bool) -> file_pb2.UploadOutput:
    """Returns what is there of a file; `checked` says whether all of it is at the end."""
    digest = b"" if checked or not current.offset else current.resumed
    return file_pb2.UploadOutput(ready=file_pb2.FileReady(offset=current.offset, sha256=digest))


def _stored(path: str) -> file_pb2.UploadOutput:
    return file_pb2.UploadOutput(stored=file_pb2.FileStored(path=path))


async def _make(files: WorkDirectory, new: file_pb2.UploadInput) -> None:
    """Makes what has no content: a directory or a link."""
    if new.HasField("link"):
        await files.make_link(new.link.path, new.link.target)
    else:
        await files.make_directory(new.directory.path, new.directory.mode)


async def _begun(files: WorkDirectory, new: file_pb2.NewFile) -> Upload:
    if new.size < 0:
        raise invalid("input.file.size", "is negative")
    if new.sha256 and len(new.sha256) != _DIGEST:
        raise invalid("input.file.sha256", f"must be {_DIGEST} bytes")
    if new.upload_id and len(new.upload_id) != _DIGEST:
        raise invalid("input.file.upload_id", f"must be {_DIGEST} bytes")
    if new.resume and not new.sha256 and not new.upload_id:
        raise invalid("input.file.resume", "needs sha256")
    announced = uploads.UploadHeader(new.path, new.size, new.mode, new.sha256, new.upload_id)
    return await files.begin_upload(announced, resume=new.resume)


async def _sent(
    files: WorkDirectory, wanted: file_pb2.FileRange, *, hashed: bool
) -> AsyncGenerator[file_pb2.DownloadOutput | memoryview, None]:
    """Yields the steps of one file, which ends where it ended when it began, or sooner; `hashed`: with its digest."""
    if wanted.offset < 0:
        raise invalid("offset", "is negative")
    file = await files.open(wanted.path)
    try:
        entry = file.entry
        offset = wanted.offset if wanted.version in {"", entry.version} else 0
        if offset > entry.size:
            size, message = str(entry.size), f"{wanted.path} ends at {entry.size}"
            raise ServiceError(Code.OUT_OF_RANGE, ErrorReason.OFFSET_PAST_END, message, size=size)
        yield file_pb2.DownloadOutput(begin=file_pb2.FileBegin(entry=_entry(entry), offset=offset))
        if not hashed:
            async with contextlib.aclosing(_read_ahead(file, offset)) as pieces:
                async for piece in pieces:
                    yield memoryview(piece)
                    offset += len(piece)
            yield file_pb2.DownloadOutput(end=file_pb2.FileEnd(size=offset))
            return
        digest, position = hashlib.sha256(), 0
        while position < entry.size:
            # Bytes read earlier count for the digest, too.
            end = offset if position < offset else entry.size
            data = await file.read(min(PIECE, end - position), position)
            if not data:
                break
            await asyncio.to_thread(digest.update, data)
            if position >= offset:
                yield memoryview(data)
            position += len(data)
        yield file_pb2.DownloadOutput(end=file_pb2.FileEnd(size=position, sha256=digest.digest()))
    finally:
        file.close()


async def _read_ahead(file: OpenFile, offset: int) -> AsyncGenerator[bytes, None]:
    """Yields a file from an offset to where it ended, while the piece behind is read."""

    def read() -> asyncio.Task[bytes]:
        return asyncio.create_task(file.read(max(0, min(PIECE, file.entry.size - offset)), offset))

    reading = read()
    try:
        while data := await reading:
            offset += len(data)
            reading = read()
            yield data
    finally:
        # Not cancelled: it reads a file that is closed behind it.
        await asyncio.wait((reading,))


def _entry(entry: Entry) -> file_pb2.FileEntry:
    message = file_pb2.FileEntry(
        path=entry.path,
        type=_KINDS.get(entry.kind, file_pb2.FILE_TYPE_OTHER),
        size=entry.size,
        mode=entry.mode,
        version=entry.version,
        target=entry.target,
    )
    message.modify_time.FromNanoseconds(entry.modified)
    return message


@contextlib.contextmanager
def to_api_errors(attempt_id: str, path: Callable[[], str]) -> Iterator[None]:
    """Maps errors to those of the API; `path` is that of the current file."""
    code = Code
    try:
        yield
    except UnknownAttemptError as error:
        raise unknown_attempt(attempt_id) from error
    except NotRunningError as error:
        raise ServiceError(code.FAILED_PRECONDITION, ErrorReason.STATE_FORBIDS, str(error)) from error
    except (KernelRuntimeError, uploads.BusyError) as error:
        raise _unavailable(str(error)) from error
    except PathError as error:
        raise invalid("path", str(error)) from error
    except uploads.DigestError as error:
        raise invalid("input.file.sha256", str(error)) from error
    except MissingError as error:
        raise ServiceError(code.NOT_FOUND, ErrorReason.NOT_FOUND, str(error), kind="file", path=path()) from error
    except RefusedError as error:
        raise ServiceError(code.FAILED_PRECONDITION, ErrorReason.FILE_REFUSED, str(error), path=path()) from error
    except uploads.NoSpaceError as error:
        raise ServiceError(code.RESOURCE_EXHAUSTED, ErrorReason.NO_SPACE, str(error), path=path()) from error
    except FileNotFoundError as error:
        # The work directory itself has gone.
        raise ServiceError(
            code.FAILED_PRECONDITION, ErrorReason.STATE_FORBIDS, str(WorkDirectoryMissingError())
        ) from error


def _unavailable(message: str) -> ApiError:
    return ServiceError(Code.UNAVAILABLE, ErrorReason.UNAVAILABLE, message)
