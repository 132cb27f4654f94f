"""What a cluster says of a pod, and what becomes of the attempt: nothing waits for ever."""

from __future__ import annotations

import pytest
from lightkube.codecs import load_all_yaml
from lightkube.resources.core_v1 import Pod

from retinue.agent.attempts import ImageIdentity
from retinue.agent.kubernetes.core.pod_state import (
    Ended,
    PodState,
    eviction_of,
    failure_of,
    identity_of,
    parse_pod,
)

PENDING = PodState("retinue-k.1", "uid", "a", "k.1", "Pending")


def state(**values: object) -> PodState:
    return PodState("retinue-k.1", "uid", "a", "k.1", **({"phase": "Pending"} | values))  # type: ignore[arg-type]


def test_a_pod_is_read() -> None:
    pod = next(
        iter(
            load_all_yaml(
                """
apiVersion: v1
kind: Pod
metadata: {name: retinue-k.1, uid: u, labels: {retinue.io/agent: a, retinue.io/attempt: k.1}, deletionTimestamp: 2026-01-01T00:00:00Z}
spec: {containers: [{name: kernel}]}
status:
  phase: Failed
  conditions: [{type: DisruptionTarget, status: "True", reason: EvictionByEvictionAPI, message: evicting}]
  containerStatuses:
  - {name: kernel, image: i, imageID: "r@sha256:1", ready: false, restartCount: 0,
     state: {terminated: {exitCode: 7, reason: Error, finishedAt: 2026-01-01T00:00:01Z}}}
"""
            )
        )
    )
    assert isinstance(pod, Pod)
    found = parse_pod(pod)
    assert (found.agent_id, found.attempt_id, found.deleted, found.terminal) == ("a", "k.1", True, True)
    assert found.disruption == "EvictionByEvictionAPI: evicting"
    assert found.ended is not None
    assert (found.ended.exit_code, found.ended.time) == (7, 1767225601.0)
    assert identity_of(found.image_id) == ImageIdentity("sha256:1", "")


def test_a_pod_without_a_uid_is_refused() -> None:
    with pytest.raises(ValueError, match="uid"):
        parse_pod(Pod())


@pytest.mark.parametrize(
    ("shown", "reason"),
    [
        (state(waiting="InvalidImageName", waiting_message="couldn't parse"), "IMAGE_INVALID"),
        (state(waiting="ErrImageNeverPull", waiting_message="not present"), "IMAGE_NOT_PRESENT"),
        (state(waiting="ImagePullBackOff", waiting_message="manifest unknown"), "IMAGE_NOT_FOUND"),
        (state(waiting="ImagePullBackOff", waiting_message="401 unauthorized"), "IMAGE_DENIED"),
        (state(waiting="ErrImagePull", waiting_message="mismatched image rootfs and manifest layers"), "IMAGE_INVALID"),
        (state(waiting="ImagePullBackOff", waiting_message="dial tcp: refused"), "IMAGE_PULL_FAILED"),
        (state(waiting="CreateContainerConfigError", waiting_message="no secret"), "START_FAILED"),
        (state(phase="Failed", reason="OutOfcpu", message="Node didn't have enough resource"), "NODE_REFUSED"),
        (state(phase="Failed", reason="UnexpectedAdmissionError", message="device"), "NODE_REFUSED"),
        (state(phase="Failed", ended=Ended(128, "StartError", "exec: no such file", None)), "START_FAILED"),
        (state(deleted=True), "EVICTED"),
    ],
)
def test_what_cannot_start_fails_in_words(shown: PodState, reason: str) -> None:
    failure = failure_of(shown, "image:1")
    assert failure is not None
    assert failure.reason == reason
    for words in (shown.waiting_message, shown.message):
        assert words in (failure.said or failure.message)
    # What a registry says is for the log.
    assert failure.said in {"", shown.waiting_message}
    assert not failure.said or failure.said not in failure.message


@pytest.mark.parametrize("waiting", ["", "ContainerCreating", "PodInitializing", "ErrImagePull"])
def test_what_may_still_start_is_waited_for(waiting: str) -> None:
    assert failure_of(state(waiting=waiting), "image:1") is None


@pytest.mark.parametrize(
    ("shown", "why"),
    [
        (state(phase="Failed", reason="Evicted", message="The node was low on resource: memory."), "Evicted: The node"),
        (state(phase="Failed", disruption="TerminationByKubelet: pressure"), "TerminationByKubelet"),
        (state(phase="Running", deleted=True), "deleted"),
        (state(phase="Running", deleted=True, disruption="PreemptionByScheduler"), "PreemptionByScheduler"),
    ],
)
def test_an_eviction_is_distinguished_from_an_end(shown: PodState, why: str) -> None:
    assert why in eviction_of(shown)


@pytest.mark.parametrize("phase", ["Running", "Succeeded", "Failed"])
def test_an_end_of_its_own_is_no_eviction(phase: str) -> None:
    assert not eviction_of(state(phase=phase))


@pytest.mark.parametrize(
    ("image_id", "expected"),
    [
        ("docker.io/library/busybox@sha256:1", ImageIdentity("sha256:1", "")),
        ("sha256:2", ImageIdentity("", "sha256:2")),
        ("docker://sha256:2", ImageIdentity("", "sha256:2")),
        ("docker-pullable://busybox@sha256:1", ImageIdentity("sha256:1", "")),
        ("", ImageIdentity()),
    ],
)
def test_an_image_has_the_identity_that_the_cluster_says(image_id: str, expected: ImageIdentity) -> None:
    assert identity_of(image_id) == expected
