"""Reads what a cluster says of a pod. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import msgspec
from lightkube.resources.core_v1 import Pod

from retinue.agent.attempts import ImageIdentity
from retinue.agent.docker.fetch_failures import failure_of as fetch_failure_of
from retinue.agent.kubernetes.core.pod_spec import AGENT_LABEL, ATTEMPT_LABEL
from retinue.agent.runtime.bwrap_status import known_exit_code
from retinue.rpc.core.reasons import AttemptReason

if TYPE_CHECKING:
    from datetime import datetime

    from lightkube.generic_resource import GenericNamespacedResource
    from lightkube.models.core_v1 import ContainerStateTerminated

FAILED, SUCCEEDED = "Failed", "Succeeded"
"""Phases of pods whose containers have ended for good."""
OUT_OF_MEMORY = "OOMKilled"
MAX_MESSAGE = 2000
"""Characters of the cluster's own words that are kept."""
UNREADABLE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    msgspec.MsgspecError,
)
"""Raised for an answer of the API that is not what it should be."""
_DISRUPTION = "DisruptionTarget"
_IMAGE_INVALID, _NEVER_PULLED = "InvalidImageName", "ErrImageNeverPull"
# An image is tried twice: the second time, the cluster backs off.
_IMAGE_FAILED = frozenset({"ImagePullBackOff", "RegistryUnavailable", "SignatureValidationFailed"})
_PULL_FAILED = "ErrImagePull"
_START_FAILED = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "ImageInspectError"}
)


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a pod's container: exit code, the cluster's word for why, and its time in seconds since the epoch."""

    exit_code: int | None
    reason: str
    message: str
    time: float | None


@dataclass(frozen=True, slots=True)
class PodState:
    """A pod as the cluster shows it. `agent_id` and `attempt_id` are its labels;
    `waiting` is why its container does not run yet.

    `deleted` says that someone has asked for its end. `disruption` is why the cluster ends it, empty unless it does.
    """

    name: str
    uid: str
    agent_id: str
    attempt_id: str
    phase: str = ""
    reason: str = ""
    message: str = ""
    waiting: str = ""
    waiting_message: str = ""
    ended: Ended | None = None
    deleted: bool = False
    disruption: str = ""
    image_id: str = ""

    @property
    def ran(self) -> bool:
        """Returns whether its container was started: its image is there as its registry has it."""
        return self.ended is not None or self.terminal

    @property
    def terminal(self) -> bool:
        """Returns whether the cluster says that nothing of it runs any more."""
        return self.phase in {FAILED, SUCCEEDED}


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a pod does not come to its start barrier, as an UPPER_SNAKE word and in words;
    `said` are the cluster's own, where those are not for users to read.
    """

    reason: str
    message: str
    said: str = ""


def read_pod(raw: GenericNamespacedResource) -> PodState:
    """Reads a pod from its JSON, and only its identity when the rest makes no sense;
    raises ValueError when it has none.
    """
    try:
        return parse_pod(cast("Pod", Pod.from_dict(dict(raw))))
    except UNREADABLE:
        return _identity_only(raw)


def _identity_only(raw: GenericNamespacedResource) -> PodState:
    metadata = raw.get("metadata")
    if not isinstance(metadata, dict):
        raise ValueError("a pod without metadata")
    name, uid, labels = metadata.get("name"), metadata.get("uid"), metadata.get("labels")
    if not isinstance(name, str) or not isinstance(uid, str) or not name or not uid:
        raise ValueError("a pod without a name or uid")
    labels = labels if isinstance(labels, dict) else {}
    agent_id, attempt_id = (str(labels.get(label, "")) for label in (AGENT_LABEL, ATTEMPT_LABEL))
    return PodState(name, uid, agent_id, attempt_id, deleted=metadata.get("deletionTimestamp") is not None)


