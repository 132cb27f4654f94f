"""The starts of virtual machines: the root of an image is made if need be,
then a machine boots until its guest holds the command.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from retinue.agent.attempts import Phase
from retinue.agent.docker.images import ImageError
from retinue.agent.errors import KernelRuntimeError, KernelStartError, in_words
from retinue.agent.host.core.limits import thread_variables
from retinue.agent.host.processes import alive
from retinue.agent.inside.provision import CLIENTS, WITHOUT_RESOLVER, Ssh, places, ssh_of
from retinue.agent.kernel.core.accounts import ACCOUNT, PROFILE, Account, login_variables, profile
from retinue.agent.kernel.core.ssh import CONFIG, HOST_KEY, IDENTITY, KNOWN_HOSTS, server_command
from retinue.agent.kernel.paths import FILES, HOME, PROGRAMS, PYTHON, SHELL_PROGRAM
from retinue.agent.process.bubblewrap import SEARCH_PATH
from retinue.agent.runtime.attempt_records import Record
from retinue.agent.vm import channels
from retinue.agent.vm.core import guest_frames
from retinue.agent.vm.core.guest_frames import File, GuestSpec, SharedDirectory
from retinue.agent.vm.core.machine import MOUNT, SHARED_PROGRAMS, SHARED_PYTHON
from retinue.agent.vm.machines import Start
from retinue.rpc.core.reasons import AttemptReason

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from retinue.agent.attempts import AttemptSpec, Layer, Owner
    from retinue.agent.host.processes import Process
    from retinue.agent.resources.core.holdings import Holdings
    from retinue.agent.runtime.attempt_store import AttemptStore
    from retinue.agent.runtime.tasks import Tasks
    from retinue.agent.vm.images import ImageRoots, ImageUser, Root
    from retinue.agent.vm.machines import Machines, Started
    from retinue.agent.vm.options import VmOptions

_log = logging.getLogger(__name__)

UNFORESEEN = "it could not be started; the agent's log says more"


class Starts:
    """Starts one agent's virtual machines. Methods belong on one event loop."""

    def __init__(
        self,
        options: VmOptions,
        store: AttemptStore,
        holdings: Holdings,
        images: ImageRoots | None,
        tasks: Tasks,
        *,
        children: dict[str, subprocess.Popen[bytes]],
        created: Callable[[Record], None],
        fail: Callable[[str, KernelStartError], Awaitable[None]],
        accelerator: Callable[[], str],
    ) -> None:
        """Processes that watch over machines are put into `children`.

        `created` is called with each attempt that is held, `fail` with each that cannot be created, its lock held.
        """
        self._options = options
        self._store = store
        self._holdings = holdings
        self._images = images
        self._tasks = tasks
        self._created = created
        self._fail = fail
        self._accelerator = accelerator
        self._under_way = asyncio.Semaphore(options.starts)
        self._fetches: dict[str, asyncio.Task[None]] = {}
        self._stopped: set[str] = set()
        self._children = children

    def cancel(self, attempt_id: str) -> None:
        """Waits no more for the image of an attempt that is in PULLING."""
        if (fetch := self._fetches.get(attempt_id)) is not None:
            fetch.cancel()

    def stop(self, attempt_id: str) -> None:
        """Has a start that is under way end as soon as its machine has processes to end."""
        if attempt_id in self._fetches:
            self._stopped.add(attempt_id)

    async def prepare(self, spec: AttemptSpec, hosts: str, machines: Machines) -> None:
        """Has an attempt started, and returns once that is recorded: a machine takes seconds to boot.
        Raises OSError.
        """
        async with self._store.lock(spec.id):
            phase = Phase.PULLING if spec.image else Phase.CREATING
            if spec.id in self._store:
                # A former process of this agent was about to fetch its image; nothing was started.
                if (record := self._store.record(spec.id)).phase is not Phase.WAITING:
                    return
                self._store.show(replace(record, phase=phase))
            elif not await self._store.add(replace(Record.of(spec, self._options.boot_id), phase=phase), lasting=False):
                return
        task = self._tasks.spawn(self._fetch_and_start(spec, hosts, machines), f"start {spec.id}")
        self._fetches[spec.id] = task
        task.add_done_callback(lambda _task: self._done(spec.id))

    def _done(self, attempt_id: str) -> None:
        self._fetches.pop(attempt_id, None)
        self._stopped.discard(attempt_id)

    async def _fetch_and_start(self, spec: AttemptSpec, hosts: str, machines: Machines) -> None:
        """Fetches the image of an attempt, if it has one, and starts the attempt, unless it is stopped meanwhile."""
        root, failure = None, None
        try:
            root = await self._fetch(spec) if spec.image else None
        except (ImageError, KernelStartError) as error:
            failure = KernelStartError(f"it could not be started: {error}", error.reason)
        except (KernelRuntimeError, OSError) as error:
            failure = KernelStartError(f"it could not be started: {in_words(error)}")
        except Exception:  # noqa: BLE001  # logged whole
            # No other task would end the attempt.
            _log.exception("the image of attempt %s cannot be fetched", spec.id)
            failure = KernelStartError(UNFORESEEN)
        # Bounded: machines that boot at once each boot slower.
        async with self._under_way, self._store.lock(spec.id):
            if self._store.record(spec.id).phase not in {Phase.PULLING, Phase.CREATING}:
                return
            if failure is None:
                failure = await self._try(spec if root is None else root.spec, hosts, root, machines)
            if failure is not None:
                if spec.id in self._stopped:
                    self._store.show(replace(self._store.record(spec.id), phase=Phase.STOPPING))
                await self._fail(spec.id, failure)

    async def _fetch(self, spec: AttemptSpec) -> Root:
        assert self._images is not None  # noqa: S101  # checked before

        def report(layers: tuple[Layer, ...]) -> None:
            self._store.layers[spec.id] = layers
            self._store.changed()

        try:
            return await self._images.find(spec) or await self._images.make(spec, report)
        finally:
            self._store.layers.pop(spec.id, None)

    async def _try(
        self, spec: AttemptSpec, hosts: str, root: Root | None, machines: Machines
    ) -> KernelStartError | None:
        """Starts an attempt whose lock is held; returns why it cannot be started, if so."""
        try:
            await self._start(spec, hosts, root, machines)
        except (KernelStartError, KernelRuntimeError, OSError) as error:
            reason = error.reason if isinstance(error, KernelStartError) else ""
            return KernelStartError(f"it could not be started: {in_words(error)}", reason)
        except Exception:  # noqa: BLE001  # logged whole
            _log.exception("attempt %s could not be started", spec.id)
            return KernelStartError(UNFORESEEN)
        return None

    async def _start(self, spec: AttemptSpec, hosts: str, root: Root | None, machines: Machines) -> None:
        cores = self._holdings.take(spec.id, spec.slots).cores
        facts = None if root is None else root.facts
        record = replace(
            self._store.record(spec.id), phase=Phase.CREATING, cores=cores, image=facts, stop=spec.stop.code
        )
        # Lasting before anything is released: what is not recorded must not run.
        await self._store.write(record)
        await self._store.make_lasting(spec.id)
        ssh = await asyncio.to_thread(ssh_of, spec, hosts, self._options.cache_dir)
        self._check_stopped(spec.id)
        user = None if root is None else root.user
        start = Start(
            spec,
            self._store.directory(spec.id),
            self._accelerator(),
            cores,
            None if root is None else root.file,
            None if user is None else user.account,
            None if ssh is None else ssh.programs,
        )
        started = await self._started(start, machines)
        self._check_stopped(spec.id)
        # Of a machine that is not done, only the number of its first process is needed: a later agent ends it.
        record = replace(record, monitor=started.monitor, init=started.init)
        if self._store.record(spec.id).phase is not Phase.STOPPING:
            self._store.show(record)
        guest = guest_spec(spec, hosts, started.user, self._options, ssh, user=user)
        await boot(machines.control(spec.id), started.init, guest, self._options.boot_timeout)
        record = replace(record, phase=Phase.CREATED)
        # A later agent could not reach a kernel that is not recorded.
        await self._store.write(record)
        self._created(record)

    def _check_stopped(self, attempt_id: str) -> None:
        if attempt_id in self._stopped:
            raise KernelStartError("it was stopped while it was started")

    async def _started(self, start: Start, machines: Machines) -> Started:
        starting = asyncio.create_task(asyncio.to_thread(machines.start, start))
        try:
            started = await asyncio.shield(starting)
        except asyncio.CancelledError:
            # The thread continues, and what it has started by then is a child of this process.
            await asyncio.wait({starting})
            if starting.exception() is None:
                self._children[start.spec.id] = starting.result().child
            raise
        self._children[start.spec.id] = started.child
        return started


