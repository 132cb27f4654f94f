"""The starts of container kernels: the image is fetched if need be, then a container is held at its start barrier."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from retinue.agent.attempts import Phase
from retinue.agent.docker.engine import EngineError
from retinue.agent.docker.image_defaults import fitted
from retinue.agent.docker.images import ImageError
from retinue.agent.errors import KernelStartError, in_words
from retinue.agent.host.cgroups import memory_group
from retinue.agent.resources.core.allocation import AllocationError
from retinue.agent.runtime.attempt_records import Record
from retinue.rpc.core.reasons import AttemptReason

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from retinue.agent.attempts import AttemptSpec, Layer
    from retinue.agent.docker.containers import DockerKernels
    from retinue.agent.docker.images import Image, Images
    from retinue.agent.docker.options import DockerOptions
    from retinue.agent.resources.core.holdings import Holdings
    from retinue.agent.runtime.attempt_store import AttemptStore
    from retinue.agent.runtime.tasks import Tasks

_log = logging.getLogger(__name__)

UNFORESEEN = "it could not be started; the agent's log says more"


class Starts:
    """Starts one agent's containers, a bounded number at a time. Methods belong on one event loop."""

    def __init__(  # noqa: PLR0917  # what a start touches
        self,
        options: DockerOptions,
        kernels: DockerKernels,
        store: AttemptStore,
        images: Images,
        holdings: Holdings,
        tasks: Tasks,
        *,
        created: Callable[[Record], None],
        fail: Callable[[str, KernelStartError], Awaitable[None]],
    ) -> None:
        """`created` is called with each attempt that is held, `fail` with each that cannot be created,
        its lock held.
        """
        self._boot_id = options.boot_id
        self._kernels = kernels
        self._store = store
        self._images = images
        self._holdings = holdings
        self._tasks = tasks
        self._created = created
        self._fail = fail
        self._fetches: dict[str, asyncio.Task[None]] = {}
        self._under_way = asyncio.Semaphore(options.starts)

    async def prepare(self, spec: AttemptSpec, hosts: str) -> None:
        """Starts an attempt, or returns at once when its image has to be fetched: it is PULLING then,
        and continues by itself.
        """
        image = await self._images.find(spec.image, spec.image_identity, spec.pull_policy)
        async with self._store.lock(spec.id):
            if spec.id in self._store:
                # A former process of this agent was about to fetch its image; nothing was started.
                if (record := self._store.record(spec.id)).phase is not Phase.WAITING:
                    return
                self._store.show(replace(record, phase=Phase.PULLING))
            else:
                record = replace(Record.of(spec, self._boot_id), phase=Phase.PULLING)
                if not await self._store.add(record, lasting=image is None):
                    return
            if image is not None:
                await self._start(spec, hosts, image)
                return
        task = self._tasks.spawn(self._fetch_and_start(spec, hosts), f"fetch the image of {spec.id}")
        self._fetches[spec.id] = task
        task.add_done_callback(lambda _task: self._fetches.pop(spec.id, None))

    def cancel_fetch(self, attempt_id: str) -> None:
        """Waits no more for the image of an attempt."""
        if (fetch := self._fetches.get(attempt_id)) is not None:
            fetch.cancel()

    async def _fetch_and_start(self, spec: AttemptSpec, hosts: str) -> None:
        """Fetches the image of an attempt and starts the attempt, unless it is stopped meanwhile."""

        def report(layers: tuple[Layer, ...]) -> None:
            self._store.layers[spec.id] = layers
            self._store.changed()

        failure: KernelStartError | None = None
        try:
            image = await self._images.fetch(spec.image, spec.image_identity, report, spec.pull_policy)
        except ImageError as error:
            failure = KernelStartError(str(error), error.reason)
        except EngineError as error:
            failure = KernelStartError(str(error))
        except Exception:  # noqa: BLE001  # logged whole
            # No other task would end the attempt.
            _log.exception("the image of attempt %s cannot be fetched", spec.id)
            failure = KernelStartError(UNFORESEEN)
        finally:
            self._store.layers.pop(spec.id, None)
        async with self._store.lock(spec.id):
            if self._store.record(spec.id).phase is not Phase.PULLING:
                return
            if failure is not None:
                await self._fail(spec.id, failure)
            else:
                await self._start(spec, hosts, image)

    async def _start(self, spec: AttemptSpec, hosts: str, image: Image) -> None:
        """Starts an attempt whose image is on the node; its lock is held."""
        try:
            spec, facts = fitted(spec, image)
            # From here on, another agent process must not start it again.
            holding = self._holdings.take(spec.id, spec.slots)
            record = replace(
                self._store.record(spec.id),
                phase=Phase.CREATING,
                image=facts,
                stop=spec.stop.code,
                cores=holding.cores,
                gpus=holding.gpus,
            )
            await self._store.write(record)
            async with self._under_way:
                directory = self._store.directory(spec.id)
                # The disk is written while the engine works: nothing is released before, and after a crash of the node
                # the container's own name and labels say that it was there.
                lasting = asyncio.ensure_future(self._store.make_lasting(spec.id))
                try:
                    init = await self._kernels.start(spec, hosts, image, holding, directory)
                finally:
                    await lasting
            record = replace(record, phase=Phase.CREATED, init=init, memory_group=str(memory_group(init.pid) or ""))
            # A later agent could not reach a kernel that is not recorded.
            await self._store.write(record)
        except ImageError as error:
            await self._fail(spec.id, KernelStartError(str(error), error.reason))
        except AllocationError as error:
            await self._fail(spec.id, KernelStartError(str(error), AttemptReason.DEVICE_MISSING))
        except (KernelStartError, EngineError, OSError) as error:
            reason = error.reason if isinstance(error, KernelStartError) else ""
            await self._fail(spec.id, KernelStartError(f"it could not be started: {in_words(error)}", reason))
        except Exception:  # noqa: BLE001  # logged whole
            # It would be held in its phase: no other task would end it.
            _log.exception("attempt %s could not be started", spec.id)
            await self._fail(spec.id, KernelStartError(UNFORESEEN))
        else:
            self._created(record)
