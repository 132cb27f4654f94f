"""What this node has for kernels, followed by the cluster's view of the node and of all pods on it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from lightkube.resources.core_v1 import Node, Pod

from retinue.agent.kubernetes.cluster import Cluster, ClusterError, ClusterUnavailableError, CompactedError
from retinue.agent.kubernetes.core.node_capacity import full_disk, is_foreign, offered, requests_of
from retinue.rpc.core.reasons import AgentConditionReason, AgentConditionType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from retinue.agent.conditions import Conditions
    from retinue.agent.kubernetes.options import KubernetesOptions

_log = logging.getLogger(__name__)

LIST_INTERVAL = 600.0
"""Seconds after which all is listed again: a watch may stand still without an error."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds before the API is asked again after an error: the first time, and at the most."""
CHANGE_INTERVAL = 10.0
"""Seconds between two changes of what is offered, at the least: each begins the stream to the manager again."""
_Kind = TypeVar("_Kind", Pod, Node)


class NodeWatch:
    """The capacity of one node. Methods belong on one event loop."""

    def __init__(self, options: KubernetesOptions, changed: Callable[[], None], conditions: Conditions) -> None:
        """Asks for nothing before `run`; `changed` is called when `amounts` has changed.

        A disk that kubelet finds too full, and says so of the node, is a condition.
        """
        self._options = options
        self._conditions = conditions
        self._changed = changed
        self._allocatable: Mapping[str, str] | None = None
        self._foreign: dict[str, Mapping[str, int]] | None = None
        self._amounts: Mapping[str, int] | None = None
        self._change_due: asyncio.TimerHandle | None = None
        self._changed_at = float("-inf")
        self.settled = asyncio.Event()
        """Set once the capacity is known, or the cluster has refused to say it."""

    @property
    def amounts(self) -> Mapping[str, int] | None:
        """Returns the amounts of slots that the node offers; None while the cluster has not said."""
        return self._amounts

    async def run(self) -> None:
        """Follows the node and its pods until it is cancelled."""
        name = self._options.node_name
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow(Node, {"metadata.name": name}, self._take_nodes, self._take_node))
                group.create_task(self._follow(Pod, {"spec.nodeName": name}, self._take_pods, self._take_pod))
        finally:
            if self._change_due is not None:
                self._change_due.cancel()

    async def _follow(
        self,
        kind: type[_Kind],
        fields: Mapping[str, str],
        take_all: Callable[[list[_Kind]], None],
        take: Callable[[_Kind, bool], None],
    ) -> None:
        # Each has a connection of its own: what is wrong with one watch holds back no other.
        cluster, pause, trouble = Cluster(self._options.config, self._options.namespace), FIRST_PAUSE, ""
        try:
            while True:
                try:
                    listed, version = await cluster.list_all(kind, fields)
                    take_all(listed)
                    self._settle()
                    trouble, pause = "", FIRST_PAUSE
                    watched = cluster.watch_all(kind, fields, version, LIST_INTERVAL)
                    async with contextlib.aclosing(watched) as changes:
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(LIST_INTERVAL):
                                async for item, gone in changes:
                                    take(item, gone)
                                    self._settle()
                except CompactedError:
                    await asyncio.sleep(FIRST_PAUSE)
                except ClusterError as error:
                    if str(error) != trouble:
                        _log.warning("the capacity of node %s cannot be followed: %s", self._options.node_name, error)
                    trouble = str(error)
                    asked = 0.0
                    if isinstance(error, ClusterUnavailableError):
                        asked = error.pause
                    else:
                        # It is not permitted, say: the node's own processors and memory have to do.
                        self.settled.set()
                    await asyncio.sleep(max(pause, asked))
                    pause = min(2 * pause, LONGEST_PAUSE)
        finally:
            await cluster.close()

    def _take_conditions(self, node: Node) -> None:
        found = () if node.status is None else node.status.conditions or ()
        message = full_disk([(each.type, each.status, each.message or "") for each in found])
        self._conditions.update(AgentConditionType.DISK_FULL, message, AgentConditionReason.KUBERNETES)

    def _take_nodes(self, nodes: list[Node]) -> None:
        for node in nodes:
            self._take_node(node, gone=False)

    def _take_node(self, node: Node, gone: bool) -> None:
        if not gone:
            self._take_conditions(node)
        if not gone and node.status is not None and node.status.allocatable:
            self._allocatable = MappingProxyType(dict(node.status.allocatable))

    def _take_pods(self, pods: list[Pod]) -> None:
        self._foreign = {}
        for pod in pods:
            self._take_pod(pod, gone=False)

    def _take_pod(self, pod: Pod, gone: bool) -> None:
        if self._foreign is None or pod.metadata is None or not pod.metadata.uid:
            return
        self._foreign.pop(pod.metadata.uid, None)
        if not gone and is_foreign(pod, self._options.agent_id, self._options.namespace):
            try:
                self._foreign[pod.metadata.uid] = requests_of(pod)
            except ValueError as error:
                _log.warning(
                    "what pod %s/%s requests is not counted: %s", pod.metadata.namespace, pod.metadata.name, error
                )

    def _settle(self) -> None:
        if self._allocatable is None or self._foreign is None or self._change_due is not None:
            return
        wait = self._changed_at + CHANGE_INTERVAL - time.monotonic()
        if self._amounts is None or wait <= 0:
            self._offer()
        else:
            self._change_due = asyncio.get_running_loop().call_later(wait, self._offer)

    def _offer(self) -> None:
        self._change_due = None
        assert self._allocatable is not None  # noqa: S101  # asked by `_settle`
        assert self._foreign is not None  # noqa: S101  # asked by `_settle`
        try:
            amounts = offered(self._allocatable, self._foreign.values())
        except ValueError as error:
            _log.warning("the allocatable of node %s cannot be read: %s", self._options.node_name, error)
            return
        self.settled.set()
        if amounts != self._amounts:
            self._amounts, self._changed_at = MappingProxyType(amounts), time.monotonic()
            self._changed()
