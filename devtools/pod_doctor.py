"""Checks whether an agent could run kernels as pods of this node: `examine` asks the cluster,
`evaluate` turns its answers into findings.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
from lightkube import ApiError, Client, KubeConfig
from lightkube.core.exceptions import ConfigError
from lightkube.models.authorization_v1 import ResourceAttributes, SelfSubjectAccessReviewSpec
from lightkube.resources.authorization_v1 import SelfSubjectAccessReview
from lightkube.resources.core_v1 import Node
from yaml import YAMLError

from retinue.agent.attempts import AttemptSpec
from retinue.agent.docker.core.container_spec import Files
from retinue.agent.kubernetes.core.pod_spec import PodPlan, body
from retinue.agent.kubernetes.core.pod_state import UNREADABLE
from retinue.devtools.doctor import ERROR, OK, WARNING, Finding

if TYPE_CHECKING:
    from collections.abc import Sequence

NEEDED = ("create", "get", "list", "watch", "patch", "delete")
"""What an agent does with the pods of kernels."""
EXCESSIVE = ("pods/exec", "secrets")
"""What an agent never uses in the namespace of kernels."""
READY, NOT_READY, ABSENT, UNKNOWN = "READY", "NOT_READY", "ABSENT", "UNKNOWN"
MANIFESTS = "kubectl apply -f deploy/kubernetes/"
_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class PodFacts:
    """What a cluster answered. `trouble` is why it did not; the rest is empty then.

    `denied` are the verbs of pods that the account lacks, `excessive` the resources that it could create although
    agents do not. `node` is the state of the node named `node_name`, on the machine `machine`. `refusal` is why a pod
    like that of a kernel would not be admitted.
    """

    namespace: str
    node_name: str
    machine: str
    trouble: str = ""
    denied: Sequence[str] = ()
    excessive: Sequence[str] = ()
    node: str = UNKNOWN
    refusal: str = ""


def evaluate(facts: PodFacts) -> list[Finding]:
    """Returns the findings that the facts give for a node; pure."""
    if facts.trouble:
        remedy = "give --kube-config a file that kubectl works with, from this node"
        return [Finding("kubernetes", ERROR, f"the cluster's API cannot be used: {facts.trouble}", remedy)]
    return [Finding("kubernetes", OK, "the cluster's API answers"), _rights(facts), _node(facts), _admission(facts)]


def _rights(facts: PodFacts) -> Finding:
    if facts.denied:
        message = f"the account may not {', '.join(facts.denied)} pods in {facts.namespace}"
        return Finding("kube-rights", ERROR, message, f"{MANIFESTS}, or use the account that it makes")
    if facts.excessive:
        message = f"the account can do more than agents need, as with {', '.join(facts.excessive)}"
        return Finding("kube-rights", WARNING, message, "run the agent with the account of deploy/kubernetes/")
    return Finding("kube-rights", OK, f"those of an agent in {facts.namespace}")


def _node(facts: PodFacts) -> Finding:
    name, remedy = facts.node_name, "give --kube-node the name that `kubectl get nodes` shows for this machine"
    if facts.node == ABSENT:
        return Finding("kube-node", ERROR, f"the cluster has no node {name}", remedy)
    if facts.node == NOT_READY:
        return Finding("kube-node", WARNING, f"node {name} is not ready: its pods do not start", "look at its kubelet")
    if facts.node == UNKNOWN and facts.machine.partition(".")[0] != name.partition(".")[0]:
        message = f"the account may not read nodes, and this machine is called {facts.machine}, not {name}"
        return Finding("kube-node", WARNING, message, remedy)
    return Finding("kube-node", OK, f"{name} is ready" if facts.node == READY else f"{name} is this machine's name")


def _admission(facts: PodFacts) -> Finding:
    if facts.refusal:
        remedy = f"{MANIFESTS}; a quota, another rule of admission or the priority class may bar it, too"
        return Finding("kube-admission", ERROR, f"a kernel's pod would be refused: {facts.refusal}", remedy)
    return Finding("kube-admission", OK, "a kernel's pod would be admitted")


def examine(config: Path | None, node_name: str, namespace: str, priority_class: str = "") -> PodFacts:
    """Asks the cluster; changes nothing. Without `config`, the cluster is the one that this runs in."""
    facts = PodFacts(namespace, node_name, os.uname().nodename)
    with contextlib.ExitStack() as until_asked:
        try:
            kubeconfig = KubeConfig.from_env() if config is None else KubeConfig.from_file(config)
            # As the agent asks.
            client = Client(kubeconfig, namespace=namespace, timeout=httpx2.Timeout(_TIMEOUT), trust_env=False)
            # lightkube's blocking client has no `close` of its own.
            until_asked.callback(client._client.close)  # noqa: SLF001
            return PodFacts(
                namespace,
                node_name,
                facts.machine,
                denied=[verb for verb in NEEDED if not _allowed(client, namespace, verb, "pods")],
                excessive=[name for name in EXCESSIVE if _allowed(client, namespace, "create", name)],
                node=_state_of(client, node_name),
                refusal=_refusal(client, node_name, priority_class),
            )
        except (httpx2.HTTPError, ConfigError, YAMLError, OSError, *UNREADABLE) as error:
            return PodFacts(namespace, node_name, facts.machine, trouble=str(error) or type(error).__name__)


def _allowed(client: Client, namespace: str, verb: str, resource: str) -> bool:
    name, _, subresource = resource.partition("/")
    asked = ResourceAttributes(namespace=namespace, verb=verb, resource=name, subresource=subresource or None)
    review = client.create(SelfSubjectAccessReview(spec=SelfSubjectAccessReviewSpec(resourceAttributes=asked)))
    return review.status is not None and review.status.allowed


def _state_of(client: Client, name: str) -> str:
    try:
        # Agents may list nodes, and not get one.
        found = next(iter(client.list(Node, fields={"metadata.name": name})), None)
    except ApiError:
        return UNKNOWN
    if found is None:
        return ABSENT
    status = found.status
    conditions = (status.conditions if status is not None else None) or ()
    return READY if any((each.type, each.status) == ("Ready", "True") for each in conditions) else NOT_READY


def _refusal(client: Client, node: str, priority_class: str) -> str:
    """Has the server check a kernel's pod without making it."""
    spec = AttemptSpec(f"doctor-{secrets.token_hex(4)}.1", "doctor", "doctor", 1, "main1", image="busybox:1")
    files = Files(*(Path("/var/lib/retinue-agent") for _ in fields(Files)))
    wanted = body(PodPlan("doctor", node, spec, spec.image, 60_000, 60_000, files, priority_class=priority_class))
    try:
        client.create(wanted, dry_run=True)
    except ApiError as error:
        return error.status.message or f"status {error.status.code}"
    return ""
