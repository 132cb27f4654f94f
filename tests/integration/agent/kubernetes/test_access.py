"""The manifests are accepted by a real cluster, an agent's account can do what it needs and nothing else,
and `retinue doctor` says what a node lacks.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from click.testing import CliRunner
from lightkube import ApiError
from lightkube.codecs import load_all_yaml
from lightkube.models.authorization_v1 import ResourceAttributes, SelfSubjectAccessReviewSpec
from lightkube.models.core_v1 import ResourceQuotaSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.authorization_v1 import SelfSubjectAccessReview
from lightkube.resources.core_v1 import ResourceQuota

from retinue.devtools.doctor import ERROR, OK, WARNING
from retinue.devtools.doctor_command import doctor_command
from retinue.devtools.pod_doctor import NEEDED
from tests.integration.agent.kubernetes.kube_cluster import MANIFESTS, NODE, KubeCluster
from tests.integration.agent.kubernetes.kube_files import NAMESPACE
from tests.support.eventually import eventually_blocking

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightkube import Client

PAGE = Path(__file__).resolve().parents[4] / "docs/how-to/kubernetes.md"
PRIORITY_CLASS = "retinue-kernels"


@contextlib.contextmanager
def connected(cluster: KubeCluster, user: str) -> Iterator[Client]:
    client = cluster.client(user)
    try:
        yield client
    finally:
        client._client.close()  # type: ignore[no-untyped-call]  # noqa: SLF001


def allowed(client: Client, verb: str, resource: str, namespace: str, group: str = "", subresource: str = "") -> bool:
    asked = ResourceAttributes(
        namespace=namespace, verb=verb, resource=resource, group=group, subresource=subresource or None
    )
    review = client.create(SelfSubjectAccessReview(spec=SelfSubjectAccessReviewSpec(resourceAttributes=asked)))
    assert review.status is not None
    return review.status.allowed


def test_an_agent_may_do_what_it_needs_and_nothing_else(cluster: KubeCluster) -> None:
    with connected(cluster, "agent") as client:
        # A server makes the roles that every account has a while after it answers.
        eventually_blocking(lambda: allowed(client, "get", "pods", NAMESPACE), ignoring=ApiError)
        assert all(allowed(client, verb, "pods", NAMESPACE) for verb in NEEDED)
        for namespace in ("default", "kube-system", "retinue", ""):
            # What others request of its node counts.
            found = {verb for verb in (*NEEDED, "update") if allowed(client, verb, "pods", namespace)}
            assert found == {"list", "watch"}, namespace
        assert {verb for verb in NEEDED if allowed(client, verb, "nodes", "")} == {"list", "watch"}
        for resource in ("secrets", "configmaps", "serviceaccounts", "events", "persistentvolumeclaims"):
            assert not any(allowed(client, verb, resource, NAMESPACE) for verb in ("get", "list", "create")), resource
        for subresource in ("exec", "attach", "portforward", "ephemeralcontainers", "eviction", "log"):
            assert not any(allowed(client, verb, "pods", NAMESPACE, subresource=subresource) for verb in NEEDED)
        for group, resource in (
            ("", "nodes"),
            ("", "namespaces"),
            ("apps", "daemonsets"),
            ("rbac.authorization.k8s.io", "roles"),
            ("rbac.authorization.k8s.io", "clusterrolebindings"),
            ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
        ):
            verbs = ("create", "update", "patch", "delete", "bind", "escalate", "impersonate")
            assert not any(allowed(client, verb, resource, "", group) for verb in verbs), resource


def test_the_manifests_are_accepted_and_can_be_applied_again(cluster: KubeCluster) -> None:
    with connected(cluster, "admin") as client:
        for file in sorted(MANIFESTS.glob("*.yaml")):
            for resource in load_all_yaml(file.read_text()):
                # As for an upgrade: over what is there, without a conflict.
                client.apply(resource, field_manager="kubectl", force=True, dry_run=True)


def commands() -> list[list[str]]:
    """Returns the commands of the page that need nothing but the cluster."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line.startswith("kubectl ")]


