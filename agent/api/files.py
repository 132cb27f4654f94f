"""UploadFiles, DownloadFiles, ListFiles: files of a running kernel's work directory, for a manager's user."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import stat
from typing import TYPE_CHECKING

from retinue.agent.api.errors import invalid, unknown_attempt
from retinue.agent.errors import KernelRuntimeError, NotRunningError, UnknownAttemptError, WorkDirectoryMissingError
from retinue.agent.inside import upload as uploads
from retinue.agent.inside.workdir import MissingError, PathError, RefusedError
from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.rpc.core.errors import ApiError, Code, ServiceError
from retinue.rpc.core.reasons import ErrorReason
from retinue.rpc.stream_limits import OpenStreams
from retinue.types.v1 import file_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator

    from retinue.agent.inside.workdir import Entry
    from retinue.agent.runtime.contract import Runtime
    from retinue.agent.runtime.kernel import Upload, WorkDirectory

MAX_PER_ATTEMPT = 16
"""Streams at a time with files of one kernel."""
MAX_FILES = 1000
LARGEST_PIECE = 1 << 20
PIECE = 1 << 20
"""Bytes of a file in one response."""
SILENCE = 60.0
"""Seconds that an upload may stand still; a caller who is gone is noticed sooner."""
_DIGEST = 32
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
        attempt_id = first.attempt_id
        current: Upload | None = None
        announced = file_pb2.NewFile()
        with self._open.hold("files", attempt_id), to_api_errors(attempt_id, lambda: announced.path):
            await self._files(attempt_id).remove_stale_uploads()
            try:
                while (request := await _next(requests)) is not None:
                    # It may have ended since.
                    files = self._files(attempt_id)
                    new = request.input
                    step = new.WhichOneof("step")
                    if (step == "data") != (current is not None):
                        raise invalid(f"input.{step or 'step'}", "makes no sense here")
                    match step:
                        case "file":
                            announced = new.file
                            current = await _begun(files, announced)
                            if announced.resume:
                                yield _ready(current.offset)
                        case "directory" | "link":
                            announced = file_pb2.NewFile(path=new.directory.path or new.link.path)
                            await _make(files, new)
                            yield _stored(announced.path)
                        case "data" if current is not None and len(new.data) <= LARGEST_PIECE:
                            await current.write(new.data)
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
        if not 1 <= len(request.files) <= MAX_FILES:
            raise invalid("files", f"must be 1 to {MAX_FILES}")
        with self._open.hold("files", request.attempt_id):
            for wanted in request.files:
                try:
                    with to_api_errors(request.attempt_id, lambda wanted=wanted: wanted.path):  # type: ignore[misc]
                        async for output in _sent(self._files(request.attempt_id), wanted):
                            yield pb.DownloadFilesResponse(output=output)
                except ApiError as error:
                    # The metadata has the path as text of a bounded length.
                    if len(request.files) == 1 or "path" not in error.metadata:
                        raise
                    skipped = file_pb2.FileSkipped(path=wanted.path, message=str(error))
                    yield pb.DownloadFilesResponse(output=file_pb2.DownloadOutput(skipped=skipped))

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


async def _next(requests: AsyncIterator[pb.UploadFilesRequest]) -> pb.UploadFilesRequest | None:
    try:
        async with asyncio.timeout(SILENCE):
            return await anext(requests, None)
    except TimeoutError as error:
        raise _unavailable(f"nothing came for {SILENCE:.0f} s") from error


def _ready(offset: int) -> pb.UploadFilesResponse:
    return pb.UploadFilesResponse(output=file_pb2.UploadOutput(ready=file_pb2.FileReady(offset=offset)))


def _stored(path: str) -> pb.UploadFilesResponse:
    return pb.UploadFilesResponse(output=file_pb2.UploadOutput(stored=file_pb2.FileStored(path=path)))


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
    if new.resume and not new.sha256:
        raise invalid("input.file.resume", "needs sha256")
    announced = uploads.UploadHeader(new.path, new.size, new.mode, new.sha256)
    return await files.begin_upload(announced, resume=new.resume)


async def _sent(files: WorkDirectory, wanted: file_pb2.FileRange) -> AsyncGenerator[file_pb2.DownloadOutput, None]:
    """Yields the steps of one file, which ends where it ended when it began, or sooner."""
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
        digest, position = hashlib.sha256(), 0
        while position < entry.size:
            # Bytes read earlier count for the digest, too.
            end = offset if position < offset else entry.size
            data = await file.read(min(PIECE, end - position), position)
            if not data:
                break
            await asyncio.to_thread(digest.update, data)
            if position >= offset:
                yield file_pb2.DownloadOutput(data=data)
            position += len(data)
        yield file_pb2.DownloadOutput(end=file_pb2.FileEnd(size=position, sha256=digest.digest()))
    finally:
        file.close()


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
