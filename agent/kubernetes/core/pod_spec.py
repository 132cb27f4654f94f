"""The specification of a pod: hardening, limits, files and labels, in this one place. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lightkube.models.core_v1 import (
    Capabilities,
    Container,
    EmptyDirVolumeSource,
    EnvVar,
    HostPathVolumeSource,
    LocalObjectReference,
    PodSecurityContext,
    PodSpec,
    ResourceRequirements,
    SeccompProfile,
    SecurityContext,
    Toleration,
    Volume,
    VolumeMount,
)
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Pod

from retinue.agent.attempts import PullPolicy
from retinue.agent.docker.core.container_spec import BOUND, INSIDE
from retinue.agent.host.core.limits import MemoryFiles
from retinue.agent.kernel.paths import HOME
from retinue.agent.resources.core.allocation import WHOLE
from retinue.agent.resources.core.holdings import CUDA
from retinue.rpc.core.amounts import CPU, DISK, MEMORY

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from retinue.agent.attempts import AttemptSpec
    from retinue.agent.docker.core.container_spec import Files

DOMAIN = "retinue.io"
AGENT_LABEL, ATTEMPT_LABEL = f"{DOMAIN}/agent", f"{DOMAIN}/attempt"
SESSION_LABEL, KERNEL_LABEL = f"{DOMAIN}/session", f"{DOMAIN}/kernel"
FINALIZER = f"{DOMAIN}/attempt"
"""Keeps a pod, and how it ended, until its attempt is removed."""
CONTAINER = "kernel"
STOP_TIMEOUT = 1
"""Seconds. The agent never asks the cluster to stop a pod: it signals first processes directly."""
GPU, STORAGE = "nvidia.com/gpu", "ephemeral-storage"
TEMPORARY, SHARED = "/tmp", "/dev/shm"  # noqa: S108
MOUNTED = (*BOUND, TEMPORARY, SHARED)
"""The paths in a pod of what is mounted from the node, or from its memory."""
PULL_POLICIES = {PullPolicy.ALWAYS: "Always", PullPolicy.MISSING: "IfNotPresent", PullPolicy.NEVER: "Never"}
FETCH = "fetch-"
_UNREACHABLE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
MAX_LABEL = 63


@dataclass(frozen=True, slots=True)
class PodPlan:
    """A pod to be made on `node`. `uid` and `gid` are its user, None where they go with the name of the image's own;
    `server` is the command of the server beside its own.
    """

    agent_id: str
    node: str
    spec: AttemptSpec
    image: str
    uid: int | None
    gid: int | None
    files: Files
    server: tuple[str, ...] = ()
    priority_class: str = ""
    pull_secrets: tuple[str, ...] = ()


def pod_name(attempt_id: str) -> str:
    """Returns the name of an attempt's pod: the cluster refuses a second one of that name."""
    return f"retinue-{attempt_id}"


def fetch_id(attempt_id: str) -> str:
    """Returns the id, in place of an attempt's, of the pod that has the attempt's image fetched."""
    return f"{FETCH}{attempt_id}"


def is_fetch(attempt_id: str) -> bool:
    """Returns whether an id is of such a pod."""
    return attempt_id.startswith(FETCH)


def attempt_of(key: str) -> str:
    """Returns the attempt that such a pod fetches the image of."""
    return key.removeprefix(FETCH)


def ids_of(user: str) -> tuple[int | None, int | None]:
    """Returns the numbers of `USER[:GROUP]`; None for what is not said, or by name."""
    uid, _, gid = user.partition(":")
    if not uid.isdecimal() or (gid and not gid.isdecimal()):
        return None, None
    return int(uid), int(gid) if gid else None


def image_reference(spec: AttemptSpec) -> str:
    """Returns the image by its digest where that is known: its tag may have moved on since."""
    if not spec.image_identity.digest:
        return spec.image
    name = spec.image.partition("@")[0]
    slash, colon = name.rfind("/"), name.rfind(":")
    return f"{name[:colon] if colon > slash else name}@{spec.image_identity.digest}"


