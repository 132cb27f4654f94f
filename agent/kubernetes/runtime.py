"""The runtime for pods: each kernel is a pod of a Kubernetes cluster on this node,
held at a start barrier by its first process.

The cluster is asked to create a pod and to forget it. All between is seen and done on the node: that it is held, its
network, its release, commands beside its own, its end and its exit code. A pod's name is its attempt's, and its first
process releases no command twice, so that neither a restarted agent, a lost answer nor a
kubelet that starts over runs an attempt again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from retinue.agent.attempts import ImageFacts, ImageIdentity, Phase, PullPolicy
from retinue.agent.docker.container_runtime import ContainerRuntime
from retinue.agent.docker.core.container_state import ContainerState, Written
from retinue.agent.docker.image_defaults import fitted
from retinue.agent.docker.images import ImageError, not_present
from retinue.agent.docker.kernel_files import footprint_of
from retinue.agent.errors import KernelRuntimeError, KernelStartError, NotRunningError, in_words
from retinue.agent.host.cgroups import memory_group
from retinue.agent.host.core.limits import thread_variables
from retinue.agent.host.lanes import KERNELS
from retinue.agent.host.seccomp import FilterError, build_filter
from retinue.agent.kernel.build import ATTACH, BuildError, build
from retinue.agent.kubernetes.cluster import Cluster
from retinue.agent.kubernetes.core.pod_spec import attempt_of, fetch_id, image_reference, is_fetch
from retinue.agent.kubernetes.core.pod_state import eviction_of, identity_of
from retinue.agent.kubernetes.node_watch import NodeWatch
from retinue.agent.kubernetes.options import KubernetesOptions
from retinue.agent.kubernetes.pod_processes import confinement_of, environment_of, first_process_of
from retinue.agent.kubernetes.pod_watch import PodWatch
from retinue.agent.kubernetes.pods import Pods
from retinue.agent.kubernetes.runtime_images import RuntimeImages
from retinue.agent.process.entry import enter
from retinue.agent.runtime.attempt_records import Record
from retinue.agent.runtime.attempt_runtime import RETRY
from retinue.agent.runtime.contract import RuntimeStatus
from retinue.agent.runtime.disk_use import slot_bounds, upper_layer
from retinue.rpc.core.reasons import AgentConditionReason, AttemptReason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from retinue.agent.attempts import AttemptSpec
    from retinue.agent.docker.images import Image
    from retinue.agent.host.processes import Process
    from retinue.agent.inside.exec_session import ExecStream
    from retinue.agent.kubernetes.core.pod_state import PodState
    from retinue.agent.runtime.disk_use import DiskFootprint
    from retinue.agent.runtime.exit_reason import ExitEvidence
    from retinue.agent.runtime.options import Shared

_log = logging.getLogger(__name__)

OPEN_TIMEOUT = 5.0
"""Seconds that an agent's start waits for the API; native processes need none."""
UNFORESEEN = "it could not be started; the agent's log says more"


