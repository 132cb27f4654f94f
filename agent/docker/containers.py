"""The containers of one agent: started, attached to, ended and removed,
by the engine and by the files of theirs on the node.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_fixed

from retinue.agent.docker.core.container_spec import Container, body, container_name
from retinue.agent.docker.engine import EngineError, EngineUnavailableError
from retinue.agent.docker.image_defaults import INVALID
from retinue.agent.docker.kernel_files import KernelFiles, Waiting, wait_ready
from retinue.agent.errors import KernelRuntimeError, KernelStartError, in_words
from retinue.agent.host.lanes import KERNELS, Lane, in_thread
from retinue.agent.host.processes import Process, alive, wait_end
from retinue.agent.host.users import UsersError
from retinue.agent.inside.provision import LARGEST_FILE, MOUNT_REFUSED, MountRefusedError, UnfitFileError
from retinue.agent.inside.workdir import empty_work, remove_work
from retinue.agent.kernel.core.ssh import server_command

if TYPE_CHECKING:
    from pathlib import Path

    from retinue.agent.attempts import AttemptSpec
    from retinue.agent.conditions import Conditions
    from retinue.agent.docker.core.container_state import ContainerState, FileFacts
    from retinue.agent.docker.engine import Engine
    from retinue.agent.docker.images import Image
    from retinue.agent.docker.options import DockerOptions
    from retinue.agent.resources.core.holdings import Holding

ACCOUNTS = ("/etc/passwd", "/etc/group")
END_TIMEOUT = 5.0
"""Seconds to wait at a time for killed processes to be gone."""
# Calls an engine again that does not answer: what was done the first time is found done.
_PERSIST = AsyncRetrying(
    retry=retry_if_exception_type(EngineUnavailableError),
    wait=wait_fixed(0.5),
    stop=stop_after_attempt(3),
    reraise=True,
)

# In the words of engines and runc, for a user or group that an image names and does not have.
_UNKNOWN_USER = re.compile(r"unable to find (?:user|group) |no matching entries in (?:passwd|group) file")


class DockerKernels:
    """All containers of one agent."""

    def __init__(self, options: DockerOptions, engine: Engine, conditions: Conditions) -> None:
        """Touches nothing before `open`."""
        self._options = options
        self._conditions = conditions
        self._engine = engine
        # As many starts as are under way write files; they take no threads that others need.
        self._lane = Lane("docker", options.starts)
        self._made: KernelFiles | None = None
        # Images of which the engine can read what they say of users.
        self._checked: set[str] = set()

    async def open(self) -> None:
        """Makes what containers are started with. Raises BuildError, FilterError, OSError."""
        if self._made is None:
            self._made = await in_thread(KernelFiles, self._options, conditions=self._conditions)

    async def find(self, attempt_id: str) -> ContainerState | None:
        """Returns the state of the attempt's own container; None when there is none, or another one has its name."""
        there = await self._engine.inspect(container_name(attempt_id))
        labels = (self._options.agent_id, attempt_id)
        return there if there is not None and (there.agent_id, there.attempt_id) == labels else None

    async def start(self, spec: AttemptSpec, hosts: str, image: Image, holding: Holding, directory: Path) -> Process:
        """Starts a kernel and holds it at its start barrier; the result is its first process.

        `directory` is for its files. Raises KernelStartError; whether anything runs then is not known.
        """
        try:
            files = self._files
            with contextlib.ExitStack() as until_started:
                made = await self._lane.run(files.make, spec, hosts, image.user, directory, until_started)
                container = Container(
                    self._options.agent_id,
                    spec,
                    image.identity.id,
                    made.user,
                    self._options.tasks,
                    files.open_files,
                    made.files,
                    () if made.ssh is None else tuple(server_command(spec.hostname)),
                    holding,
                )
                waiting = await self._run(container, directory)
            await self._lane.run(files.provision, waiting, made.ssh, spec, directory)
            return waiting.init
        except MountRefusedError as error:
            raise KernelStartError(str(error), MOUNT_REFUSED) from error
        except UnfitFileError as error:
            raise KernelStartError(f"image {spec.image} cannot be used: {error}", INVALID) from error
        except EngineError as error:
            # The next node would find the same image.
            raise KernelStartError(str(error), INVALID if _UNKNOWN_USER.search(str(error)) else "") from error
        except (UsersError, OSError) as error:
            raise KernelStartError(in_words(error)) from error

    async def _run(self, container: Container, directory: Path) -> Waiting:
        """Creates and starts a container, and returns its first process once that waits at the start barrier."""
        attempt_id = container.spec.id
        name = container_name(attempt_id)
        # Only one that existed before has to be checked: it may be of a try whose answer was lost.
        created: bool = await _PERSIST(self._engine.create, name, body(container))
        if not created and not await self._is_ours(attempt_id):
            raise KernelStartError(f"there is a container {name} already")
        await self._check_accounts(name, container.image_id)
        await _PERSIST(self._engine.start, name)
        state = await self._engine.inspect(name)
        return await self._lane.run(wait_ready, 0 if state is None else state.pid, directory)

    async def _check_accounts(self, name: str, image_id: str) -> None:
        """Looks at where an image names users and groups, once: engine and runc read it whatever it is,
        and one that blocks is never given up.
        """
        if image_id in self._checked:
            return
        for path in ACCOUNTS:
            found: FileFacts | None = await _PERSIST(self._engine.file, name, path)
            if found is not None and not (found.plain and found.size <= LARGEST_FILE):
                raise UnfitFileError(path)
        self._checked.add(image_id)

    async def _is_ours(self, attempt_id: str) -> bool:
        """Returns whether a container is this attempt's and was not started: a container is never started twice."""
        there = await self.find(attempt_id)
        return there is not None and there.fresh

    async def end(self, attempt_id: str, init: Process | None) -> ContainerState | None:
        """Ends what is left in the kernel, and returns how it ended; None when there is no container.

        Raises EngineError when the engine does not answer, or something does not end in time.
        """
        name = container_name(attempt_id)
        state = await self.find(attempt_id)
        if state is not None and state.running:
            # Another first process than ours is that of a restart by another program: an attempt is not run twice.
            if init is None or alive(init) or state.pid not in {0, init.pid}:
                await self._engine.kill(name)
                if init is not None:
                    await KERNELS.run(wait_end, init, END_TIMEOUT)
            try:
                await self._engine.wait(name, END_TIMEOUT)
            except EngineUnavailableError:
                # An engine whose containerd was away when it ended hears of it only when it tries to kill it.
                await self._engine.kill(name)
                await self._engine.wait(name)
            state = await self._engine.inspect(name)
            if state is not None and state.running:
                raise EngineError("its processes do not end")
        return state

    async def remove(self, attempt_id: str) -> None:
        """Removes all of a kernel but the directory of its record. Raises EngineError, OSError."""
        if await self.find(attempt_id) is not None:
            await self._engine.remove(container_name(attempt_id))
        await self._lane.run(remove_work, self.work(attempt_id))

    async def empty(self, attempt_id: str) -> None:
        """Gives back the space of a kernel that has ended; its directory stays, as what says that it was there.
        Raises EngineError.
        """
        await self._lane.run(empty_work, self.work(attempt_id))
        if await self.find(attempt_id) is not None:
            await self._engine.remove(container_name(attempt_id))

    def work(self, attempt_id: str) -> Path:
        """Returns the attempt's work directory on the node."""
        return self._options.scratch_dir / attempt_id

    @property
    def _files(self) -> KernelFiles:
        if self._made is None:
            raise KernelRuntimeError("containers cannot be created yet")
        return self._made
