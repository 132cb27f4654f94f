"""A session in a virtual machine, from a client through the manager and the agent into the guest and back:
all that users do with any session.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from retinue.agent.kernel.python_runtime import build_runtime
from retinue.client.errors import CallError
from tests.integration.sessions import port_server
from tests.integration.sessions.inside import read, until_printed
from tests.integration.sessions.port_sessions import said
from tests.integration.sessions.web import browser
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.client.aio import Client
    from retinue.client.sessions import Session
    from retinue.devtools.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")

LINES = 100_000
WEB = """
import http.server, os, threading

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"from " + os.uname().nodename.encode())

web = http.server.ThreadingHTTPServer(("127.0.0.1", 8085), Handler)
threading.Thread(target=web.serve_forever, daemon=True).start()
"""
PRINT = f"print('\\n'.join(f'line {{number:06}}' for number in range({LINES})))\n"
PROGRAM = (
    "from __future__ import annotations\n"
    + WEB
    + PRINT
    + Path(port_server.__file__).read_text().replace("from __future__", "# ")
)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def session(cluster: Cluster) -> AsyncIterator[Session]:
    await asyncio.to_thread(build_runtime)
    async with cluster.client() as client:
        session = await client.sessions.create(
            type="interactive",
            command=["python3", "-c", PROGRAM],
            isolation="vm",
            slots={"cpu": "1", "mem": "512m"},
            environment={"GREETING": "hello there"},
            termination_grace=0,
            ports=[
                ("echo", "tcp", port_server.ECHO),
                ("digest", "tcp", port_server.DIGEST),
                ("six", "tcp", port_server.V6),
                ("web", "http", 8085),
            ],
        )
        try:
            await session.wait("RUNNING", timeout=NEVER)
            await until_printed(session, b"listening")
            yield session
        finally:
            await session.terminate(force=True)
            await session.wait_ended(NEVER)


async def test_what_it_prints_has_exact_offsets(session: Session) -> None:
    expected = "".join(f"line {number:06}\n" for number in range(LINES)) + "listening\n"
    out = bytearray()
    async with asyncio.timeout(NEVER):
        async for chunk in session.logs(follow=True):
            assert chunk.offset == len(out)
            out.extend(chunk.data)
            if b"listening" in out:
                break
    assert out.decode() == expected
    middle = b"".join([chunk.data async for chunk in session.logs(offset=1_000_000)])
    assert middle == expected.encode()[1_000_000:]


async def test_a_shell_on_a_terminal(session: Session) -> None:
    async with session.attach(terminal=(33, 77), environment={"TERM": "xterm"}) as shell:
        await shell.write(b"stty size; echo $GREETING\n")
        assert b"33 77" in (await read(shell, b"hello there"))[0]
        await shell.resize(44, 88)
        await shell.write(b"stty size\n")
        await read(shell, b"44 88")
        # Ctrl-C reaches what runs in it, and the shell stays. A key that comes before the
        # program runs reaches the shell only.
        await shell.write(b'sh -c \'trap "echo inter""rupted; exit" INT; echo rea""dy; while :; do sleep 0.1; done\'\n')
        await read(shell, b"ready")
        await shell.write(b"\x03")
        await read(shell, b"interrupted")
        await shell.write(b"exit 5\n")
        await read(shell)
        assert shell.exit_code == 5


async def test_a_signal_and_both_outputs(session: Session) -> None:
    async with session.attach(
        ["sh", "-c", "trap 'echo caught >&2; exit 3' USR1; echo set; while :; do sleep 0.1; done"]
    ) as command:
        await read(command, b"set")
        await command.signal("USR1")
        async with asyncio.timeout(NEVER):
            pieces = [piece async for piece in command]
        # The shell may say first that its `sleep` was ended.
        assert b"".join(piece.data for piece in pieces if piece.errors).endswith(b"caught\n")
        assert command.exit_code == 3


async def test_code_keeps_its_variables(session: Session) -> None:
    async with asyncio.timeout(NEVER), session.code() as code:
        assert (await code.execute("import os; answer = 6 * 7; print(os.uname().nodename)")).stdout == "main1\n"
        assert (await code.execute("answer")).value == "42"
        failed = await code.execute("1 / 0")
        assert (failed.status, failed.error_name) == ("ERROR", "ZeroDivisionError")


async def test_ports_lead_to_what_listens_inside(session: Session) -> None:
    expected = b"hello" + b"%020d" % 5
    # All of them at a loopback address of the guest, of either version of IP.
    for port in ("echo", port_server.ECHO, "six"):
        assert await said(session, port) == expected
    data = os.urandom(1 << 20)
    assert await said(session, "digest", data) == hashlib.sha256(data).hexdigest().encode()
    with pytest.raises(CallError):
        await said(session, 7999)


async def test_files_there_and_back(session: Session, tmp_path: Path) -> None:
    data = os.urandom(3 << 20)
    (tmp_path / "big").write_bytes(data)
    files = session.files()
    await files.upload(tmp_path / "big", "in/big")
    async with session.attach(["sh", "-c", "sha256sum in/big && cp in/big in/copy"]) as command:
        await command.end_input()
        assert (await read(command))[0].split()[0].decode() == hashlib.sha256(data).hexdigest()
    await files.download("in/copy", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == data


async def test_a_browser_enters_an_app(session: Session) -> None:
    ticket = await session.create_port_ticket("web")
    async with browser() as web, web.get(ticket.url) as answer:
        assert (answer.status, await answer.text()) == (200, "from main1")


async def test_its_use_is_measured(session: Session, client: Client) -> None:
    async with asyncio.timeout(NEVER), aclosing(client.sessions.stats(session.id, interval=1)) as looks:
        async for look in looks:
            usage = look.kernels[0].usage
            if usage.cpu_time.ToNanoseconds() and usage.HasField("received_bytes"):
                break
    # All of QEMU counts, and the node gives it no more.
    assert usage.memory_limit_bytes == 512 << 20
    assert 128 << 20 < usage.memory_bytes <= 512 << 20
