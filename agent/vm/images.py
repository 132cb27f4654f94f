"""The roots of images as machines see them: each image is exported once by its digest,
into one read-only file that all machines share.

A Docker engine fetches images and exports them; nothing of them is unpacked on the node.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shutil
import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from retinue.agent.docker.core.container_spec import runs_as_root
from retinue.agent.docker.engine import Engine, EngineError
from retinue.agent.docker.image_defaults import INVALID, fitted
from retinue.agent.docker.images import Image, ImageError, Images
from retinue.agent.errors import KernelRuntimeError
from retinue.agent.inside.provision import LARGEST_FILE, UnfitFileError
from retinue.agent.kernel.core.accounts import Account, AccountError, find_account, with_group, with_user
from retinue.rpc.core.reasons import AttemptReason

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from retinue.agent.attempts import AttemptSpec, ImageFacts, Layer
    from retinue.agent.docker.fetched_images import FetchedImages
    from retinue.agent.docker.registry_addresses import RegistryAddresses

_log = logging.getLogger(__name__)

PACKER = "sqfstar"
PACKING = ("-quiet", "-no-progress", "-comp", "lz4")
"""Quick to read: a machine without KVM has to unpack it."""
EXPORT_TIMEOUT = 1800.0
STALL_TIMEOUT = 120.0
"""Seconds without any progress of an export."""
REMOVE_TIMEOUT = 10.0
"""Seconds that the removal of an export's container may take."""
KEPT = 8
"""Files of images that are kept, the last used ones; one that is removed lives on in machines that have it.
So many accounts of images are known.
"""
WORDS_LIMIT = 4096
"""Bytes of the packer's errors in a message."""
SUFFIX, PARTIAL = ".squashfs", ".partial"
DIGITS = 16
"""Digits of an image's id in the name of the container that it is exported by."""
USERS, GROUPS = "/etc/passwd", "/etc/group"
_SUPERBLOCK_SIZE = 96
# Of squashfs 4.0: its magic number, and the bytes that it uses of its file.
_SUPERBLOCK = struct.Struct("<I36xQ")
_MAGIC = 0x73717368
_DIGITS = re.compile(f"[0-9a-f]{{{DIGITS}}}")
_ID = re.compile(r"sha256:[0-9a-f]{64}")
_VARIABLE = re.compile(r"[^=\0]+=[^\0]*")


@dataclass(frozen=True, slots=True)
class Root:
    """The root of an image: its file, the attempt with the defaults of the image, facts to report of the image,
    and the user that the image names, unless that is root.
    """

    file: Path
    spec: AttemptSpec
    facts: ImageFacts
    user: ImageUser | None = None


@dataclass(frozen=True, slots=True)
class ImageUser:
    """The user that an image names, and the texts of the image's /etc/passwd and /etc/group."""

    account: Account
    users: str
    groups: str

    def files(self, *, named: bool) -> dict[str, str]:
        """Returns the texts of these files for a kernel; `named` as for `with_user`. Pure."""
        uid, gid = self.account.uid, self.account.gid
        return {
            USERS: with_user(self.users, uid, gid, named=named),
            GROUPS: with_group(self.groups, gid),
        }


