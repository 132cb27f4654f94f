"""The specification of a container: hardening, limits, mounts and labels, in this one place. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from retinue.agent.host.core.limits import CPU_PERIOD, MemoryFiles, quota
from retinue.agent.kernel.paths import HOME, PROGRAMS_PREFIX
from retinue.agent.resources.core.holdings import Holding
from retinue.rpc.core.amounts import CPU, MEMORY

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from retinue.agent.attempts import AttemptSpec

STOP_TIMEOUT = 1
"""Seconds. The agent never asks the engine to stop a container: it signals first processes directly."""
NAME_PREFIX = "retinue-"
AGENT_LABEL = "retinue.agent"
ATTEMPT_LABEL = "retinue.attempt"
SESSION_LABEL = "retinue.session"
KERNEL_LABEL = "retinue.kernel"
IMAGE_LABEL = "retinue.image"
INSIDE = PROGRAMS_PREFIX
"""Directory of ours in a container: the first process, its filter of system calls, its start barrier,
and the file it prints to.
"""
BOUND = (
    HOME,
    *(f"{INSIDE}/{name}" for name in ("init", "attach", "filter", "barrier", "output", "output.stdout")),
    "/etc/hosts",
    "/etc/resolv.conf",
)
"""The paths of the node's files in a container. The engine cannot mount them without
devices and set-user-ID programs.
"""
OPEN_FILES = 65_536
"""Most open files of a process, where the node allows so many."""
OUT_OF_MEMORY_SCORE = 500
"""A node that runs out of memory ends kernels before anything of its own."""


@dataclass(frozen=True, slots=True)
class Files:
    """The node's files that a container sees.

    Its first process, the program that runs commands for callers, the system-call filter of both, start barrier,
    output (standard error, and standard output apart), names and home.
    """

    init: Path
    attach: Path
    filter: Path
    barrier: Path
    output: Path
    stdout: Path
    hosts: Path
    resolver: Path
    home: Path


@dataclass(frozen=True, slots=True)
class Container:
    """A container to be made.

    `image_id` is that of the image its reference was found to name, `user` is `UID:GID` or a name the image knows,
    `open_files` the node's limit.
    """

    agent_id: str
    spec: AttemptSpec
    image_id: str
    user: str
    tasks: int
    open_files: int
    files: Files
    server: tuple[str, ...] = ()
    holding: Holding = field(default_factory=Holding)


def container_name(attempt_id: str) -> str:
    """Returns the name of an attempt's container: the engine refuses a second one of that name."""
    return f"{NAME_PREFIX}{attempt_id}"


def runs_as_root(image_user: str) -> bool:
    """Returns whether a user as images name it, `USER[:GROUP]`, is root."""
    return image_user.partition(":")[0] in {"", "0", "root"}


def body(container: Container) -> dict[str, Any]:
    """Returns the body of the request that creates the container (`POST /containers/create`
    of the Docker Engine API).
    """
    spec = container.spec
    return {
        # Not the reference: its tag may have moved on since it was looked up.
        "Image": container.image_id,
        "Hostname": spec.hostname,
        "User": container.user,
        "WorkingDir": HOME,
        "Env": [f"{name}={value}" for name, value in ({"HOME": HOME} | dict(spec.environment)).items()],
        "Entrypoint": [f"{INSIDE}/{name}" for name in ("init", "barrier", "output", "filter")]
        + [spec.directory, str(len(container.server)), *container.server],
        "Cmd": list(spec.command),
        # The health check of an image would run in the kernel, and its cost would be counted to the user.
        "Healthcheck": {"Test": ["NONE"]},
        # How long the engine waits for an event of a container that it finds dead when it is to kill it.
        "StopTimeout": STOP_TIMEOUT,
        "Tty": False,
        "OpenStdin": False,
        "Labels": {
            AGENT_LABEL: container.agent_id,
            ATTEMPT_LABEL: spec.id,
            SESSION_LABEL: spec.session_id,
            KERNEL_LABEL: spec.kernel_id,
            IMAGE_LABEL: spec.image,
        },
        "HostConfig": host_settings(container),
    }


