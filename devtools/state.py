"""Records on disk what a local cluster has made: so that the next one on the same directory
can remove what a killed one left.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from retinue.devtools import leftovers, nodes, process
from retinue.rpc.files import try_lock

PREFIX = "local-"
"""The prefix of directories that are removed with their cluster."""
_FILE = "cluster.json"
_LOCK = "cluster.lock"


@dataclass(slots=True)
class ClusterState:
    """Underlay (None without nodes), agents by id, processes as (pid, start time),
    and engines of agents that have their own.
    """

    underlay: nodes.Underlay | None = None
    agents: list[str] = field(default_factory=list)
    processes: dict[str, tuple[int, int]] = field(default_factory=dict)
    engines: dict[str, str] = field(default_factory=dict)

    def write(self, directory: Path) -> None:
        """Replaces what is on disk."""
        content = {
            "underlay": [self.underlay.prefix, self.underlay.number] if self.underlay is not None else None,
            "agents": self.agents,
            "processes": self.processes,
            "engines": self.engines,
        }
        temporary = directory / f"{_FILE}.new"
        temporary.write_text(json.dumps(content))
        temporary.replace(directory / _FILE)

    @classmethod
    def read(cls, directory: Path) -> ClusterState | None:
        """Returns the state on disk; None when there is none."""
        try:
            content = json.loads((directory / _FILE).read_text())
        except FileNotFoundError:
            return None
        underlay = content["underlay"]
        return cls(
            underlay=nodes.Underlay(str(underlay[0]), int(underlay[1])) if underlay is not None else None,
            agents=[str(agent) for agent in content["agents"]],
            processes={name: (int(pid), int(started)) for name, (pid, started) in content["processes"].items()},
            engines={agent: str(host) for agent, host in content.get("engines", {}).items()},
        )


def lock(directory: Path) -> int | None:
    """Takes a directory for one cluster, for as long as the descriptor that is returned stays open;
    None: another has it.
    """
    return try_lock(directory / _LOCK)


def create(parent: Path) -> tuple[Path, int]:
    """Makes a directory that goes with its cluster; returns it and the descriptor that keeps it locked."""
    # It is locked before it has the name that others sweep.
    hidden = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=parent))
    if (descriptor := lock(hidden)) is None:
        raise FileExistsError(f"another process has locked {hidden}")
    return hidden.rename(parent / hidden.name.removeprefix(".")), descriptor


def clear(directory: Path) -> None:
    """Ends and removes all that the state on disk names, and what the database server left. Blocks; idempotent."""
    state = ClusterState.read(directory)
    if state is None:
        return
    for pid, started in state.processes.values():
        process.end(pid, started)
    end_database(directory)
    end_engine(directory)
    for agent in state.agents:
        leftovers.remove(agent, state.engines.get(agent, ""))
    if state.underlay is not None:
        nodes.delete_underlay(state.underlay)
    leftovers.unmount(directory)
    (directory / _FILE).unlink(missing_ok=True)


def sweep(parent: Path) -> list[Path]:
    """Clears and removes directories that were to go with their clusters and did not, because these were killed;
    returns them. Blocks.
    """
    removed = []
    for directory in sorted(parent.glob(f"{PREFIX}*")):
        if not (directory / _LOCK).exists():
            continue
        try:
            descriptor = lock(directory)
        except OSError:
            # Another one has just removed it.
            continue
        if descriptor is None:
            continue
        try:
            clear(directory)
            shutil.rmtree(directory, ignore_errors=True)
            removed.append(directory)
        finally:
            os.close(descriptor)
    return removed


def end_database(directory: Path) -> None:
    """Ends the database servers beneath a directory that no manager supervises any more: those of a manager that was
    killed. Blocks.
    """
    for file in directory.glob("**/postmaster.pid"):
        try:
            pid = int(file.read_text().split()[0])
            executable = Path(f"/proc/{pid}/exe").readlink()
        except (OSError, ValueError, IndexError):
            continue
        started = process.start_time(pid)
        if executable.name == "postgres" and started is not None:
            # Fast shutdown; the default signal would wait for clients.
            process.end(pid, started, signal.SIGINT)


def end_engine(directory: Path) -> None:
    """Ends the engine of a router that was killed, which runs on without it. Blocks."""
    try:
        found = json.loads((directory / "router" / "engine.json").read_text())
        pid, started = int(found["pid"]), int(found["start"])
    except (OSError, ValueError, KeyError, TypeError):
        return
    process.end(pid, started)