async def boot(control: Path, init: Process, spec: GuestSpec, seconds: float) -> None:
    """Returns once the guest has booted and holds its command; `init` is the machine's first process,
    `control` the guest's socket.

    Raises KernelStartError, GuestError.
    """
    try:
        async with asyncio.timeout(seconds):
            await channels.wait_booted(control)
            await channels.ask(control, guest_frames.SPECIFY, guest_frames.specification(spec), seconds)
    except TimeoutError as error:
        raise KernelStartError(f"the machine did not boot within {seconds:.0f} s") from error
    except OSError as error:
        # With its last descriptors, the machine's sockets are closed.
        said = "cannot be reached" if alive(init) else "ended"
        raise KernelStartError(f"the machine {said} while it was booting", AttemptReason.GUEST_FAILED) from error


def guest_spec(
    spec: AttemptSpec, hosts: str, own: Owner, options: VmOptions, ssh: Ssh | None, *, user: ImageUser | None
) -> GuestSpec:
    """Returns the specification of an attempt's guest; `hosts` is the text of its /etc/hosts.

    Its command runs as the `user` that its image names; without one as its `own`. Pure.
    """
    account = Account(own.uid, own.gid) if user is None else user.account
    defaults = {"PATH": SEARCH_PATH, "HOME": HOME, "LANG": "C.UTF-8"} | thread_variables(spec.slots)
    defaults |= login_variables(account.name or ACCOUNT, spec.environment)
    search_path = dict(spec.environment).get("PATH", SEARCH_PATH)
    resolver = options.resolver() if spec.egress else WITHOUT_RESOLVER
    shared = [SharedDirectory(PROGRAMS, SHARED_PROGRAMS), SharedDirectory(PYTHON, SHARED_PYTHON)]
    for number, mount in enumerate(spec.mounts):
        shared.append(SharedDirectory(mount.target, MOUNT.format(number), mount.writable))
    texts = {
        "/etc/hostname": f"{spec.hostname}\n",
        "/etc/hosts": hosts,
        "/etc/resolv.conf": resolver,
        PROFILE: profile(search_path),
    }
    if user is not None:
        texts |= user.files(named=ssh is not None)
    return GuestSpec(
        hostname=spec.hostname,
        uid=account.uid,
        gid=account.gid,
        groups=account.groups,
        image=bool(spec.image),
        shared_memory=spec.shared_memory,
        processes=options.tasks,
        files=(
            *(File(path, 0o644, text.encode(errors="surrogateescape")) for path, text in texts.items()),
            *_ssh_files(ssh),
        ),
        mounts=tuple(shared),
        programs=() if ssh is None else (*CLIENTS, SHELL_PROGRAM),
        places=tuple(places(search_path, [mount.target for mount in spec.mounts])),
        ssh_config="" if ssh is None else f"{ssh.files.config}Host *\n",
        server=() if ssh is None else tuple(server_command(spec.hostname)),
        command=spec.command,
        directory=spec.directory,
        environment=tuple(f"{name}={value}" for name, value in (defaults | dict(spec.environment)).items()),
    )


def _ssh_files(ssh: Ssh | None) -> list[File]:
    if ssh is None:
        return []
    files = ssh.files
    return [
        File(f"{FILES}/{HOST_KEY}", 0o400, files.host_key, private=True),
        File(f"{FILES}/{IDENTITY}", 0o400, files.identity, private=True),
        File(f"{FILES}/{KNOWN_HOSTS}", 0o444, files.known_hosts.encode()),
        File(f"{FILES}/{CONFIG}", 0o444, files.config.encode()),
        File(f"{HOME}/.ssh/authorized_keys", 0o600, files.authorized_keys.encode(), private=True),
    ]