class KubernetesRuntime(ContainerRuntime[KubernetesOptions]):
    """Runs attempts as pods; a Runtime."""

    name = "kubernetes"
    directory = "kubernetes"
    condition = AgentConditionReason.KUBERNETES

    def __init__(self, options: KubernetesOptions, shared: Shared | None = None) -> None:
        """Touches nothing before `open`."""
        super().__init__(options, shared)
        self._cluster = Cluster(options.config, options.namespace)
        self._watched = PodWatch(self._cluster, options.agent_id, self._show)
        self._node = NodeWatch(options, self._store.changed, self._conditions)
        self._images = None if options.runtime is None else RuntimeImages(options.runtime)
        self._fetches: dict[str, asyncio.Task[None]] = {}
        self._unfetching: set[str] = set()
        self._pods = Pods(options, self._cluster, self._watched)
        self._under_way = asyncio.Semaphore(options.starts)
        self._calls = b""
        self._trouble = ""
        self._prepared = asyncio.Event()

    @property
    def statuses(self) -> tuple[RuntimeStatus, ...]:
        """Returns whether attempts can be created now."""
        available = self._prepared.is_set()
        return (RuntimeStatus(self.name, available, "" if available else self._trouble or self._watched.trouble),)

    @property
    def capacity(self) -> Mapping[str, int] | None:
        """Returns the amounts of slots that the cluster leaves on this node; None where it has not said so."""
        return self._node.amounts

    async def open(self, listener: Callable[[], None]) -> None:
        """Takes over what a former process of this agent left, as far as the node shows it;
        the rest once the API answers.
        """
        await self._take_over_records(listener)
        self._tasks.spawn(self._watched.run(self._conditions), "follow pods")
        self._tasks.spawn(self._node.run(), "follow the node")
        self._tasks.spawn(self._prepare_always(), "prepare pods")
        self._options.scratch_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        await self._look_after()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(OPEN_TIMEOUT):
                await self._prepared.wait()

    async def close(self) -> None:
        """Releases all resources; kernels continue to run."""
        await super().close()
        await self._cluster.close()
        if self._images is not None:
            await self._images.close()

    async def _prepare_always(self) -> None:
        """Makes the runtime ready to create, and takes over pods without a record; tries until both are done."""
        while True:
            try:
                self._calls = await asyncio.to_thread(build_filter)
                await self._pods.open()
                break
            except (KernelRuntimeError, BuildError, FilterError, OSError) as error:
                if str(error) != self._trouble:
                    _log.warning("pods cannot be created: %s", error)
                self._trouble = str(error)
                await asyncio.sleep(RETRY)
        self._trouble = ""
        await self._watched.listed.wait()
        with contextlib.suppress(TimeoutError):
            # What is offered before may be refused by kubelet.
            async with asyncio.timeout(OPEN_TIMEOUT):
                await self._node.settled.wait()
        known, pods = {record.id for record in self._store} - self._lost.keys(), self._watched.own().keys()
        fetching = {name for name in pods if is_fetch(name)}
        for name in fetching:
            # A former process was about to fetch an image; if that is still wanted, it is begun again.
            await self._pods.unfetch(name)
        for attempt_id in sorted(((pods - fetching) | self._lost.keys()) - known):
            await self._recover(attempt_id, self._watched.get(attempt_id))
        self._prepared.set()
        self._store.changed()

    async def _recover(self, attempt_id: str, pod: PodState | None) -> None:
        """Makes a record of an attempt that has none, from its pod."""
        _log.error("the record of attempt %s was lost and is rebuilt from its pod", attempt_id)
        state = None
        if pod is not None:
            state = _container_state(pod, await KERNELS.run(first_process_of, pod.uid))
        await self._rebuild(attempt_id, state)

    def _show(self, pod: PodState) -> None:
        """Logs what the cluster does to a pod that runs: its end itself is seen on the node. Removes what was to fetch
        an image for no attempt any more: it may come to be after its fetch was cancelled.
        """
        if is_fetch(pod.attempt_id) and self._prepared.is_set() and attempt_of(pod.attempt_id) not in self._fetches:
            self._remove_fetch(pod.attempt_id)
        if pod.attempt_id in self._store and (why := eviction_of(pod)):
            record = self._store.record(pod.attempt_id)
            if record.phase is Phase.RUNNING:
                _log.warning("the pod of attempt %s is being ended: %s", pod.attempt_id, why)

    async def _enter(self, record: Record) -> ExecStream:
        if record.init is None:
            raise NotRunningError(f"attempt {record.id} does not run")
        try:
            program = await asyncio.to_thread(build, self._options.cache_dir, ATTACH)
        except BuildError as error:
            raise KernelRuntimeError(str(error)) from error
        confinement = await asyncio.to_thread(confinement_of, record.init, self._calls)
        return await enter(program, record.init, confinement, environment_of)

    def _refusal(self, spec: AttemptSpec) -> tuple[str, str] | None:
        if not spec.image:
            return AttemptReason.IMAGE_UNSUPPORTED, "a pod needs an image"
        if spec.sftp is not None:
            return AttemptReason.ISOLATION_UNSUPPORTED, "an SFTP server is no pod"
        return None

    async def _create(self, spec: AttemptSpec, hosts: str) -> None:
        if not self._prepared.is_set():
            # Without the cluster, not even a record is made.
            raise KernelRuntimeError(self.statuses[0].message)
        asks = self._images is not None and spec.pull_policy is PullPolicy.ALWAYS and not spec.image_identity
        image = None if asks else await self._find(spec)
        fetched = self._images is None or image is not None or spec.pull_policy is PullPolicy.NEVER
        async with self._store.lock(spec.id):
            record = replace(Record.of(spec, self._options.boot_id), phase=Phase.CREATING if fetched else Phase.PULLING)
            if spec.id in self._store:
                # A former process of this agent was about to have its image fetched; nothing was started.
                if self._store.record(spec.id).phase is not Phase.WAITING:
                    return
                await self._store.write(record)
            # Lasting before anything is asked for: what is not recorded must not run.
            elif not await self._store.add(record):
                return
        start = self._start(spec, hosts, image) if fetched else self._fetch_and_start(spec, hosts)
        task = self._tasks.spawn(start, f"start {spec.id}")
        if not fetched:
            self._fetches[spec.id] = task
            task.add_done_callback(lambda _task: self._fetches.pop(spec.id, None))

    def _remove_fetch(self, key: str) -> None:
        """Has a pod removed that was to fetch an image."""
        if key not in self._unfetching:
            self._unfetching.add(key)
            self._tasks.spawn(self._unfetch(key), f"remove pod {key}")

    async def _unfetch(self, key: str) -> None:
        if not await self._pods.unfetch(key):
            # It may still come.
            self._unfetching.discard(key)

    async def _find(self, spec: AttemptSpec) -> Image | None:
        return None if self._images is None else await self._images.find(image_reference(spec))

    async def _cancel_create(self, attempt_id: str) -> None:
        if (fetch := self._fetches.pop(attempt_id, None)) is not None:
            fetch.cancel()
            self._remove_fetch(fetch_id(attempt_id))

    async def _fetch_and_start(self, spec: AttemptSpec, hosts: str) -> None:
        """Has the image of an attempt fetched and starts the attempt, unless it is stopped meanwhile."""
        image, failure = None, None
        try:
            image = await self._pods.fetch(spec, lambda: self._find(spec))
        except KernelStartError as error:
            failure = error
        except Exception:  # noqa: BLE001  # logged whole
            # No other task would end the attempt.
            _log.exception("the image of attempt %s cannot be fetched", spec.id)
            failure = KernelStartError(UNFORESEEN)
        # From here on, it is not cancelled any more, but given up.
        self._fetches.pop(spec.id, None)
        self._remove_fetch(fetch_id(spec.id))
        async with self._store.lock(spec.id):
            if self._store.record(spec.id).phase is not Phase.PULLING:
                return
            if failure is not None:
                await self._fail(spec.id, failure)
                return
            await self._store.note(replace(self._store.record(spec.id), phase=Phase.CREATING))
        await self._start(spec, hosts, image)

    async def _start(self, spec: AttemptSpec, hosts: str, image: Image | None) -> None:
        async with self._under_way, self._store.lock(spec.id):
            if self._store.record(spec.id).phase.ended:
                return
            failure: KernelStartError | None = None
            try:
                facts = ImageFacts(ImageIdentity())
                if image is None and self._images is not None:
                    raise not_present(spec.image)
                if image is None and spec.image_command:
                    why = "is not known here: the agent has no --kube-runtime to ask for it"
                    raise KernelStartError(f"the command of image {spec.image} {why}", AttemptReason.IMAGE_INVALID)
                if image is not None:
                    # It was just asked for.
                    spec = replace(spec, pull_policy=PullPolicy.MISSING)
                    spec, facts = fitted(spec, image)
                else:
                    # What the image sets is not known.
                    spec = replace(spec, environment=thread_variables(spec.slots) | dict(spec.environment))
                user = "" if image is None else image.user
                held = await self._pods.start(spec, hosts, self._store.directory(spec.id), user)
                record = replace(
                    self._store.record(spec.id),
                    phase=Phase.CREATED,
                    init=held.init,
                    memory_group=str(memory_group(held.init.pid) or ""),
                    image=replace(facts, identity=identity_of(held.pod.image_id)),
                    stop=spec.stop.code,
                )
                # A later agent could not reach a kernel that is not recorded.
                await self._store.write(record)
            except ImageError as error:
                failure = KernelStartError(str(error), error.reason)
            except KernelStartError as error:
                failure = KernelStartError(f"it could not be started: {error}", error.reason)
            except OSError as error:
                failure = KernelStartError(f"it could not be started: {in_words(error)}")
            except Exception:  # noqa: BLE001  # logged whole
                # It would be held in its phase: no other task would end it.
                _log.exception("attempt %s could not be started", spec.id)
                failure = KernelStartError(UNFORESEEN)
            if failure is not None:
                await self._fail(spec.id, failure)
            else:
                self._take_over(record)

    async def stop(self, attempt_id: str, grace: float) -> None:
        """Asks the command to end; after `grace` seconds it is due to be killed.
        One that is created or held is due at once.
        """
        self._give_up(attempt_id)
        await super().stop(attempt_id, grace)

    async def kill(self, attempt_id: str) -> None:
        """Ends all processes of the attempt."""
        self._give_up(attempt_id)
        await super().kill(attempt_id)

    def _give_up(self, attempt_id: str) -> None:
        # Before the lock: one that is created has it.
        if (record := self._store.record(attempt_id)).phase is Phase.CREATING:
            self._store.show(replace(record, phase=Phase.STOPPING))
            self._pods.give_up(attempt_id)

    async def _finish(self, attempt_id: str, failure: KernelStartError | None = None) -> None:
        await self._look_at_memory(attempt_id)
        await super()._finish(attempt_id, failure)

    async def _end(self, record: Record, init: Process | None) -> ExitEvidence | None:
        return await self._pods.end(record, init, self._store.directory(record.id))

    async def _empty(self, attempt_id: str) -> None:
        await self._pods.empty(attempt_id)

    async def _remove(self, attempt_id: str) -> None:
        self._unfetching.discard(fetch_id(attempt_id))
        # What an image says is recorded with the container that waits at its start barrier.
        await self._pods.remove(attempt_id, held=self._store.record(attempt_id).image is not None)

    async def footprints(self) -> Mapping[str, DiskFootprint]:
        """Returns the disk footprints of running attempts, by id: work directory, and files written over the image."""
        return {
            record.id: await asyncio.to_thread(
                footprint_of,
                record,
                slot_bounds(record.disk, self._options.work_files),
                self._pods.work(record.id),
                await asyncio.to_thread(upper_layer, record.init.pid),
                Written(),
            )
            for record in self._store
            if record.init is not None
        }


def _container_state(pod: PodState, init: Process | None) -> ContainerState:
    """Returns a pod's container as engines describe theirs."""
    ended = pod.ended
    return ContainerState(
        attempt_id=pod.attempt_id,
        agent_id=pod.agent_id,
        fresh=init is None and ended is None,
        running=init is not None,
        pid=0 if init is None else init.pid,
        exit_code=255 if ended is None or ended.exit_code is None else ended.exit_code,
        out_of_memory=False,
        error="",
        end_time=None if ended is None else ended.time or time.time(),
    )
