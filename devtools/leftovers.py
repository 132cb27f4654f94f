"""Finds what agents have on this machine, in the machine itself and not through the agents, and removes it by force."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass, fields
from pathlib import Path

from retinue.devtools import engine, nodes
from retinue.rpc import network_namespaces as namespaces

_CGROUPS = Path("/sys/fs/cgroup")
# As agents name the namespaces of their networks: longer ids end in a digest of the whole.
_LABEL_LENGTH, _DIGEST_LENGTH = 20, 8
_MONITORS = "monitors"
_ATTEMPT_DIRECTORIES = ("attempts", "scratch", "docker/attempts", "vm/attempts", "kubernetes/attempts")
# Below `retinue`, by the agent's id: of its native processes, and of its virtual machines.
_FAMILIES = ("{}", "{}.vm")
_LABEL = "retinue.agent"
# An agent also has groups, files and threads of its own; what belongs to a kernel goes by the kernel's id and epoch.
_ATTEMPT = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.[0-9]+")
_SANDBOX = "bwrap"
# What kernels write lies in file systems of their own, which are mounted beside and over their work directories.
_MOUNTED, _FILE = ".disk", ".image"


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Names of what there is of kernels and private networks on one node; nothing of it should be at rest.

    `networks` are the network namespaces of sessions, `links` what is in the node's own namespace besides its uplink,
    `control_groups` those of kernels, `attempts` the agent's directories of kernels, `processes` pids of kernels and
    their sandboxes, `containers` names of containers, ended ones too.
    """

    networks: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    control_groups: tuple[str, ...] = ()
    attempts: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()
    containers: tuple[str, ...] = ()

    def counts(self) -> dict[str, int]:
        """Returns the number of each."""
        return {field.name.replace("_", " "): len(getattr(self, field.name)) for field in fields(self)}

    @property
    def is_clean(self) -> bool:
        """Returns whether there is nothing."""
        return not any(self.counts().values())


def find(agent_id: str, node: nodes.Node | None, state_directory: Path, docker_host: str = "") -> Leftovers:
    """Returns what exists now of an agent's kernels and networks; links are inspected only where it has a node. Blocks.

    `docker_host` is the agent's engine; empty means the machine's, if it answers.
    """
    groups = _groups(agent_id)
    attempts = {
        name
        for directory in _ATTEMPT_DIRECTORIES
        if (state_directory / directory).is_dir()
        for entry in (state_directory / directory).iterdir()
        if _ATTEMPT.fullmatch(name := entry.name.removesuffix(_MOUNTED).removesuffix(_FILE))
    }
    kernels = [group for group in groups if _ATTEMPT.fullmatch(group.name)]
    processes = {pid for group in kernels for pid in _pids(group)}
    processes |= {pid for group in groups if group.name == _MONITORS for pid in _pids(group) if _is_sandbox(pid)}
    return Leftovers(
        networks=tuple(network_namespaces(agent_id)),
        links=tuple(nodes.extra_links(node.namespace)) if node is not None else (),
        control_groups=tuple(sorted({group.name for group in kernels})),
        attempts=tuple(sorted(attempts)),
        processes=tuple(map(str, sorted(processes))),
        containers=tuple(engine.containers(docker_host, f"{_LABEL}={agent_id}")),
    )


def network_namespaces(agent_id: str) -> list[str]:
    """Returns the namespaces of an agent's session networks."""
    return namespaces.names(f"rt-{_label(agent_id)}-")


def _label(agent_id: str) -> str:
    if len(agent_id) <= _LABEL_LENGTH:
        return agent_id
    digest = hashlib.sha256(agent_id.encode()).hexdigest()[:_DIGEST_LENGTH]
    return f"{agent_id[: _LABEL_LENGTH - _DIGEST_LENGTH - 1]}-{digest}"


def remove(agent_id: str, docker_host: str = "", seconds: float = 5.0) -> None:
    """Kills what runs in an agent's control groups, and removes these, its networks' namespaces and containers. Blocks.

    For agents that do not run any more. What takes longer than `seconds` to go is left.
    """
    deadline = time.monotonic() + seconds
    while groups := _groups(agent_id):
        for group in groups:
            for pid in _pids(group):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(OSError):
                group.rmdir()
        if time.monotonic() >= deadline:
            break
        time.sleep(0.02)
    for root in _agent_roots(agent_id):
        for directory in (root, root.parent):
            with contextlib.suppress(OSError):
                directory.rmdir()
    for name in network_namespaces(agent_id):
        namespaces.delete(name)
    # An agent on a node of its own has its rules there, and they go with the node.
    table = ("nft", "delete", "table", "inet", f"retinue-{_label(agent_id)}")
    with contextlib.suppress(FileNotFoundError):
        subprocess.run(table, check=False, capture_output=True)  # noqa: S603  # ours
    for name in engine.containers(docker_host, f"{_LABEL}={agent_id}"):
        engine.remove(docker_host, name)


def unmount(directory: Path) -> None:
    """Unmounts all that is mounted beneath a directory: file systems of work directories whose agents were killed.
    Blocks.
    """
    place = f"{directory.resolve()}/"
    points = [line.split(" ")[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for point in reversed([point for point in points if point.startswith(place)]):
        subprocess.run(("umount", "--lazy", point), check=False, capture_output=True)  # noqa: S603, S607


def _agent_roots(agent_id: str) -> list[Path]:
    roots = [_CGROUPS, *(entry for entry in _CGROUPS.iterdir() if entry.is_dir() and not entry.is_symlink())]
    directories = (root / "retinue" / family.format(agent_id) for root in roots for family in _FAMILIES)
    return [directory for directory in directories if directory.is_dir()]


def _groups(agent_id: str) -> list[Path]:
    found = []
    for root in _agent_roots(agent_id):
        with contextlib.suppress(FileNotFoundError):
            found += [entry for entry in root.iterdir() if entry.is_dir()]
    return found


def _is_sandbox(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == _SANDBOX
    except OSError:
        return False


def _pids(group: Path) -> list[int]:
    try:
        return [int(line) for line in (group / "cgroup.procs").read_text().split()]
    except OSError:
        return []
