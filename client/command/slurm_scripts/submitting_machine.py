"""What of the submitting machine goes along with a job, as on a cluster of Slurm: variables of the shell, and the
directories that nodes share with it.
"""

from __future__ import annotations

import getpass
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retinue.client.errors import RetinueError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from retinue.client.client import Client
    from retinue.client.command.shell.docker_syntax import Mount
    from retinue.manager.v1 import fleet_service_pb2

# They belong to where they are: to the submitting machine, its login and its shell.
_LOCAL = frozenset(
    {
        *("HOME", "USER", "LOGNAME", "SHELL", "PWD", "OLDPWD", "SHLVL", "_", "HOSTNAME", "HOST", "MAIL", "KRB5CCNAME"),
        *("TERM", "COLORTERM", "LS_COLORS", "DISPLAY", "WAYLAND_DISPLAY", "WINDOWID", "TMUX", "TMUX_PANE", "STY"),
        *("TMPDIR", "TMP", "TEMP", "INVOCATION_ID", "JOURNAL_STREAM"),
    }
)
# Those of Slurm are a job's own; those of Retinue may hold a token.
_LOCAL_PREFIXES = ("RETINUE_", "BACKENDAI_", "SLURM_", "SBATCH_", "SRUN_", "SSH_", "XDG_", "DBUS_", "BASH_FUNC_")
# In an image, programs are elsewhere.
_OF_PROGRAMS = frozenset({"PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHOME"})


@dataclass(frozen=True, slots=True)
class Submission:
    """From where a job is submitted: the directory, the machine, and the name of the user there."""

    directory: str
    host: str
    user: str

    @classmethod
    def here(cls) -> Submission:
        """Returns what is so of this process."""
        try:
            directory, user = os.getcwd(), getpass.getuser()
        except (OSError, KeyError):
            # The directory was removed, or the user has no name.
            directory, user = "/", str(os.getuid())
        return cls(directory, socket.gethostname(), user)


def exported(environment: Mapping[str, str], *, image: bool) -> dict[str, str]:
    """Returns the variables that `--export=ALL` sends along: all but those of this machine and its login, and with
    `image` those that say where programs of this machine are.
    """
    return {
        name: value
        for name, value in environment.items()
        if name not in _LOCAL and not name.startswith(_LOCAL_PREFIXES) and not (image and name in _OF_PROGRAMS)
    }


async def shared_mounts(client: Client, given: Mapping[str, Any]) -> list[Mount]:
    """Returns mounts of the roots that the resource group grants and that are directories of this machine, too; none
    where a mount was asked for at that path, or below or above it.
    """
    try:
        group = await client.resource_groups.get(given["group"] or "default")
    except RetinueError:
        # Whether the group exists, the manager says of the request.
        return []
    if not group.mount_roots:
        return []
    user = (await client.users.caller()).name
    return shared(
        group.mount_roots, user=user, project=given["project"], asked=[target for _, target, _ in given["mount"]]
    )


def shared(
    roots: Iterable[fleet_service_pb2.MountRoot], *, user: str, project: str, asked: Iterable[str]
) -> list[Mount]:
    """Returns the mounts of roots, with `{user}` and `{project}` filled in; those that need a project that is not said
    are left out.
    """
    found: list[Mount] = []
    taken = [Path(target) for target in asked]
    for root in roots:
        if ("{project}" in root.path or root.projects) and not project:
            continue
        if root.projects and project not in root.projects:
            continue
        path = Path(root.path.replace("{user}", user).replace("{project}", project))
        if not path.is_dir() or any(path.is_relative_to(other) or other.is_relative_to(path) for other in taken):
            continue
        taken.append(path)
        found.append((str(path), str(path), root.writable))
    return found


def is_mounted(directory: str, mounts: Iterable[Mount]) -> bool:
    """Returns whether a job has a directory of this machine at the same path, by one of its mounts."""
    return any(source == target and Path(directory).is_relative_to(target) for source, target, _ in mounts)
