"""A node's side of the tests: keeps session networks in the namespace it was started in, as asked line by line."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retinue.agent.network.core.topology import Member, Network
from retinue.agent.network.errors import NetworkError
from retinue.agent.network.name_servers import NameServers
from retinue.agent.network.namespaces import opened
from retinue.agent.network.node import NodeNetworks
from retinue.agent.network.underlay import find_uplink, moved_from

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

RESOLVER = "resolv.conf"


@dataclass(frozen=True, slots=True)
class NamespaceAt:
    """The network namespace at a path."""

    path: str

    def opened(self) -> AbstractContextManager[int]:
        return opened(self.path)


def to_network(value: dict[str, Any]) -> Network:
    return Network(**{**value, "members": tuple(Member(**member) for member in value["members"])})


async def perform(node: NodeNetworks, method: str, *arguments: Any) -> Any:  # noqa: PLR0911, PLR0912  # a table of methods
    networks = node.links
    match method:
        case "ensure_egress":
            attempt_id, namespace, *session_address = arguments
            return await node.egress.attach(attempt_id, NamespaceAt(namespace), *session_address)
        case "remove_egress":
            return await node.egress.remove(*arguments)
        case "egress":
            return sorted(await node.egress.observed())
        case "protect":
            node.protect(frozenset(arguments[0]))
            return await asyncio.to_thread(node.guard.look)
        case "resolv.conf":
            (Path(sys.argv[4]) / RESOLVER).write_text(arguments[0])
            return await asyncio.to_thread(node.look_for_name_servers)
        case "route":
            node.route(frozenset(arguments[0]))
            return await asyncio.to_thread(node.guard.look)
        case "publish":
            await node.publisher.publish(arguments[0], arguments[1], closed=arguments[2])
            return node.publisher.location(arguments[0])
        case "lease":
            attempt_id, namespace, *rest = arguments
            return await node.publisher.lease(attempt_id, NamespaceAt(namespace), *rest)
        case "end_lease":
            return await node.publisher.end_lease(*arguments)
        case "expire":
            return await node.publisher.expire()
        case "withdraw":
            return await node.publisher.withdraw(arguments[0])
        case "location":
            return node.publisher.location(arguments[0])
        case "look":
            return await asyncio.to_thread(node.guard.look)
        case "look_closely":
            return await asyncio.to_thread(node.guard.look_closely)
        case "open":
            return await node.open(arguments[0])
        case "close":
            return await node.close()
        case "ensure":
            return await networks.ensure(to_network(arguments[0]))
        case "follow":
            return await node.paths.follow(to_network(arguments[0]))
        case "release":
            return await node.paths.release(arguments[0])
        case "forget":
            return node.paths.forget(arguments[0])
        case "paths":
            return asdict(node.paths.report(arguments[0]))
        case "attach":
            return await networks.attach(to_network(arguments[0]), arguments[1], NamespaceAt(arguments[2]))
        case "detach":
            return await networks.detach(to_network(arguments[0]), arguments[1])
        case "remove":
            return await networks.remove(arguments[0])
        case "observed":
            return sorted(await networks.observed())
        case "namespace":
            return networks.namespace(arguments[0])
        case "moved_from":
            found = await asyncio.to_thread(moved_from, *arguments)
            return None if found is None else found.address
        case "uplink":
            return asdict(await asyncio.to_thread(find_uplink, *arguments))
        case "descriptors":
            return len(os.listdir("/proc/self/fd"))
        case "threads":
            return len(os.listdir("/proc/self/task"))
    raise LookupError(method)


async def answer(node: NodeNetworks, line: str) -> None:
    number, method, *arguments = json.loads(line)
    try:
        result = {"number": number, "result": await perform(node, method, *arguments)}
    except NetworkError as error:
        result = {"number": number, "error": type(error).__name__, "text": str(error)}
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()


def refuse_children(event: str, _: tuple[object, ...]) -> None:
    """Ends the worker when anything in it forks or starts a program: the agent must not."""
    if event in {"os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "os.exec", "subprocess.Popen"}:
        sys.stderr.write(f"the network code called {event}\n")
        os._exit(70)


async def main() -> None:
    agent_id, address, allowed, state = sys.argv[1:5]
    uplink = await asyncio.to_thread(find_uplink, address)
    servers = tuple(sys.argv[5:])
    node = NodeNetworks(
        agent_id,
        uplink,
        Path(state),
        name_servers=NameServers(servers, [Path(state) / RESOLVER]),
        allowed=tuple(filter(None, allowed.split(","))),
    )
    await node.open([])
    async with asyncio.TaskGroup() as tasks:
        while line := await asyncio.to_thread(sys.stdin.readline):
            tasks.create_task(answer(node, line))
    await node.close()


sys.addaudithook(refuse_children)
asyncio.run(main())
