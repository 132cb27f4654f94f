"""SFTP past the stream: connections to the node itself or to the manager, what ends them,
and what carries them where neither is reached.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from retinue.client.errors import CallError
from retinue.manager.v1 import session_pb2 as pb
from retinue.rpc.direct_port import connect
from retinue.types.v1.port_pb2 import DirectPort
from tests.integration.client.command.conftest import Program
from tests.integration.client.command.inside.sftp_sessions import (
    MARKER,
    Clients,
    answered,
    companions,
    connected,
    connected_to,
    direct_port,
    logged,
    peers,
    relay_port,
    serve,
    unreachable,
)
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from retinue.client.aio import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")

MIB = 1 << 20
SILENT = 300


async def ended(process: asyncio.subprocess.Process) -> None:
    """Returns when a client has noticed that its connection ended, which it does with the next command."""
    assert process.stdin is not None
    async with asyncio.timeout(NEVER):
        while process.returncode is None:
            with contextlib.suppress(ConnectionError):
                process.stdin.write(b"ls -1\n")
                await process.stdin.drain()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), 0.2)


async def test_no_byte_passes_a_program_of_ours(files: Program, client: Client, shared: Path, tmp_path: Path) -> None:
    clients = await serve(client, files, shared, "direct")
    (shared / MARKER).touch()
    (tmp_path / "sent").write_bytes(os.urandom(MIB))
    session = await client.sessions.get("direct")
    node = {await direct_port(client, "direct")}
    async with connected_to(clients, node.__eq__) as process:
        assert process.stdin is not None
        process.stdin.write(f"put {tmp_path}/sent received\n".encode())
        await answered(process)
        assert len(companions(session.id)) == 1
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), NEVER) == 0
    assert (shared / "received").read_bytes() == (tmp_path / "sent").read_bytes()
    # What stayed beside the connection ends with it.
    await eventually(lambda: not companions(session.id))
    # The journal and the log name it as they name any other.
    text = await logged(client, session.id)
    found = re.search(r"^Accepted publickey for work from (127\.\S+) port ", text, re.MULTILINE)
    assert found is not None, text
    assert (await access_from(client, session.id, found[1])).source == "127.0.0.1"


async def access_from(client: Client, session_id: str, address: str) -> pb.KernelAccessed:
    """Returns the entry of the journal of a connection by SFTP that the log calls by this address."""
    async with aclosing(client.sessions.watch(after_revision=0, session_id=session_id)) as events:
        async for event in events:
            accessed = event.kernel_accessed
            if event.WhichOneof("change") == "kernel_accessed" and accessed.connection_address == address:
                assert accessed.method == pb.ACCESS_METHOD_SFTP
                return accessed
    raise AssertionError("the journal has ended")


@pytest.mark.parametrize("verdict", ["drop", "reject with tcp reset"])
async def test_a_node_behind_a_firewall(
    files: Program, client: Client, shared: Path, tmp_path: Path, verdict: str
) -> None:
    clients = await serve(client, files, shared, "behind")
    (shared / MARKER).touch()
    content = os.urandom(4 * MIB)
    (tmp_path / "sent").write_bytes(content)
    places = [await direct_port(client, "behind"), await relay_port(client, "behind")]
    with unreachable(places, verdict):
        async with connected(clients) as process:
            assert not peers(process) & set(places)
        ran = await clients.batch(f"put {tmp_path}/sent received", f"get received {tmp_path}/back")
        assert (ran.code, ran.err) == (0, "")
        # One that has not answered is let alone for a while; one that refuses answers at once.
        assert len(list((tmp_path / "ssh").glob("silent-*"))) == (len(places) if verdict == "drop" else 0)
    assert (tmp_path / "back").read_bytes() == content


async def test_the_manager_leads_to_a_node_that_clients_do_not_reach(
    files: Program, client: Client, shared: Path, tmp_path: Path
) -> None:
    clients = await serve(client, files, shared, "led")
    (shared / MARKER).touch()
    content = os.urandom(4 * MIB)
    (tmp_path / "sent").write_bytes(content)
    session, node = await client.sessions.get("led"), await direct_port(client, "led")
    manager = {await relay_port(client, "led")}

    def forget_node() -> None:
        """As if the client had found within the last minute that it does not answer."""
        (tmp_path / "ssh" / f"silent-{node[0]}%3A{node[1]}").touch()

    async with connected_to(clients, manager.__eq__, forget_node) as process:
        assert process.stdin is not None
        process.stdin.write(f"put {tmp_path}/sent received\nget received {tmp_path}/back\n".encode())
        await answered(process)
        assert (tmp_path / "back").read_bytes() == (shared / "received").read_bytes() == content
        # Whatever ends the stream ends the connection beside it.
        for companion in companions(session.id):
            os.kill(companion, signal.SIGKILL)
        await ended(process)
    async with connected_to(clients, manager.__eq__, forget_node) as process:
        await session.terminate(force=True)
        await ended(process)
    await eventually(lambda: not companions(session.id))


async def test_a_ticket_of_the_manager_is_refused_where_the_manager_does_not_reach_the_node(
    files: Program, client: Client, shared: Path
) -> None:
    await serve(client, files, shared, "cut-off")
    with unreachable([await direct_port(client, "cut-off")], "reject with tcp reset"):
        async with client.sessions.open_port("cut-off", "sftp", direct=True) as stream:
            assert stream.relay_port is not None
            relay = DirectPort(host="127.0.0.1", port=stream.relay_port.port, ticket=stream.relay_port.ticket)
            async with asyncio.timeout(NEVER):
                for ticket in (bytes(32), relay.ticket, relay.ticket):
                    with pytest.raises(ConnectionRefusedError):
                        await connect(DirectPort(host=relay.host, port=relay.port, ticket=ticket))
                # The stream is there for all else.
                await stream.refuse_direct()
                assert (await anext(aiter(stream))).startswith(b"SSH-2.0-")


async def test_silent_connections_keep_no_user_out(files: Program, client: Client, shared: Path) -> None:
    clients = await serve(client, files, shared, "crowded")
    place = await direct_port(client, "crowded")
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(SILENT):
            _, writer = await asyncio.open_connection(*place)
            stack.callback(writer.close)
        ran = await clients.batch("pwd")
        assert ran.code == 0, ran.err


async def test_what_ends_a_direct_connection(
    files: Program, client: Client, shared: Path, owner: str, owner_name: str
) -> None:
    (shared / MARKER).touch()
    clients = await serve(client, files, shared, "ended")
    session = await client.sessions.get("ended")
    async with connected_to(clients, bool) as process:
        # What holds the right to it: a user who kills that has closed it.
        for companion in companions(session.id):
            os.kill(companion, signal.SIGKILL)
        await ended(process)
    own = Program({**files.environment, "RETINUE_TOKEN": owner})
    ran = await own("run", "--type", "system", "-n", "theirs", "--mount", f"{shared}:/data")
    assert ran.code == 0, ran.err
    ran = await own("ssh-config", "theirs")
    assert ran.code == 0, ran.err
    (shared.parent / "theirs.config").write_text(ran.out)
    async with connected_to(Clients(own, shared.parent / "theirs.config", "theirs.retinue"), bool) as process:
        # Who has no token any more has no connection either.
        async for token in client.tokens.list(user=owner_name):
            await client.tokens.revoke(token.id)
        await ended(process)
    async with connected_to(clients, bool) as process:
        await session.terminate(force=True)
        await ended(process)
    await eventually(lambda: not companions(session.id))


async def test_what_speaks_no_ssh_is_reached_directly_by_tls_only(client: Client) -> None:
    session = await client.sessions.create(
        type="interactive", name="plain", slots={"cpu": "0.1", "mem": "64m"}, ports=[("web", "http", 8000)]
    )
    await session.wait("RUNNING", timeout=NEVER)
    command = ["python3", "-m", "http.server", "--bind", "127.0.0.1", "8000"]
    async with session.attach(command):

        async def answers() -> bool:
            async with client.sessions.open_port("plain", "web", direct=True) as connection:
                assert connection.direct_port is not None
                assert connection.direct_port.identity
                await connection.refuse_direct()
                await connection.write(b"GET / HTTP/1.0\r\n\r\n")
                return (await anext(aiter(connection))).startswith(b"HTTP/1.0 200")

        await eventually(answers, ignoring=CallError)