def parse_pod(pod: Pod) -> PodState:
    """Reads a pod; raises ValueError when it has no name or uid."""
    metadata, status = pod.metadata, pod.status
    if metadata is None or not metadata.name or not metadata.uid:
        raise ValueError("a pod without a name or uid")
    labels = metadata.labels or {}
    disruptions = [
        f"{condition.reason or _DISRUPTION}: {condition.message or ''}".rstrip(": ")
        for condition in (status.conditions if status is not None else None) or ()
        if condition.type == _DISRUPTION and condition.status == "True"
    ]
    found = PodState(
        metadata.name,
        metadata.uid,
        str(labels.get(AGENT_LABEL, "")),
        str(labels.get(ATTEMPT_LABEL, "")),
        deleted=metadata.deletionTimestamp is not None,
        disruption=disruptions[0][:MAX_MESSAGE] if disruptions else "",
    )
    if status is None:
        return found
    containers = status.containerStatuses or []
    state = containers[0].state if containers else None
    waiting = state.waiting if state is not None else None
    terminated = state.terminated if state is not None else None
    return PodState(
        found.name,
        found.uid,
        found.agent_id,
        found.attempt_id,
        phase=status.phase or "",
        reason=status.reason or "",
        message=(status.message or "")[:MAX_MESSAGE],
        waiting=(waiting.reason or "") if waiting is not None else "",
        waiting_message=((waiting.message or "") if waiting is not None else "")[:MAX_MESSAGE],
        ended=None if terminated is None else _ended(terminated),
        deleted=found.deleted,
        disruption=found.disruption,
        image_id=containers[0].imageID or "" if containers else "",
    )


def _ended(terminated: ContainerStateTerminated) -> Ended:
    when: datetime | None = terminated.finishedAt
    return Ended(
        known_exit_code(terminated.exitCode),
        terminated.reason or "",
        (terminated.message or "")[:MAX_MESSAGE],
        None if when is None else when.timestamp(),
    )


def failure_of(pod: PodState, image: str) -> Failure | None:
    """Returns why a pod that was created does not come to its start barrier; None while it still may."""
    if pod.ended is not None:
        words = pod.ended.message or f"its first process ended with {pod.ended.exit_code}"
        return Failure(AttemptReason.START_FAILED, f"{pod.ended.reason}: {words}" if pod.ended.reason else words)
    if pod.phase == FAILED:
        # The node's kubelet has not admitted it: others were faster.
        return Failure(AttemptReason.NODE_REFUSED, f"the node refused it: {pod.reason}: {pod.message}".rstrip(": "))
    if pod.deleted:
        return Failure(AttemptReason.EVICTED, pod.disruption or "its pod was deleted")
    return _failure_of_waiting(pod.waiting, pod.waiting_message, image)


def _failure_of_waiting(word: str, message: str, image: str) -> Failure | None:
    if word == _NEVER_PULLED:
        words = f"image {image} is not on this node, and its pull policy is never"
        return Failure(AttemptReason.IMAGE_NOT_PRESENT, words, message)
    if word == _IMAGE_INVALID:
        return Failure(AttemptReason.IMAGE_INVALID, f"image {image} cannot be used: {message or word}")
    failure = fetch_failure_of(message)
    # The first time already, if another try changes nothing.
    if word in _IMAGE_FAILED or (word == _PULL_FAILED and not failure.may_pass):
        return Failure(failure.reason, f"image {image} {failure.words}", message)
    return Failure(AttemptReason.START_FAILED, f"{word}: {message}") if word in _START_FAILED else None


def eviction_of(pod: PodState) -> str:
    """Returns why the cluster or another client has ended a pod, in words;
    empty when only its command or the agent has.
    """
    if pod.disruption:
        return pod.disruption
    if pod.phase == FAILED and pod.reason:
        # Node pressure, a shutdown of the node: kubelet's own words.
        return f"{pod.reason}: {pod.message}".rstrip(": ")
    return "its pod was deleted" if pod.deleted else ""


def identity_of(image_id: str) -> ImageIdentity:
    """Returns the identity of an image by what the cluster calls it: `REPOSITORY@DIGEST`,
    or the digest of its configuration.
    """
    repository, separator, digest = image_id.rpartition("@")
    if separator and repository:
        return ImageIdentity(digest, "")
    name = image_id.rpartition("://")[2]
    return ImageIdentity("", name) if name.startswith("sha256:") else ImageIdentity()
