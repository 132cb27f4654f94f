"""The images that an agent fetched, and their removal when they are not used and the engine's disk gets full.

What others loaded, built or fetched is never removed: the list is of what was not there before a fetch of the agent's.
That an image is there is no right to use it, so one that is removed costs another fetch, and nothing else.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.agent.docker.core.image_removal import FetchedImage, RemovalPolicy, due, removable_names
from retinue.agent.docker.engine import EngineError
from retinue.agent.host.lanes import in_thread
from retinue.agent.state import checked
from retinue.rpc.files import replace_file

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from retinue.agent.docker.engine import Engine

_log = logging.getLogger(__name__)

FILE = "images.json"
"""Name of the file beneath the directory of the agent's state."""
INTERVAL = 60.0
"""Seconds between two looks at the engine's disk."""
HOST = Path("/proc/1/root")
"""The node's root, for an agent that runs in a container of it."""


class FetchedImages:
    """The images that one agent fetched, by id, in a file; without a directory, in memory only.
    Methods belong on one event loop.
    """

    def __init__(self, directory: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        """Reads what a former process of the agent wrote; a file that is damaged or gone names no images. Blocks."""
        self._file = None if directory is None else directory / FILE
        self._clock = clock
        self._saved = self._images = _read(self._file)

    def all(self) -> Mapping[str, FetchedImage]:
        """Returns the images by id."""
        return self._images

    def fetched(self, image_id: str, name: str) -> None:
        """Notes that an image was fetched by a name, and was not there before."""
        known = self._images.get(image_id)
        names = frozenset({name}) if known is None else known.names | {name}
        self._images = self._images | {image_id: FetchedImage(image_id, names, self._clock())}

    def used(self, image_ids: Iterable[str]) -> None:
        """Notes that images are used now; those that the agent did not fetch are none of its business."""
        now = self._clock()
        self._images = self._images | {
            image_id: replace(self._images[image_id], used=now) for image_id in image_ids if image_id in self._images
        }

    async def remove_unused(
        self, engine: Engine, directories: Iterable[Path], in_use: Collection[str], policy: RemovalPolicy
    ) -> None:
        """Removes images that are due until enough of the disk is free. Raises EngineError."""
        directories = list(directories)
        self.used(in_use)
        for image_id in due(self._images.values(), in_use, self._clock(), policy):
            if await in_thread(free_percent, directories) >= policy.free_percent:
                break
            await self._remove(engine, self._images[image_id])
        await self.save()

    async def _remove(self, engine: Engine, image: FetchedImage) -> None:
        if (found := await engine.image(image.id)) is not None:
            for name in removable_names(image, found):
                try:
                    await engine.remove_image(name)
                except EngineError as error:
                    # It may be that of a container of others.
                    _log.info("image %s is not used for long, and cannot be removed: %s", name, error)
                    return
                _log.info("image %s was not used for long, and is removed", name)
            if await engine.image(image.id) is not None:
                return
        self._images = {key: other for key, other in self._images.items() if key != image.id}

    async def save(self) -> None:
        """Writes the list, if it has changed; one that cannot be written only keeps images for longer."""
        images = self._images
        if self._file is None or images == self._saved:
            return
        content = {key: {"names": sorted(image.names), "used": image.used} for key, image in images.items()}
        try:
            await in_thread(_write, self._file, checked.dump({"images": content}))
            self._saved = images
        except OSError as error:
            _log.warning("the list of fetched images cannot be written: %s", error)


def _write(file: Path, content: bytes) -> None:
    # Here it has a failpoint of its own; given to a thread as it is, it would have that of the pool.
    replace_file(file, content)


def _read(file: Path | None) -> dict[str, FetchedImage]:
    if file is None:
        return {}
    try:
        images = checked.load(file.read_bytes())["images"]
        return {
            str(key): FetchedImage(str(key), frozenset(map(str, image["names"])), float(image["used"]))
            for key, image in images.items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, TypeError, LookupError) as error:
        _log.warning("the list of fetched images cannot be read, so none of them is removed: %s", error)
        return {}


def on_host(directory: str) -> Path:
    """Returns where the agent sees a directory of the node. Blocks."""
    with contextlib.suppress(OSError):
        seen = HOST / directory.lstrip("/")
        if seen.is_dir():
            return seen
    return Path(directory)


def free_percent(directories: Iterable[Path]) -> float:
    """Returns the part of the disks of directories that is free, of the fullest; 100 where none can be seen. Blocks."""
    least = 100.0
    for directory in directories:
        with contextlib.suppress(OSError):
            found = os.statvfs(directory)
            least = min(least, 100.0 * found.f_bavail / max(1, found.f_blocks))
    return least
