"""The pods of one agent as the cluster shows them, by one list and one watch that continues from it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING

from retinue.agent.kubernetes.cluster import ClusterError, ClusterUnavailableError, CompactedError
from retinue.agent.kubernetes.core.pod_spec import pod_name
from retinue.rpc.core.reasons import AgentConditionType

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from retinue.agent.conditions import Conditions
    from retinue.agent.kubernetes.cluster import Cluster
    from retinue.agent.kubernetes.core.pod_state import PodState

_log = logging.getLogger(__name__)

LIST_INTERVAL = 300.0
"""Seconds after which all is listed again: a watch may stand still without an error."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds before the API is asked again after an error: the first time, and at the most."""
LASTING = 60.0
"""Seconds after which a watch counts as one that works."""
UNRESPONSIVE_AFTER = 15.0
"""Seconds without an answer until that is reported."""


class PodWatch:
    """What is known of one agent's pods, by id of attempt. Methods belong on one event loop."""

    def __init__(
        self,
        cluster: Cluster,
        agent_id: str,
        changed: Callable[[PodState], None],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Asks for nothing before `run`; `changed` is called with each pod that is new or has changed."""
        self._clock = clock
        self._sleep = sleep
        self._cluster = cluster
        self._agent_id = agent_id
        self._changed = changed
        self._pods: dict[str, PodState] = {}
        self._waiters: set[asyncio.Event] = set()
        self.listed = asyncio.Event()
        """Set once the API has answered."""
        self.trouble = "the Kubernetes API was not asked yet"

    def get(self, attempt_id: str) -> PodState | None:
        """Returns the attempt's own pod as it was shown last; None when none is known."""
        return self._pods.get(attempt_id)

    def own(self) -> dict[str, PodState]:
        """Returns the pods that this agent has made, by id of attempt."""
        return dict(self._pods)

    async def wait(self, seconds: float) -> None:
        """Returns at the next change, or after so many seconds."""
        event = asyncio.Event()
        self._waiters.add(event)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await event.wait()
        finally:
            self._waiters.discard(event)

    def note(self, pod: PodState) -> None:
        """Takes up what the API has answered about a pod, unless it is followed already:
        an answer may come after what happened since.
        """
        known = self._pods.get(pod.attempt_id)
        if known is None or known.uid != pod.uid:
            self._take(pod, gone=False)

    async def run(self, conditions: Conditions) -> None:
        """Follows the pods until it is cancelled; says in `conditions` when the API does not answer for long."""
        pause, answered = FIRST_PAUSE, self._clock()
        while True:
            followed = None
            try:
                version = await self._list()
                answered, self.trouble = self._clock(), ""
                conditions.clear(AgentConditionType.ENGINE_UNRESPONSIVE)
                self.listed.set()
                followed = self._clock()
                await self._follow(version)
                pause = FIRST_PAUSE
                continue
            except ClusterError as error:
                if followed is not None and self._clock() - followed >= LASTING:
                    pause = FIRST_PAUSE
                if not isinstance(error, CompactedError):
                    self._note_trouble(error, answered if followed is None else self._clock(), conditions)
                asked = error.pause if isinstance(error, ClusterUnavailableError) else 0.0
            # With a list that works and a watch that does not, the API is called up to three times.
            await self._sleep(max(pause if followed is None else 3 * pause, asked))
            pause = min(2 * pause, LONGEST_PAUSE)

    def _note_trouble(self, error: ClusterError, answered: float, conditions: Conditions) -> None:
        if str(error) != self.trouble:
            _log.warning("the pods of this node cannot be followed: %s", error)
        self.trouble = str(error)
        if self._clock() - answered >= UNRESPONSIVE_AFTER:
            conditions.set(AgentConditionType.ENGINE_UNRESPONSIVE, self.trouble)

    async def _list(self) -> str:
        pods, version = await self._cluster.pods(self._agent_id)
        shown = {pod.attempt_id: pod for pod in pods if self._is_own(pod)}
        for gone in self._pods.keys() - shown.keys():
            del self._pods[gone]
        for pod in shown.values():
            self._take(pod, gone=False)
        self._notify()
        return version

    async def _follow(self, version: str) -> None:
        """Takes up changes until it is time to list again. Raises ClusterError."""
        async with contextlib.aclosing(self._cluster.watch(self._agent_id, version)) as changes:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LIST_INTERVAL):
                    async for pod, gone in changes:
                        self._take(pod, gone=gone)

    def _take(self, pod: PodState, *, gone: bool) -> None:
        if not self._is_own(pod):
            return
        if gone:
            if (known := self._pods.get(pod.attempt_id)) is not None and known.uid == pod.uid:
                del self._pods[pod.attempt_id]
        elif self._pods.get(pod.attempt_id) != pod:
            self._pods[pod.attempt_id] = pod
            self._changed(pod)
        self._notify()

    def _is_own(self, pod: PodState) -> bool:
        """Returns whether this agent has made it: others can set labels, too."""
        return pod.agent_id == self._agent_id and pod.name == pod_name(pod.attempt_id)

    def _notify(self) -> None:
        for waiter in self._waiters:
            waiter.set()
