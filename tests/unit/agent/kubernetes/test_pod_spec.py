"""The pod of an attempt: what bars a second run, the cluster's network and account, and more than its share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from retinue.agent.attempts import AttemptSpec, ImageIdentity
from retinue.agent.docker.core.container_spec import INSIDE, Files
from retinue.agent.kubernetes.core.pod_spec import (
    FINALIZER,
    SHARED,
    TEMPORARY,
    PodPlan,
    attempt_of,
    body,
    fetch_body,
    fetch_id,
    ids_of,
    image_reference,
    is_fetch,
    literal,
    resources,
)

FILES = Files(
    *(
        Path("/node") / name
        for name in ["init", "attach", "filter", "barrier", "output", "output.stdout", "hosts", "resolver", "home"]
    )
)
SPEC = AttemptSpec(
    "k.1",
    "s",
    "k",
    1,
    "main1",
    image="registry.test/team/image:1",
    command=("sh", "-c", "echo $(HOME)"),
    environment={"A": "$(B) $$"},
    slots={"cpu": 1500, "mem": 256 << 20, "cuda.device": 2000},
)
PLAN = PodPlan("a", "n1", SPEC, SPEC.image, 70_000, 60_000, FILES, ("server",), "low", ("secret",))


def test_nothing_restarts_a_pod_and_it_reaches_no_cluster() -> None:
    pod = body(PLAN)
    assert pod.metadata is not None
    assert pod.spec is not None
    assert (pod.metadata.name, pod.metadata.finalizers) == ("retinue-k.1", [FINALIZER])
    assert (pod.spec.restartPolicy, pod.spec.nodeName) == ("Never", "n1")
    assert pod.spec.automountServiceAccountToken is False
    assert pod.spec.enableServiceLinks is False
    assert [pod.spec.hostNetwork, pod.spec.hostPID, pod.spec.hostIPC] == [None, None, None]
    # Without a time of its own, a node that is away keeps its pods.
    assert {(entry.key, entry.tolerationSeconds) for entry in pod.spec.tolerations or ()} == {
        ("node.kubernetes.io/not-ready", None),
        ("node.kubernetes.io/unreachable", None),
    }


def test_a_pod_has_no_rights() -> None:
    spec = body(PLAN).spec
    assert spec is not None
    assert spec.securityContext is not None
    assert (spec.securityContext.runAsUser, spec.securityContext.runAsNonRoot) == (70_000, True)
    rights = spec.containers[0].securityContext
    assert rights is not None
    assert rights.capabilities is not None
    assert (rights.allowPrivilegeEscalation, rights.privileged, rights.capabilities.drop) == (False, False, ["ALL"])
    writable = {mount.mountPath for mount in spec.containers[0].volumeMounts or () if not mount.readOnly}
    pipes = {"/run/kernel/output", "/run/kernel/output.stdout"}
    assert writable == {"/run/kernel/barrier", *pipes, "/home/work", TEMPORARY, SHARED}


def test_words_stay_as_they_are() -> None:
    spec = body(PLAN).spec
    assert spec is not None
    container = spec.containers[0]
    # The cluster replaces `$(NAME)`, and `$$` by `$`.
    assert (container.command or ())[-3:] == ["sh", "-c", "echo $$(HOME)"]
    assert {entry.name: entry.value for entry in container.env or ()}["A"] == "$$(B) $$$$"
    assert literal("$") == "$$"


def test_amounts_are_requests_and_limits() -> None:
    spec = body(PLAN).spec
    assert spec is not None
    amounts = spec.containers[0].resources
    assert amounts is not None
    assert amounts.limits == amounts.requests == {"cpu": "1500m", "memory": str(256 << 20), "nvidia.com/gpu": "2"}
    assert resources({}) == {}
    assert resources({"disk": 20 << 30}) == {"ephemeral-storage": str(20 << 30)}


@pytest.mark.parametrize(
    ("image", "digest", "expected"),
    [
        ("busybox", "", "busybox"),
        ("busybox:1", "sha256:a", "busybox@sha256:a"),
        ("registry.test:5000/team/image", "sha256:a", "registry.test:5000/team/image@sha256:a"),
        ("registry.test:5000/team/image:2", "sha256:a", "registry.test:5000/team/image@sha256:a"),
        ("team/image@sha256:a", "sha256:a", "team/image@sha256:a"),
    ],
)
def test_an_image_that_is_known_goes_by_its_digest(image: str, digest: str, expected: str) -> None:
    assert image_reference(replace(SPEC, image=image, image_identity=ImageIdentity(digest))) == expected


def test_what_fetches_an_image_runs_nothing_of_it_and_has_no_share() -> None:
    pod, kernel = fetch_body(PLAN), body(PLAN)
    assert pod.metadata is not None
    assert pod.spec is not None
    assert (pod.metadata.name, pod.metadata.finalizers) == ("retinue-fetch-k.1", None)
    assert pod.metadata.labels == {"retinue.io/agent": "a", "retinue.io/attempt": "fetch-k.1"}
    (container,) = pod.spec.containers
    assert container.command == [f"{INSIDE}/init"]
    assert container.env is None
    assert container.resources is not None
    assert set((container.resources.requests or {}).values()) == {"0"}
    assert [(volume.hostPath and volume.hostPath.path) for volume in pod.spec.volumes or ()] == ["/node/init"]
    assert kernel.spec is not None
    (other,) = kernel.spec.containers
    # By the same access, and no other rights than a kernel.
    assert (container.image, container.securityContext) == (other.image, other.securityContext)
    assert pod.spec.imagePullSecrets == kernel.spec.imagePullSecrets
    assert (pod.spec.nodeName, pod.spec.restartPolicy) == ("n1", "Never")
    assert is_fetch(fetch_id("k.1"))
    assert attempt_of(fetch_id("k.1")) == "k.1"


@pytest.mark.parametrize(
    ("user", "ids"),
    [("70000:60000", (70_000, 60_000)), ("1000", (1000, None)), ("app", (None, None)), ("1000:app", (None, None))],
)
def test_a_user_has_numbers_or_is_left_to_the_runtime(user: str, ids: tuple[int | None, int | None]) -> None:
    assert ids_of(user) == ids
    spec = body(replace(PLAN, uid=ids[0], gid=ids[1])).spec
    assert spec is not None
    assert spec.securityContext is not None
    assert (spec.securityContext.runAsUser, spec.securityContext.runAsGroup) == ids
    # Kubelet takes no name for a user that is not root.
    assert spec.securityContext.runAsNonRoot == (True if ids[0] is not None else None)