class ImageRoots:
    """The roots of images of one engine, in a directory of the agent's own. Methods belong on one event loop."""

    def __init__(
        self,
        host: str,
        agent_id: str,
        directory: Path,
        credentials: Path | None,
        addresses: RegistryAddresses | None,
        *,
        fetched: FetchedImages | None = None,
    ) -> None:
        """Asks the engine at `host` for nothing yet. `credentials` are for registries, which may have `addresses`.

        Images that were not there before a fetch are noted in `fetched`.
        """
        self._engine = Engine(host)
        self._images = Images(self._engine, credentials, addresses, fetched)
        self._agent_id = agent_id
        self._directory = directory
        self._locks: dict[str, asyncio.Lock] = {}
        # By the id of the image, the one that was used last at the end.
        self._users: dict[str, ImageUser] = {}

    async def sweep(self) -> None:
        """Removes what a former process of this agent left of unfinished exports. Raises EngineError, OSError."""
        for partial in self._directory.glob(f"*{PARTIAL}"):
            # One that is being made now is renamed before its lock is free.
            async with self._lock(self._container_name(partial.stem)):
                partial.unlink(missing_ok=True)
        begin = self._container_name("")
        for name in await self._engine.names(begin):
            # Another agent's id may begin with this one's.
            if _DIGITS.fullmatch(name.removeprefix(begin)):
                async with self._lock(name):
                    await self._engine.remove(name)

    async def close(self) -> None:
        """Ends connections and fetches."""
        await self._images.close()
        await self._engine.close()

    async def find(self, spec: AttemptSpec) -> Root | None:
        """Returns the root of an attempt's image; None when it is to be made first. Raises EngineError, ImageError."""
        image = await self._images.find(spec.image, spec.image_identity, spec.pull_policy)
        if image is None or not await asyncio.to_thread(_is_whole, file := self._file(image.identity.id)):
            return None
        os.utime(file)
        return await self._root(spec, image)

    async def make(self, spec: AttemptSpec, report: Callable[[tuple[Layer, ...]], None]) -> Root:
        """Fetches an attempt's image if need be, and makes its root.
        Raises EngineError, ImageError, KernelRuntimeError, OSError.
        """
        image = await self._images.find(spec.image, spec.image_identity, spec.pull_policy)
        if image is None:
            image = await self._images.fetch(spec.image, spec.image_identity, report, spec.pull_policy)
        # First: it may be none that a kernel is made of.
        root = await self._root(spec, image)
        await self._export(image)
        return root

    async def _root(self, spec: AttemptSpec, image: Image) -> Root:
        fitting, facts = fitted(spec, image)
        found = await self._engine.image(image.identity.id)
        configuration = (found or {}).get("Config") or {}
        variables = configuration.get("Env") or []
        words = [word for word in variables if isinstance(word, str) and _VARIABLE.fullmatch(word)]
        # As in a container: an image does not say where the work directory is.
        own = {name: value for name, value in (word.split("=", 1) for word in words) if name != "HOME"}
        user = None if runs_as_root(image.user) else await self._user(spec.image, image)
        spec = replace(fitting, environment=own | dict(fitting.environment))
        return Root(self._file(image.identity.id), spec, facts, user)

    async def _user(self, reference: str, image: Image) -> ImageUser:
        """Returns the user that an image names. Raises ImageError, EngineError."""
        user = self._users.pop(image.identity.id, None)
        if user is None:
            try:
                users, groups = await self._read(image, (USERS, GROUPS))
                user = ImageUser(find_account(image.user, users, groups), users, groups)
            except (AccountError, UnfitFileError) as error:
                raise ImageError(INVALID, f"image {reference} cannot be used: {error}") from error
        self._users[image.identity.id] = user
        if len(self._users) > KEPT:
            del self._users[next(iter(self._users))]
        return user

    async def _read(self, image: Image, paths: tuple[str, ...]) -> list[str]:
        """Returns files of an image, by a container that is never started. Raises UnfitFileError, EngineError."""
        name = self._container_name(self._file(image.identity.id).stem)
        async with self._lock(name), self._container(name, image):
            for path in paths:
                # All before any: an engine that reads one looks for names in the others, and waits at a pipe.
                found = await self._engine.file(name, path)
                if found is not None and not (found.plain and found.size <= LARGEST_FILE):
                    raise UnfitFileError(path)
            contents = [await self._engine.content(name, path) for path in paths]
        return [content.decode(errors="surrogateescape") for content in contents]

    @contextlib.asynccontextmanager
    async def _container(self, name: str, image: Image) -> AsyncIterator[None]:
        """Makes a container of an image that is not started."""
        # What a former process of this agent left.
        await self._engine.remove(name)
        await self._engine.create(name, {"Image": image.identity.id, "Cmd": ["-"], "NetworkDisabled": True})
        try:
            yield
        finally:
            # An engine that is stuck in an export does not remove either; the next export, or process, does.
            with contextlib.suppress(EngineError, TimeoutError):
                async with asyncio.timeout(REMOVE_TIMEOUT):
                    await self._engine.remove(name)

    def _file(self, image_id: str) -> Path:
        if _ID.fullmatch(image_id) is None:
            raise ImageError(AttemptReason.IMAGE_INVALID, f"the engine's id of the image is none: {image_id[:80]!r}")
        return self._directory / f"{image_id.removeprefix('sha256:')}{SUFFIX}"

    async def _export(self, image: Image) -> None:
        file = self._file(image.identity.id)
        name = self._container_name(file.stem)
        async with self._lock(name):
            if await asyncio.to_thread(_is_whole, file):
                return
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            partial = file.with_suffix(PARTIAL)
            partial.unlink(missing_ok=True)
            try:
                async with self._container(name, image):
                    await self._pack(name, partial)
                await asyncio.to_thread(_settle, partial, file)
            finally:
                partial.unlink(missing_ok=True)
            await asyncio.to_thread(self._remove_oldest)

    async def _pack(self, name: str, partial: Path) -> None:
        packer = await asyncio.create_subprocess_exec(
            *(PACKER, *PACKING, str(partial)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        assert packer.stdin is not None  # noqa: S101  # as it was asked for
        assert packer.stderr is not None  # noqa: S101
        said = asyncio.create_task(_read_words(packer.stderr))
        try:
            await self._export_to(packer.stdin, name)
            packer.stdin.close()
            code = await packer.wait()
        except BaseException:
            packer.kill()
            await packer.wait()
            raise
        finally:
            text = (await said).decode(errors="replace").strip()
        if code != 0:
            raise KernelRuntimeError(f"the image cannot be packed: {text or f'{PACKER} ended with {code}'}")

    async def _export_to(self, pipe: asyncio.StreamWriter, name: str) -> None:
        clock = asyncio.get_running_loop().time
        try:
            async with (
                asyncio.timeout(STALL_TIMEOUT) as stall,
                self._engine.request("GET", f"containers/{name}/export", EXPORT_TIMEOUT) as response,
            ):
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    async for piece in response.content.iter_any():
                        pipe.write(piece)
                        await pipe.drain()
                        stall.reschedule(clock() + STALL_TIMEOUT)
        except TimeoutError as error:
            raise KernelRuntimeError("the engine's export of the image has stalled") from error

    def _container_name(self, stem: str) -> str:
        return f"retinue-root-{self._agent_id}-{stem[:DIGITS]}"

    def _lock(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())

    def _remove_oldest(self) -> None:
        files = sorted(self._directory.glob(f"*{SUFFIX}"), key=lambda path: path.stat().st_mtime, reverse=True)
        for file in files[KEPT:]:
            _log.info("%s was not used for long, and is removed", file)
            file.unlink(missing_ok=True)


def _is_whole(file: Path) -> bool:
    """Returns whether a file holds as much of a squashfs as it says of itself."""
    try:
        with file.open("rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            found: tuple[int, int] = _SUPERBLOCK.unpack(opened.read(_SUPERBLOCK.size))
            return found[0] == _MAGIC and _SUPERBLOCK_SIZE <= found[1] <= size
    except (OSError, struct.error):
        return False


def can_pack() -> bool:
    """Returns whether the node has what makes roots."""
    return shutil.which(PACKER) is not None


async def _read_words(stream: asyncio.StreamReader) -> bytes:
    """Returns the first bytes of a stream once it has ended.

    All is read: a process that cannot write would wait forever.
    """
    words = bytearray()
    while piece := await stream.read(1 << 16):
        words += piece[: WORDS_LIMIT - len(words)]
    return bytes(words)


def _settle(partial: Path, file: Path) -> None:
    """Gives a file its name, which must never last without its content."""
    descriptor = os.open(partial, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    partial.replace(file)