def host_settings(container: Container) -> dict[str, Any]:
    """Returns the host settings of a container: nothing it does not need, and a limit on everything it uses.

    Docker's own lists of system calls, and of paths in /proc and /sys that are masked or read-only, stay as they are;
    our first process sets a filter of its own on top. Docker's first process (`Init`) is left out: ours does the same.
    """
    spec = container.spec
    open_files = min(OPEN_FILES, container.open_files)
    return {
        "Privileged": False,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "NetworkMode": "none",
        "IpcMode": "private",
        "PidMode": "",
        "UTSMode": "",
        # On an engine with `userns-remap` too: the numbers of users are those that files of the node have.
        "UsernsMode": "host",
        "CgroupnsMode": "private",
        "RestartPolicy": {"Name": "no"},
        "AutoRemove": False,
        "PublishAllPorts": False,
        "Init": False,
        "OomScoreAdj": OUT_OF_MEMORY_SCORE,
        "PidsLimit": container.tasks,
        "Ulimits": [
            {"Name": "nofile", "Soft": open_files, "Hard": open_files},
            {"Name": "core", "Soft": 0, "Hard": 0},
        ],
        # The output of the command never gets here; the few messages of the engine itself must not grow without bound.
        "LogConfig": {"Type": "local", "Config": {"max-size": "10m", "max-file": "3"}},
        "Mounts": mounts(container.files),
        **limits(spec.slots, spec.shared_memory),
        **devices(container.holding),
    }


def limits(slots: Mapping[str, int], shared_memory: int = 0) -> dict[str, Any]:
    """Limits that go with an attempt's slots. Files in /tmp and /dev/shm lie in memory and count to its limit.

    `shared_memory` is the size of /dev/shm in bytes, 0 for the default.
    """
    memory, cpu = slots.get(MEMORY), slots.get(CPU)
    files = MemoryFiles.of(slots, shared_memory)
    settings: dict[str, Any] = {
        "ShmSize": files.shared,
        "Tmpfs": {"/tmp": f"rw,exec,nosuid,nodev,mode=1777,size={files.temporary}"},  # noqa: S108
    }
    if memory is not None:
        # The second number is memory and swap space together.
        settings |= {"Memory": memory, "MemorySwap": memory}
    if cpu is not None:
        settings |= {"CpuPeriod": CPU_PERIOD, "CpuQuota": quota(cpu), "CpuShares": max(2, cpu * 1024 // 1000)}
    return settings


def devices(holding: Holding) -> dict[str, Any]:
    """Cores and GPUs of its own; without cores of its own it may use any, as far as its limit of time goes."""
    settings: dict[str, Any] = {}
    if holding.cores:
        settings["CpusetCpus"] = ",".join(map(str, holding.cores))
    if holding.gpus:
        settings["DeviceRequests"] = [
            {"Driver": "nvidia", "DeviceIDs": list(holding.gpus), "Capabilities": [["gpu"]]},
        ]
    return settings


def mounts(files: Files) -> list[dict[str, Any]]:
    """Returns the files of the node in the container; only its start barrier,
    its output and its home can be written.
    """
    read_only = {
        f"{INSIDE}/init": files.init,
        f"{INSIDE}/attach": files.attach,
        f"{INSIDE}/filter": files.filter,
        "/etc/hosts": files.hosts,
        "/etc/resolv.conf": files.resolver,
    }
    # Only the mode of the start barrier is written.
    writable = {
        f"{INSIDE}/barrier": files.barrier,
        f"{INSIDE}/output": files.output,
        f"{INSIDE}/output.stdout": files.stdout,
        HOME: files.home,
    }
    return [
        {
            "Type": "bind",
            "Source": str(source),
            "Target": target,
            "ReadOnly": target in read_only,
            "BindOptions": {"Propagation": "rprivate"},
        }
        for target, source in (read_only | writable).items()
    ]
