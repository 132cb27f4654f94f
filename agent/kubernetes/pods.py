"""The pods of one agent: created, held, entered, ended and removed,
by the cluster and by what is theirs on the node.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass, fields
from http import HTTPStatus
from signal import SIGKILL
from typing import TYPE_CHECKING

from retinue.agent.attempts import Phase, PullPolicy
from retinue.agent.docker.barrier import at_barrier, bar, outcome, stopped_by
from retinue.agent.docker.core.container_spec import Files
from retinue.agent.docker.image_defaults import INVALID
from retinue.agent.docker.kernel_files import KernelFiles, Waiting
from retinue.agent.errors import KernelRuntimeError, KernelStartError
from retinue.agent.host.lanes import KERNELS, Lane
from retinue.agent.host.processes import send_signal, wait_end
from retinue.agent.host.users import UsersError
from retinue.agent.inside.provision import MOUNT_REFUSED, MountRefusedError, UnfitFileError
from retinue.agent.inside.workdir import empty_work, remove_work
from retinue.agent.kernel.core.ssh import server_command
from retinue.agent.kubernetes.cluster import ClusterError, ClusterUnavailableError, PodExistsError
from retinue.agent.kubernetes.core.pod_spec import (
    MOUNTED,
    PodPlan,
    body,
    fetch_body,
    fetch_id,
    ids_of,
    image_reference,
    is_fetch,
    pod_name,
)
from retinue.agent.kubernetes.core.pod_state import OUT_OF_MEMORY, PodState, eviction_of, failure_of
from retinue.agent.kubernetes.pod_processes import first_process_of
from retinue.agent.network.errors import NetworkError
from retinue.agent.network.links import remove_links
from retinue.agent.network.namespaces import NamespaceOf
from retinue.agent.runtime.exit_reason import KILLED, ExitEvidence
from retinue.agent.runtime.exit_reason import OUT_OF_MEMORY as USED_UP
from retinue.rpc.core.reasons import AttemptReason

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from lightkube.resources.core_v1 import Pod

    from retinue.agent.attempts import AttemptSpec
    from retinue.agent.docker.images import Image
    from retinue.agent.host.processes import Process
    from retinue.agent.kubernetes.cluster import Cluster
    from retinue.agent.kubernetes.options import KubernetesOptions
    from retinue.agent.kubernetes.pod_watch import PodWatch
    from retinue.agent.runtime.attempt_records import Record

_log = logging.getLogger(__name__)

API_PATIENCE = 60.0
"""Seconds for which a pod is tried to be created while the API does not answer."""
RETRY, MAX_RETRY = 1.0, 16.0
"""Seconds before the API is called again after an error: the first time, and at the most."""
START_TIMEOUT = 3600.0
"""Seconds that a pod may take to be at its start barrier, its image fetched."""
FETCH_POLL = 0.25
"""Seconds between two looks whether the container runtime has an image."""
HELD_POLL = 0.02
"""Seconds between two looks at the start barrier, whose opening no event of the cluster says in time."""
END_TIMEOUT = 5.0
"""Seconds to wait at a time for killed processes to be gone."""
WITNESS_TIMEOUT = 10.0
"""Seconds that kubelet may take to say how a container ended that has not said so itself."""
SETTLE_TIMEOUT = 60.0
"""Seconds that kubelet may take to give up a pod of which no container was seen."""
# Exit codes of what was asked to end, or killed, by anyone.
_SIGNALLED = frozenset({KILLED, 128 + 15})


@dataclass(frozen=True, slots=True)
class Held:
    """A pod that waits at its start barrier, and its first process."""

    pod: PodState
    init: Process


class Pods:
    """All pods of one agent."""

    def __init__(self, options: KubernetesOptions, cluster: Cluster, watch: PodWatch) -> None:
        """Touches nothing before `open`."""
        self._options = options
        self._cluster = cluster
        self._watch = watch
        self._lane = Lane("kubernetes", options.starts)
        self._made: KernelFiles | None = None
        # Attempts that are to be given up while they are started.
        self._given_up: set[str] = set()

    async def open(self) -> None:
        """Makes what pods are started with. Raises BuildError, FilterError, OSError."""
        if self._made is None:
            self._made = await asyncio.to_thread(KernelFiles, self._options, MOUNTED)

    def give_up(self, attempt_id: str) -> None:
        """Has a start that is under way fail, soon."""
        self._given_up.add(attempt_id)

    async def fetch(self, spec: AttemptSpec, find: Callable[[], Awaitable[Image | None]]) -> Image:
        """Has kubelet fetch an image, with its own credentials, by a pod that does nothing else; `find` returns the
        image once it is on the node. `unfetch` removes that pod, in any case. Raises KernelStartError.
        """
        if self._made is None:
            raise KernelStartError("pods cannot be created yet")
        options, key = self._options, fetch_id(spec.id)
        # Only the first of them is used.
        files = Files(*(self._made.init,) * len(fields(Files)))
        pods, image = (options.priority_class, options.pull_secrets), image_reference(spec)
        plan = PodPlan(options.agent_id, options.node_name, spec, image, options.uid, options.gid, files, (), *pods)
        try:
            pod = await self._create(key, fetch_body(plan))
            deadline = time.monotonic() + START_TIMEOUT
            while True:
                # Before the image is looked for: a pod that has ended had it.
                shown = await self._shown(pod)
                pulled = spec.pull_policy is not PullPolicy.ALWAYS or (shown is not None and shown.ran)
                if pulled and (found := await find()) is not None:
                    return found
                _check_start(shown, spec.image)
                if time.monotonic() > deadline:
                    raise KernelStartError(f"image {spec.image} was not fetched within {START_TIMEOUT:.0f} s")
                await self._watch.wait(FETCH_POLL)
        except (ClusterError, KernelRuntimeError) as error:
            raise KernelStartError(str(error)) from error

    async def unfetch(self, key: str) -> bool:
        """Removes the pod that an image was fetched by, and returns whether there was one;
        tries until that is done.
        """
        while True:
            with contextlib.suppress(ClusterError):
                return await self._remove_pod(key)
            await asyncio.sleep(MAX_RETRY)

    async def start(self, spec: AttemptSpec, hosts: str, directory: Path, user: str = "") -> Held:
        """Creates a pod and returns once it is held at its start barrier, without the cluster's network.

        `directory` is for its files, `user` the image's. Raises KernelStartError; whether anything runs then is not
        known.
        """
        try:
            if self._made is None:
                raise KernelRuntimeError("pods cannot be created yet")
            with contextlib.ExitStack() as until_started:
                made = await self._lane.run(self._made.make, spec, hosts, user, directory, until_started)
                uid, gid = ids_of(made.user)
                plan = PodPlan(
                    self._options.agent_id,
                    self._options.node_name,
                    spec,
                    image_reference(spec),
                    uid,
                    gid,
                    made.files,
                    () if made.ssh is None else tuple(server_command(spec.hostname)),
                    self._options.priority_class,
                    self._options.pull_secrets,
                )
                pod = await self._create(spec.id, body(plan))
                waiting = await self._held(pod, spec, directory)
            # Nothing of the user's has run: the cluster's network was there for the first process only,
            # which uses none.
            await self._lane.run(remove_links, NamespaceOf(waiting.init))
            await self._lane.run(self._made.provision, waiting, made.ssh, spec, directory)
            return Held(self._watch.get(spec.id) or pod, waiting.init)
        except MountRefusedError as error:
            raise KernelStartError(str(error), MOUNT_REFUSED) from error
        except UnfitFileError as error:
            raise KernelStartError(f"image {spec.image} cannot be used: {error}", INVALID) from error
        except (ClusterError, KernelRuntimeError, NetworkError, UsersError, OSError) as error:
            raise KernelStartError(str(error)) from error
        finally:
            self._given_up.discard(spec.id)

    async def _create(self, attempt_id: str, wanted: Pod) -> PodState:
        """Creates an attempt's pod; the name sees to it that a repeated call, after an answer that was lost,
        makes no second one.
        """
        deadline, retry = time.monotonic() + API_PATIENCE, RETRY
        while True:
            self._check(attempt_id)
            try:
                pod = await self._created(attempt_id, wanted)
            except ClusterUnavailableError as error:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(max(retry, error.pause))
                retry = min(2 * retry, MAX_RETRY)
                continue
            except ClusterError as error:
                # Another node's kubelet would not be asked either, but another group's namespace may have room.
                raise KernelStartError(
                    str(error), AttemptReason.NODE_REFUSED if error.status == HTTPStatus.FORBIDDEN else ""
                ) from error
            self._watch.note(pod)
            return pod

    async def _created(self, attempt_id: str, wanted: Pod) -> PodState:
        """Creates the pod, or finds the one that a former call has created. Raises ClusterError."""
        try:
            return await self._cluster.create(wanted)
        except PodExistsError as error:
            found = await self.find(attempt_id)
            if found is None:
                raise ClusterError(f"there is a pod {pod_name(attempt_id)} already") from error
            return found
        except ClusterUnavailableError:
            raise
        except ClusterError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise
            # Two creations that count for one quota at the same time: the API asks to repeat it.
            raise ClusterUnavailableError(str(error)) from error

    async def _held(self, pod: PodState, spec: AttemptSpec, directory: Path) -> Waiting:
        """Returns the first process of a pod once it waits at the start barrier: seen on the node, not by the API."""
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            init = await self._lane.run(_waiting_process, directory, pod.uid)
            if init is not None:
                return Waiting.of(init)
            self._check(spec.id)
            _check_start(await self._shown(pod), spec.image)
            if time.monotonic() > deadline:
                raise KernelStartError("it took too long to be ready")
            await self._watch.wait(HELD_POLL)

    async def _shown(self, pod: PodState) -> PodState | None:
        """Returns a pod as it is now. The watch may not show it: a list from before its creation would explain that.
        None when the API does not say now. Raises KernelStartError when it is gone.
        """
        shown = self._watch.get(pod.attempt_id)
        if shown is not None and shown.uid == pod.uid:
            return shown
        try:
            found = await self.find(pod.attempt_id)
        except ClusterUnavailableError as error:
            await asyncio.sleep(max(RETRY, error.pause))
            return None
        if found is None or found.uid != pod.uid:
            raise KernelStartError("its pod was deleted", AttemptReason.EVICTED)
        return found

    def _check(self, attempt_id: str) -> None:
        if attempt_id in self._given_up:
            raise KernelStartError("it was stopped before it was ready")

    async def find(self, attempt_id: str) -> PodState | None:
        """Asks for the attempt's own pod; None when there is none, or another one has its name. Raises ClusterError."""
        pod = await self._cluster.get(pod_name(attempt_id))
        if pod is None or (pod.agent_id, pod.attempt_id) != (self._options.agent_id, attempt_id):
            return None
        self._watch.note(pod)
        return pod

    async def end(self, record: Record, init: Process | None, directory: Path) -> ExitEvidence | None:
        """Ends what is left of a pod, and returns how it ended; None when something does not end in time.

        What the node shows decides, whatever the cluster says of the pod. Raises ClusterError, OSError.
        """
        # From now on nothing of it starts any more, should the cluster still be about to.
        await KERNELS.run(bar, directory)
        if init is None and record.boot_id == self._options.boot_id:
            pod = await self.find(record.id)
            if pod is not None:
                # Its processes are found by its uid; until kubelet has seen it, there are none.
                init = await KERNELS.run(first_process_of, pod.uid)
                if not pod.deleted and not pod.terminal:
                    await self._cluster.delete(pod.name, pod.uid)
        if init is not None:
            await KERNELS.run(send_signal, init, SIGKILL)
            if not await KERNELS.run(wait_end, init, END_TIMEOUT):
                return None
        return await self._remains(record, directory)

    async def _remains(self, record: Record, directory: Path) -> ExitEvidence:
        if record.start_time is None:
            return ExitEvidence()
        found = await KERNELS.run(outcome, directory)
        code = None if found is None else found.exit_code
        end_time = None if found is None else found.end_time
        kills = None if found is None else found.memory_kills
        used_up = bool(kills) or record.out_of_memory
        pod = self._watch.get(record.id)
        own = record.phase is not Phase.RUNNING or record.reason != "" or record.boot_id != self._options.boot_id
        if not own and not used_up and (code is None or code in _SIGNALLED):
            # Its first process was killed, or someone has asked it to end: kubelet may know more.
            pod = await self._witness(record.id)
        evicted = "" if own or pod is None else eviction_of(pod)
        if pod is not None and pod.ended is not None and code is None:
            code, end_time = pod.ended.exit_code, pod.ended.time
            used_up = used_up or pod.ended.reason == OUT_OF_MEMORY
        stopped = "" if own else await KERNELS.run(stopped_by, directory, code)
        return ExitEvidence(code, end_time, USED_UP if used_up else "", kills, evicted=evicted, stopped=stopped)

    async def _witness(self, attempt_id: str) -> PodState | None:
        """Returns the pod once kubelet has said that it ended, or as it is known when that takes too long."""
        deadline = time.monotonic() + WITNESS_TIMEOUT
        while True:
            pod = self._watch.get(attempt_id)
            if pod is not None and pod.terminal:
                return pod
            if (left := deadline - time.monotonic()) <= 0:
                return pod
            await self._watch.wait(left)

    async def remove(self, attempt_id: str, *, held: bool) -> None:
        """Removes all of a pod but the directory of its record; `held` says that its container was there.
        Raises ClusterError, OSError.
        """
        await self._remove_pod(attempt_id, held=held)
        await self._lane.run(remove_work, self.work(attempt_id))

    async def empty(self, attempt_id: str) -> None:
        """Gives back the space of a pod that has ended; its directory stays, as what says that it was there.
        Raises ClusterError.
        """
        await self._lane.run(empty_work, self.work(attempt_id))
        await self._remove_pod(attempt_id)

    async def _remove_pod(self, attempt_id: str, *, held: bool = True) -> bool:
        pod = self._watch.get(attempt_id) or await self.find(attempt_id)
        if pod is None:
            return False
        # The finalizer goes last: a name that is free could be another pod's.
        if await self._cluster.delete(pod.name, pod.uid) and not is_fetch(attempt_id):
            if not held:
                self._watch.note(pod)
                await self._settle(pod)
            await self._cluster.release(pod.name, pod.uid)
        return True

    async def _settle(self, pod: PodState) -> None:
        """Returns once kubelet says that nothing of a deleted pod starts any more, or when that takes too long: it may
        be about to make the container, and what is mounted into that would be made again after it was removed.
        """
        deadline = time.monotonic() + SETTLE_TIMEOUT
        while (shown := self._watch.get(pod.attempt_id)) is not None and shown.uid == pod.uid and not shown.terminal:
            if (left := deadline - time.monotonic()) <= 0:
                return
            await self._watch.wait(left)

    def work(self, attempt_id: str) -> Path:
        """Returns the attempt's work directory on the node."""
        return self._options.scratch_dir / attempt_id


def _check_start(shown: PodState | None, image: str) -> None:
    """Raises KernelStartError when a pod does not come to its start barrier any more."""
    failure = None if shown is None else failure_of(shown, image)
    if failure is None:
        return
    if failure.said:
        _log.warning("image %s cannot be fetched: %s", image, failure.said)
    raise KernelStartError(failure.message, failure.reason)


def _waiting_process(directory: Path, uid: str) -> Process | None:
    """Returns the first process of a pod that waits at its start barrier. Blocks."""
    with at_barrier(directory) as pipe:
        return None if pipe is None else first_process_of(uid)
