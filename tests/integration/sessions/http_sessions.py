"""Sessions that answer HTTP, the browsers that enter them, and what may happen to either on the way."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retinue.client.client import Client
from tests.integration.sessions import http_server
from tests.integration.sessions.inside import until_printed
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    import aiohttp

    from retinue.client.sessions import Session
    from retinue.devtools.cluster import Cluster

# Made by scripts/install, by the Python that native processes see.
PYTHON = "/var/cache/retinue/jupyterlab/bin/python"
PORTS: list[tuple[str, str, int] | tuple[str, str, int, str]] = [
    ("web", "http", http_server.PORT),
    ("closed", "http", 8081),
    ("raw", "tcp", 8082),
    ("local", "http", http_server.LOCAL_PORT, "localhost"),
]
PROGRAM = Path(http_server.__file__).read_text()
Lose = Callable[[Client, str], Awaitable[object]]
"""How a user loses all rights."""


async def serving(client: Client) -> Session:
    """Returns a session whose main kernel answers HTTP."""
    session = await client.sessions.create(
        type="interactive",
        command=[PYTHON, "-c", PROGRAM],
        slots={"cpu": "0.5", "mem": "256m"},
        # The longest there is: what its program does while it is asked to end is done by then.
        termination_grace=300,
        ports=PORTS,
        preopen_ports=[(8090, 8090)],
    )
    await session.wait("RUNNING", timeout=NEVER)
    await until_printed(session, b"listening")
    return session


async def opened(web: aiohttp.ClientSession, session: Session, port: str = "web") -> str:
    """Returns where the port is, once a browser was let in."""
    ticket = await session.create_port_ticket(port)
    async with web.get(ticket.url) as answer:
        page = await answer.text()
        assert [one.status for one in answer.history] == [303], (answer, page)
    return ticket.origin


async def opened_directly(web: aiohttp.ClientSession, session: Session, cluster: Cluster) -> str:
    """Returns where the port `web` is, once a browser was let in that needs neither manager nor agent from then on."""
    await opened(web, session)
    await eventually(lambda: asyncio.to_thread(is_leased, session, cluster))
    # One that was let in before may be led there later.
    return await opened(web, session)


def is_leased(session: Session, cluster: Cluster) -> bool:
    """Whether the port of the session's kernel is leased at the address of a node, by what the manager says.
    Blocks.
    """
    [kernel] = session.kernels
    reached = f"browsers reach port {http_server.PORT} of {kernel.id}.{kernel.attempt} "
    ways = [line.partition(reached)[2] for line in log_of(cluster).splitlines() if reached in line]
    return bool(ways) and ways[-1].startswith("at 10.")


async def status(web: aiohttp.ClientSession, url: str, **options: Any) -> tuple[int, str]:
    """Returns the status and the text of an answer."""
    async with web.get(url, **options) as answer:
        return answer.status, await answer.text()


def log_of(cluster: Cluster) -> str:
    """Returns what the manager has logged. Blocks."""
    return (cluster.directory / "logs" / "manager.log").read_text()


def engines(cluster: Cluster) -> list[int]:
    """Returns the processes whose parent is the manager, and which are its engine. Blocks."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == cluster.manager.pid and b"envoy" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


async def agent_of(cluster: Cluster, session: Session) -> int:
    """Returns the index of the agent that has the session's kernel."""
    [kernel] = (await session.refresh()).kernels
    return [agent.id for agent in cluster.agents].index(kernel.agent)


@contextlib.asynccontextmanager
async def stopped(*processes: Callable[[signal.Signals], None]) -> AsyncIterator[None]:
    """Processes that do nothing while the block lasts."""
    try:
        for send in processes:
            send(signal.SIGSTOP)
        yield
    finally:
        for send in processes:
            send(signal.SIGCONT)


async def revoke(client: Client, user: str) -> None:
    """Revokes all tokens of a user."""
    async for token in client.tokens.list(user=user):
        await client.tokens.revoke(token.id)


async def delete(client: Client, user: str) -> None:
    """Deletes a user."""
    await client.users.delete(user)
