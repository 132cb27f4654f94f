"""The commands by which the processes of a local cluster are started."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.rpc.interpreter import module_command

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from retinue.devtools.nodes import Node


@dataclass(frozen=True, slots=True)
class Joining:
    """How an agent or a router reaches its manager, and what lets it in."""

    manager: str
    token_file: Path
    ca_fingerprint: str

    @property
    def arguments(self) -> list[str]:
        """Returns the arguments that both take."""
        return [
            *("--manager", self.manager, "--join-token", str(self.token_file)),
            *("--ca-fingerprint", self.ca_fingerprint),
        ]


@dataclass(frozen=True, slots=True)
class Supervision:
    """Seconds by which a manager supervises its agents."""

    heartbeat: float
    suspect_after: float
    lost_after: float


def manager(
    directory: Path, *, users: int, agents: int, gateway: int, nodes: str, supervision: Supervision
) -> list[str]:
    """Returns the command of a manager at these ports, 0 for no gateway. It listens at this machine's loopback and at
    `nodes`, its address for nodes; where this is empty, the agent uses the loopback, too.
    """
    hosts = ["127.0.0.1", *((nodes,) if nodes else ())]
    return [
        *_daemon("manager"),
        *("serve", "--dev", "--data-dir", str(directory)),
        *("--listen", ",".join(f"{host}:{users}" for host in hosts)),
        *("--agent-listen", ",".join(f"{host}:{agents}" for host in hosts)),
        # Agents get the first one.
        *("--advertise", ",".join([*reversed(hosts), "localhost"])),
        *("--heartbeat", f"{supervision.heartbeat:g}"),
        *("--suspect-after", f"{supervision.suspect_after:g}", "--lost-after", f"{supervision.lost_after:g}"),
        *(("--http-listen", f"127.0.0.1:{gateway}") if gateway else ()),
    ]


def agent(
    agent_id: str,
    directory: Path,
    joining: Joining,
    *,
    listen: str,
    node: Node | None,
    hidden: Path,
    slots: Mapping[str, str],
) -> list[str]:
    """Returns the command of an agent on a node, or in this machine's own network; without `slots` it offers what its
    node has. Kernels do not see what is in `hidden`.
    """
    enter = ["nsenter", f"--net=/run/netns/{node.namespace}"] if node is not None else []
    return [
        *(*enter, *_daemon("agent"), "run", "--id", agent_id, "--data-dir", str(directory)),
        *joining.arguments,
        *("--listen", listen, "--advertise", listen, "--hide", str(hidden)),
        # A node reaches no archive: who starts the cluster builds.
        "--no-build",
        # Without a node, the agent finds out which of the machine's addresses is the one.
        *(("--underlay-address", node.address) if node is not None else ()),
        *(("--slots", ",".join(f"{name}={amount}" for name, amount in slots.items())) if slots else ()),
    ]


def router(
    router_id: str, directory: Path, joining: Joining, *, clients: int, url_port: int, envoy: Path | None
) -> list[str]:
    """Returns the command of a router for clients at a port; addresses of endpoints have `url_port`."""
    return [
        *(*_daemon("router"), "run", "--id", router_id, "--data-dir", str(directory)),
        *joining.arguments,
        *("--listen", "127.0.0.1:0", "--plain-http", "--stop-engine"),
        *("--clients", f"127.0.0.1:{clients}", "--url", f"http://localhost:{url_port}"),
        *(("--envoy", str(envoy)) if envoy is not None else ()),
    ]


def _daemon(name: str) -> list[str]:
    """Returns how a daemon's command begins: what it writes is in its log at once, also a crash of the interpreter."""
    return module_command(f"retinue.{name}.main", "-u", "-X", "faulthandler")