def overlay() -> str:
    """Returns the overlay of the page."""
    (found,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return str(found)


def rendered(kubectl: str, directory: Path) -> list[Any]:
    """Returns the objects that `kubectl apply -k` would apply."""
    done = subprocess.run([kubectl, "kustomize", str(directory)], capture_output=True, text=True, check=True)
    return [document for document in yaml.safe_load_all(done.stdout) if document is not None]


def test_a_base_of_kustomize_is_all_manifests_and_an_overlay_changes_the_agent(tmp_path: Path) -> None:
    files = sorted(MANIFESTS.glob("*.yaml"))
    plain = [document for file in files for document in yaml.safe_load_all(file.read_text()) if document is not None]
    assert yaml.safe_load((MANIFESTS / "Kustomization").read_text())["resources"] == [file.name for file in files]
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("this machine has no kubectl: the base is only compared with the files")
    base = rendered(kubectl, MANIFESTS)
    assert all(document in base for document in plain)
    assert len(base) == len(plain)
    shutil.copytree(MANIFESTS, tmp_path / "deploy/kubernetes")
    (tmp_path / "overlay").mkdir()
    (tmp_path / "overlay/kustomization.yaml").write_text(overlay())
    (tmp_path / "overlay/join-token").write_text("token")
    found = {
        (document["kind"], document["metadata"]["name"]): document
        for document in rendered(kubectl, tmp_path / "overlay")
    }
    pod = found["DaemonSet", "retinue-agent"]["spec"]["template"]["spec"]
    (agent,) = pod["containers"]
    assert agent["image"] == "registry.example/retinue-agent:1"
    assert agent["args"][-1] == "--kube-pull-secret=registry"
    assert pod["nodeSelector"] == {"retinue": "agent"}
    assert found["ConfigMap", "retinue-agent"]["data"] == {"manager": "MANAGER:7440", "ca-fingerprint": "HEX"}
    assert len(found) == len(plain) + 2


def test_the_commands_of_the_page_are_accepted(cluster: KubeCluster, tmp_path: Path) -> None:
    kubectl = shutil.which("kubectl")
    found = commands()
    assert [*found[0][:2], found[0][-1]] == ["kubectl", "apply", "deploy/kubernetes/1-namespaces.yaml"]
    shutil.copytree(MANIFESTS, tmp_path / "deploy/kubernetes")
    (tmp_path / "overlay").mkdir()
    (tmp_path / "overlay/kustomization.yaml").write_text(overlay())
    for directory in (tmp_path, tmp_path / "overlay"):
        (directory / "join-token").write_text("token")
    if kubectl is None:
        pytest.skip("this machine has no kubectl: that the page has commands is all that is known")
    tried = [words for words in found if words[1] in {"apply", "create"}]
    assert tried
    for words in tried:
        command = [kubectl, "--kubeconfig", str(cluster.directory / "admin.kc"), *words[1:], "--dry-run=server"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{words}: {done.stderr}"


def examined(cluster: KubeCluster, user: str, *options: str, node: str = NODE) -> dict[str, tuple[str, str]]:
    """Returns the lines of `retinue doctor` on the cluster, by name."""
    words = ["--kube-node", node, "--kube-config", str(cluster.directory / f"{user}.kc"), *options, "-o", "json"]
    result = CliRunner().invoke(doctor_command, words, standalone_mode=False)
    assert result.exception is None
    findings = {found["name"]: (found["state"], found["message"]) for found in json.loads(result.output)}
    return {name: found for name, found in findings.items() if name.startswith("kube")}


def test_the_doctor_finds_what_a_node_lacks(cluster: KubeCluster) -> None:
    agent = examined(cluster, "agent", "--kube-priority-class", PRIORITY_CLASS)
    assert {name: state for name, (state, _) in agent.items()} == {
        "kubernetes": OK,
        "kube-rights": OK,
        "kube-node": OK,
        "kube-admission": OK,
    }
    admin = examined(cluster, "admin")
    assert (admin["kube-node"][0], admin["kube-rights"][0]) == (OK, WARNING)
    # Only an agent makes pods of kernels.
    assert admin["kube-admission"][0] == ERROR
    assert examined(cluster, "admin", node="n2")["kube-node"][0] == ERROR
    state, message = examined(cluster, "agent", "--kube-priority-class", "missing")["kube-admission"]
    assert (state, "missing" in message) == (ERROR, True)
    assert examined(cluster, "agent", "--kube-namespace", "default")["kube-rights"][0] == ERROR
    assert not cluster.pods()


def _counts(client: Client) -> bool:
    status = client.get(ResourceQuota, "full").status
    return status is not None and bool(status.hard)


def test_the_doctor_finds_a_quota(cluster: KubeCluster) -> None:
    quota = ResourceQuota(
        metadata=ObjectMeta(name="full", namespace=NAMESPACE), spec=ResourceQuotaSpec(hard={"pods": "0"})
    )
    with connected(cluster, "admin") as client:
        client.create(quota)
        try:
            # It counts once its controller has seen it.
            eventually_blocking(lambda: _counts(client))
            state, message = examined(cluster, "agent")["kube-admission"]
            assert (state, "full" in message) == (ERROR, True), message
        finally:
            client.delete(ResourceQuota, "full")