def body(plan: PodPlan) -> Pod:
    """Returns the pod. Nothing restarts it, nothing in it reaches the cluster,
    and only this node's kubelet starts it.
    """
    spec, files = plan.spec, _files(plan.files)
    mounts = [
        VolumeMount(mountPath=target, name=f"file-{number}", readOnly=read_only)
        for number, (target, _, read_only) in enumerate(files)
    ]
    volumes = [
        Volume(name=f"file-{number}", hostPath=HostPathVolumeSource(path=str(source)))
        for number, (_, source, _) in enumerate(files)
    ]
    sizes = MemoryFiles.of(spec.slots, spec.shared_memory)
    for name, target, size in (("temporary", TEMPORARY, sizes.temporary), ("shared", SHARED, sizes.shared)):
        mounts.append(VolumeMount(mountPath=target, name=name))
        volumes.append(Volume(name=name, emptyDir=EmptyDirVolumeSource(medium="Memory", sizeLimit=str(size))))
    amounts = resources(spec.slots)
    words = [f"{INSIDE}/{name}" for name in ("init", "barrier", "output", "filter")]
    words += [spec.directory, str(len(plan.server)), *plan.server, *spec.command]
    container = Container(
        name=CONTAINER,
        image=plan.image,
        imagePullPolicy=PULL_POLICIES[spec.pull_policy],
        command=list(map(literal, words)),
        workingDir=HOME,
        env=[
            EnvVar(name=name, value=literal(value)) for name, value in ({"HOME": HOME} | dict(spec.environment)).items()
        ],
        resources=ResourceRequirements(limits=dict(amounts), requests=dict(amounts)),
        securityContext=SecurityContext(
            allowPrivilegeEscalation=False, capabilities=Capabilities(drop=["ALL"]), privileged=False
        ),
        volumeMounts=mounts,
        # The output of the command never gets here, only what the first process says when it cannot start.
        terminationMessagePolicy="FallbackToLogsOnError",
    )
    labels = {
        AGENT_LABEL: plan.agent_id,
        ATTEMPT_LABEL: spec.id,
        SESSION_LABEL: spec.session_id,
        KERNEL_LABEL: spec.kernel_id,
    }
    return Pod(
        metadata=ObjectMeta(
            name=pod_name(spec.id),
            labels={name: value for name, value in labels.items() if 0 < len(value) <= MAX_LABEL},
            finalizers=[FINALIZER],
        ),
        spec=PodSpec(
            containers=[container],
            nodeName=plan.node,
            restartPolicy="Never",
            hostname=spec.hostname or None,
            automountServiceAccountToken=False,
            enableServiceLinks=False,
            terminationGracePeriodSeconds=STOP_TIMEOUT,
            # Its own file is mounted over what the cluster makes of this.
            dnsPolicy="Default",
            securityContext=PodSecurityContext(
                # Kubelet takes no name for it: that it is not root is seen at the start barrier, then.
                runAsNonRoot=plan.uid is not None or None,
                runAsUser=plan.uid,
                runAsGroup=plan.gid,
                seccompProfile=SeccompProfile(type="RuntimeDefault"),
            ),
            # A node that is away for a while keeps what runs there: managers decide when it is lost.
            tolerations=[Toleration(key=key, operator="Exists", effect="NoExecute") for key in _UNREACHABLE],
            priorityClassName=plan.priority_class or None,
            imagePullSecrets=[LocalObjectReference(name=name) for name in plan.pull_secrets] or None,
            volumes=volumes,
        ),
    )


def fetch_body(plan: PodPlan) -> Pod:
    """Returns a pod that only has kubelet fetch the image of a plan: its command is our first process, which ends at
    once without arguments. It has no share of the node, and nothing of the node but that program.
    """
    pod = body(plan)
    assert pod.metadata is not None  # noqa: S101  # just made
    assert pod.spec is not None  # noqa: S101
    (container,) = pod.spec.containers
    program = f"{INSIDE}/init"
    mounts = [mount for mount in container.volumeMounts or () if mount.mountPath == program]
    volumes = [volume for volume in pod.spec.volumes or () if volume.name in {mount.name for mount in mounts}]
    # A quota counts amounts of nothing, but not what is not said.
    nothing = {"cpu": "0", "memory": "0", STORAGE: "0"}
    container.command, container.env, container.volumeMounts, container.workingDir = [program], None, mounts, None
    container.resources = ResourceRequirements(limits=dict(nothing), requests=dict(nothing))
    pod.spec.volumes, pod.spec.hostname = volumes, None
    pod.metadata.name, pod.metadata.finalizers = pod_name(fetch_id(plan.spec.id)), None
    pod.metadata.labels = {AGENT_LABEL: plan.agent_id, ATTEMPT_LABEL: fetch_id(plan.spec.id)}
    return pod


def literal(word: str) -> str:
    """Returns a word so that the cluster does not take `$(NAME)` in it for a variable."""
    return word.replace("$", "$$")


def resources(slots: Mapping[str, int]) -> dict[str, str]:
    """Returns the amounts of a pod, as requests and limits alike: a node never promises the same twice."""
    amounts = {}
    if (cpu := slots.get(CPU)) is not None:
        amounts["cpu"] = f"{cpu}m"
    if (memory := slots.get(MEMORY)) is not None:
        amounts["memory"] = str(memory)
    # What is written over the image and kubelet's logs of it count; kubelet evicts what has more.
    if (disk := slots.get(DISK)) is not None:
        amounts[STORAGE] = str(disk)
    if gpus := slots.get(CUDA, 0) // WHOLE:
        amounts[GPU] = str(gpus)
    return amounts


def _files(files: Files) -> list[tuple[str, Path, bool]]:
    """Returns the files of the node in the pod: where, which, and whether for reading only."""
    return [
        (f"{INSIDE}/init", files.init, True),
        (f"{INSIDE}/attach", files.attach, True),
        (f"{INSIDE}/filter", files.filter, True),
        ("/etc/hosts", files.hosts, True),
        ("/etc/resolv.conf", files.resolver, True),
        (f"{INSIDE}/barrier", files.barrier, False),
        (f"{INSIDE}/output", files.output, False),
        (f"{INSIDE}/output.stdout", files.stdout, False),
        (HOME, files.home, False),
    ]
