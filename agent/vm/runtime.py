"""The runtime for virtual machines: each kernel is a guest of QEMU, booted and held at its
start barrier by its first process.

Whatever is done is recorded before it is done. The machine continues without the agent: what the command prints, and
how it ends, is written by processes of the node that need none.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from retinue.agent.attempts import Phase
from retinue.agent.builds import LINUX, NOT_BUILT
from retinue.agent.errors import KernelRuntimeError, NotRunningError
from retinue.agent.host.freezer import pause_of
from retinue.agent.host.lanes import KERNELS
from retinue.agent.host.processes import command_of, wait_end
from retinue.agent.inside.host_kernel import HostKernel
from retinue.agent.inside.output_pump import revive
from retinue.agent.kernel.build import PUMP, built_path
from retinue.agent.kernel.guest_linux import find, why_not
from retinue.agent.network.namespaces import NamespaceOf
from retinue.agent.process.sandbox_runtime import SandboxRuntime
from retinue.agent.resources.core.holdings import CUDA
from retinue.agent.runtime.attempt_store import BOUND_INTERVAL
from retinue.agent.runtime.contract import RuntimeStatus
from retinue.agent.vm import accelerator, channels
from retinue.agent.vm.channels import GuestError, GuestRefusedError, Streams
from retinue.agent.vm.core import guest_frames
from retinue.agent.vm.images import can_pack
from retinue.agent.vm.kernel import VmKernel
from retinue.agent.vm.machines import Machines, have_groups, look_at_end, pipes, said_of_guest, sockets_of
from retinue.agent.vm.network import join
from retinue.agent.vm.options import VmOptions
from retinue.agent.vm.starting import Starts
from retinue.rpc.core.reasons import AttemptReason

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from retinue.agent.attempts import AttemptSpec
    from retinue.agent.builds import NodeBuilds
    from retinue.agent.host.processes import Process
    from retinue.agent.inside.exec_session import ExecStream
    from retinue.agent.kernel.core.signals import Delivery
    from retinue.agent.runtime.attempt_records import Record
    from retinue.agent.runtime.exit_reason import ExitEvidence
    from retinue.agent.runtime.kernel import Kernel
    from retinue.agent.runtime.options import Shared
    from retinue.agent.vm.images import ImageRoots

_log = logging.getLogger(__name__)

WITH_IMAGES = "vm-images"
"""Name of virtual machines over images, which not every node has that runs some."""
END_TIMEOUT = 5.0
"""Seconds that a machine may take to end after its channel has."""
RETRY = 1.0
"""Seconds before what could not be done is tried again."""


class VmRuntime(SandboxRuntime[VmOptions, Machines]):
    """Runs attempts as virtual machines; a Runtime."""

    name = "vm"
    directory = "vm"

    def __init__(
        self,
        options: VmOptions,
        shared: Shared | None = None,
        *,
        images: ImageRoots | None = None,
        builds: NodeBuilds | None = None,
    ) -> None:
        """Touches nothing before `open`. Without `images`, attempts with an image are declined; with `builds`, a Linux
        that is missing is fetched.
        """
        super().__init__(options, shared)
        self._opening = asyncio.Lock()
        self._builds = builds
        self._why_not = "it was not looked at yet"
        self._why_no_images = ""
        self._accelerator = "tcg"
        self._streams: dict[str, Streams] = {}
        self._images = images
        self._starts = Starts(
            options,
            self._store,
            self._holdings,
            images,
            self._tasks,
            children=self._children,
            created=self._take_over,
            fail=self._fail,
            accelerator=lambda: self._accelerator,
        )

    @property
    def statuses(self) -> tuple[RuntimeStatus, ...]:
        """Returns whether attempts can be created now, with which accelerator, and whether they can have an image."""
        why = self._why_not or self._why_no_images
        return (
            RuntimeStatus(self.name, not self._why_not, self._why_not or self._accelerator),
            RuntimeStatus(WITH_IMAGES, not why, why),
        )

    async def open(self, listener: Callable[[], None]) -> None:
        """Takes over what a former process of this agent left; without that, nothing is made before it is needed."""
        self._why_not = await asyncio.to_thread(why_not, self._options.cache_dir)
        if self._images is None:
            self._why_no_images = "no Docker engine was found, which fetches images"
        elif not can_pack():
            self._why_no_images = "sqfstar is missing: install the package squashfs-tools"
        if self._why_not:
            _log.info("virtual machines cannot be created: %s", self._why_not)
        lost = await self._store.open(listener)
        names = set[str]()
        left = any(not record.phase.ended for record in self._store)
        if lost or left or await asyncio.to_thread(have_groups, self._options):
            names = (await self._opened()).names()
        await self._take_over_all(lost, names)
        if self._images is not None:
            self._tasks.spawn(self._sweep(self._images), "sweep exports")
        if not self._why_not:
            self._tasks.spawn(self._try_kvm(), "try KVM")
        elif self._builds is not None and LINUX.is_needed():
            self._why_not = "their Linux is being fetched from Debian, once"
            self._tasks.spawn(self._wait_for_linux(self._builds), "wait for Linux")

    async def _wait_for_linux(self, builds: NodeBuilds) -> None:
        fetched = await builds.ready(LINUX)
        self._why_not = await asyncio.to_thread(why_not, self._options.cache_dir)
        if fetched is None and (failure := builds.failure(LINUX)) != NOT_BUILT:
            self._why_not = failure
        self._store.changed()
        if not self._why_not:
            await self._try_kvm()

    async def _sweep(self, images: ImageRoots) -> None:
        try:
            await images.sweep()
        except (KernelRuntimeError, OSError) as error:
            _log.warning("what is left of exports of images cannot be removed: %s", error)

    async def _try_kvm(self) -> None:
        """Uses KVM once it has proved to work."""
        options = self._options
        if await accelerator.works(await asyncio.to_thread(find, options.cache_dir), options.uid, options.gid):
            self._accelerator = "kvm"
            self._store.changed()

    async def _opened(self) -> Machines:
        """Returns what machines are made with, from the first one on. Raises KernelRuntimeError."""
        async with self._opening:
            if self._node is None:
                node = await asyncio.to_thread(Machines, self._options, self._damaged, self._conditions)
                await self._look_after()
                self._node = node
                self._tasks.spawn(self._keep_pumps(built_path(self._options.cache_dir, PUMP)), "keep pumps")
            return self._node

    async def close(self) -> None:
        """Releases all resources; kernels continue to run."""
        await super().close()
        if self._images is not None:
            await self._images.close()

    def kernel(self, attempt_id: str) -> Kernel:
        """Returns access to what runs of an attempt, as it is now. Raises UnknownAttemptError."""
        record = self._store.record(attempt_id)
        running = record.phase is Phase.RUNNING and record.init is not None
        work = self._options.scratch_dir / attempt_id if running else None
        host = HostKernel(attempt_id, self._store.first_process(attempt_id), work, _no_exec)
        streams = self._streams.setdefault(attempt_id, Streams(sockets_of(self._options, attempt_id)))

        def pause() -> str:
            return "" if record.init is None else self._pause(record.init)

        return VmKernel(host, running, streams, self._tasks, pause, record.networked and record.egress)

    def _refusal(self, spec: AttemptSpec) -> tuple[str, str] | None:
        if self._why_not:
            return AttemptReason.ISOLATION_UNSUPPORTED, f"this node runs no virtual machines: {self._why_not}"
        if spec.image and self._why_no_images:
            return AttemptReason.IMAGE_UNSUPPORTED, f"virtual machines have no image here: {self._why_no_images}"
        if spec.slots.get(CUDA):
            return AttemptReason.DEVICE_MISSING, "virtual machines have no GPUs"
        if spec.sftp is not None:
            return AttemptReason.ISOLATION_UNSUPPORTED, "an SFTP server is no virtual machine"
        return None

    async def _create(self, spec: AttemptSpec, hosts: str) -> None:
        # Without the node, not even a record is made.
        await self._starts.prepare(spec, hosts, await self._opened())

    async def _cancel_create(self, attempt_id: str) -> None:
        self._starts.cancel(attempt_id)

    async def _connect(self, record: Record) -> None:
        if record.init is not None:
            await self._join(record, record.init)

    async def _join(self, record: Record, init: Process) -> None:
        interfaces = await asyncio.to_thread(join, NamespaceOf(init), networked=record.networked, egress=record.egress)
        control = self._kernels.control(record.id)
        for interface in interfaces:
            await channels.ask(control, guest_frames.NETWORK, guest_frames.interface(interface))
        await channels.ask(control, guest_frames.SERVE)

    async def _release(self, record: Record) -> None:
        await asyncio.to_thread(self._kernels.note_release, record.id)
        if not await self._go(record):
            # Not waited for: its lock is held.
            self._tasks.spawn(self._continue(record), f"release {record.id}")

    async def _continue(self, record: Record) -> None:
        while record.id in self._store and self._store.record(record.id).phase is Phase.RUNNING:
            if await self._go(record):
                return
            await asyncio.sleep(RETRY)

    async def _go(self, record: Record) -> bool:
        """Has a guest start its command; False when it does not answer yet. One that cannot start it is ended."""
        try:
            await channels.ask(self._kernels.control(record.id), guest_frames.GO, guest_frames.clock(time.time_ns()))
        except GuestRefusedError as error:
            problem = str(error)
        except GuestError as error:
            _log.warning("attempt %s does not answer: %s", record.id, error)
            return False
        except OSError as error:
            # The end of a machine is noticed by itself, and has its own reason.
            if record.init is None or await asyncio.to_thread(wait_end, record.init, END_TIMEOUT):
                return True
            problem = str(error)
        else:
            return True
        message = f"its virtual machine could not start its command: {problem}"
        self._tasks.spawn(self.end(record.id, AttemptReason.GUEST_FAILED, message), f"end {record.id}")
        return True

    async def _repeat(self, record: Record) -> None:
        # Not waited for: one machine that hangs must not keep the agent from starting.
        if record.phase is Phase.RUNNING and record.init is not None:
            self._tasks.spawn(self._release(record), f"release {record.id}")

    async def _signal(self, attempt_id: str, init: Process, delivery: Delivery) -> None:
        del init
        # Not waited for: a guest that does not answer is killed when its time has come.
        self._tasks.spawn(self._send_signal(attempt_id, delivery), f"signal {attempt_id}")

    async def _send_signal(self, attempt_id: str, delivery: Delivery) -> None:
        try:
            await channels.send_signal(self._kernels.control(attempt_id), delivery.code)
        except (GuestError, OSError) as error:
            _log.warning("attempt %s gets no %s: %s", attempt_id, delivery.signal.name, error)

    async def stop(self, attempt_id: str, grace: float) -> None:
        """Asks the command to end; after `grace` seconds it is due to be killed.
        One that boots or is held is due at once.
        """
        await self._stop_booting(attempt_id)
        await super().stop(attempt_id, grace)

    async def kill(self, attempt_id: str) -> None:
        """Ends the machine."""
        await self._stop_booting(attempt_id)
        await super().kill(attempt_id)

    async def _stop_booting(self, attempt_id: str) -> None:
        # Before the lock: one that boots has it.
        if (record := self._store.record(attempt_id)).phase is not Phase.CREATING:
            return
        if record.init is None:
            # It waits for its turn, or its processes are only now being started.
            self._starts.stop(attempt_id)
        else:
            self._store.show(replace(record, phase=Phase.STOPPING))
        await self._kill_again(attempt_id)

    async def _end(self, record: Record, init: Process | None) -> ExitEvidence | None:
        killed = await KERNELS.run(self._kernels.end, record.id, init)
        if killed is None:
            return None
        await asyncio.to_thread(self._reap, record.id)
        return await asyncio.to_thread(look_at_end, self._store.directory(record.id), killed=bool(killed))

    def _pause(self, init: Process) -> str:
        # QEMU is the child of the first process.
        return super()._pause(init) or ("" if (qemu := command_of(init)) is None else pause_of(qemu))

    def _run_again(self, record: Record, init: Process) -> None:
        super()._run_again(record, init)
        if (qemu := command_of(init)) is not None:
            super()._run_again(record, qemu)

    def _memory_kills(self, record: Record) -> int:
        return said_of_guest(self._store.directory(record.id)).memory_kills

    async def _remove(self, attempt_id: str) -> None:
        await super()._remove(attempt_id)
        self._streams.pop(attempt_id, None)

    async def _keep_pumps(self, pump: Path) -> None:
        """Keeps a process running for each pipe of each machine; does not return."""
        while True:
            await asyncio.sleep(BOUND_INTERVAL)
            for record in self._store:
                if record.init is None:
                    continue
                for pipe, limit in pipes(self._store.directory(record.id)):
                    with contextlib.suppress(OSError):
                        await asyncio.to_thread(revive, pump, pipe, limit)


async def _no_exec() -> ExecStream:
    raise NotRunningError("the attempt does not run")
