"""The pod of an attempt: what bars a second run, the cluster's network and account, and more than its share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from retinue.agent.attempts import AttemptSpec, ImageIdentity
from retinue.agent.docker.core.container_spec import Files
from retinue.agent.kubernetes.core.pod_spec import (
    FINALIZER,
    SHARED,
    TEMPORARY,
    PodPlan,
    body,
    image_reference,
    literal,
    resources,
)

FILES = Files(
    *(Path("/node") / name for name in ["init", "attach", "filter", "barrier", "output", "hosts", "resolver", "home"])
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
    assert writable == {"/run/kernel/barrier", "/run/kernel/output", "/home/work", TEMPORARY, SHARED}


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
