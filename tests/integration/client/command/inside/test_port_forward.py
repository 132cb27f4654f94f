"""`retinue port-forward`: local ports while a session lives."""

from __future__ import annotations

import asyncio
import re
import signal
from typing import TYPE_CHECKING

import pytest

from tests.integration.client.command.conftest import Program, line_with
from tests.integration.sessions.web import browser
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from retinue.client.aio import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")

PROGRAM = """
import socket
listening = socket.create_server(("127.0.0.1", 7070))
while True:
    with listening.accept()[0] as connection:
        connection.sendall(b"served")
"""


async def answer(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_from_its_start_to_the_end_of_the_session(retinue: Program, client: Client) -> None:
    ran = await retinue(
        *("run", "--type", "interactive", "-d", "-n", "served", "--slots", "cpu=0.5,mem=64m", "--grace", "0"),
        *("--port", "web:http:7070", "--port", "gone:7071", "--preopen", "7070-7072", "--", "python3", "-c", PROGRAM),
    )
    assert ran.code == 0, ran.err
    session = await client.sessions.get("served")
    assert [(port.name, port.protocol, list(port.ports)) for port in session.view.spec.service_ports] == [
        ("web", "http", [7070]),
        ("gone", "tcp", [7071]),
    ]
    await session.wait("RUNNING", timeout=NEVER)
    process = await retinue.start("port-forward", "served", "web", "7070", "gone")
    try:
        ports = []
        for name in ("web", "7070", "gone"):
            found = re.fullmatch(
                rf"127\.0\.0\.1:(\d+) -> served:{name}\n", await line_with(process.stdout, f":{name}\n")
            )
            assert found is not None
            ports.append(int(found[1]))
        await eventually(lambda: answer(ports[0]), lambda found: found == b"served")
        assert await answer(ports[2]) == b"", "nothing listens there"
        assert [await answer(port) for port in ports[:2]] == [b"served", b"served"]
        await session.terminate(force=True)
        async with asyncio.timeout(NEVER):
            out, err = await process.communicate()
        assert (process.returncode, out) == (0, b"")
        assert b"gone: nothing listens on port 7071\n" in err
        assert err.endswith(b"served has ended\n")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_what_cannot_be(retinue: Program, client: Client) -> None:
    session = await client.sessions.create(
        type="interactive", name="for-ports", slots={"cpu": "0.2", "mem": "64m"}, ports=[("web", "http", 7070)], termination_grace=0
    )  # fmt: skip
    await session.wait("RUNNING", timeout=NEVER)
    for arguments, code, text in (
        (["for-ports", "other"], 3, "there is web (7070)"),
        (["no-such-session", "web"], 3, "no such session"),
        (["for-ports", "web:x"], 2, "is not NAME[:LOCAL]"),
        (["for-ports", "8080:7070"], 2, "the session's port comes first, unlike kubectl's and Docker's: 7070:8080"),
        (["for-ports", "--address", "192.0.2.1", "web"], 2, "cannot listen"),
    ):
        ran = await retinue("port-forward", *arguments)
        assert ran.code == code, ran
        assert text in ran.err
    process = await retinue.start("port-forward", "for-ports", "web")
    await line_with(process.stdout, "-> for-ports:web")
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(NEVER):
        assert await process.wait() == 130


async def test_programs_on_demand(retinue: Program, tmp_path: Path) -> None:
    ran = await retinue(
        *("run", "--type", "interactive", "-n", "with-apps", "--slots", "cpu=0.5,mem=64m", "--grace", "0"),
        *("--port", "web:http:7080", "--app", "web=python3 -u -m http.server {port}", "--", "sleep", "1000"),
    )
    assert ran.code == 0, ran.err
    for arguments, code, out in (
        (["status"], 1, "stopped\n"),
        (["start"], 0, "web answers at port 7080\n"),
        (["start"], 0, "web answers at port 7080\n"),
        (["status"], 0, "running\n"),
    ):
        ran = await retinue("app", *arguments, "with-apps", "web")
        assert (ran.code, ran.out) == (code, out), ran.err
    await eventually(
        lambda: retinue("app", "logs", "with-apps", "web"),
        lambda ran: "Serving HTTP on 0.0.0.0 port 7080" in ran.out,
    )
    # What is opened is the argument of the program that is said to be the browser.
    (tmp_path / "browser").write_text(f'#!/bin/sh\nprintf %s "$1" > {tmp_path}/opened\n')
    (tmp_path / "browser").chmod(0o755)
    ran = await retinue(
        "open", "with-apps", "web", "--path", "/etc/hostname?a=1", "--browser", BROWSER=f"{tmp_path}/browser %s"
    )
    assert ran.code == 0, ran.err
    assert (tmp_path / "opened").read_text() == ran.out.strip()
    async with browser() as web, web.get(ran.out.strip()) as followed:
        assert (followed.history[0].status, followed.url.path_qs) == (303, "/etc/hostname?a=1")
        assert "SimpleHTTP" in followed.headers["Server"]
    for arguments, code, text in (
        (["with-apps", "web", "--path", "//evil.example"], 1, "must begin with one /"),
        (["with-apps", "other"], 3, "there is web (7080)"),
    ):
        ran = await retinue("open", *arguments)
        assert (ran.code, ran.out) == (code, "")
        assert text in ran.err
    refused = await retinue("app", "start", "with-apps", "web", "--", "--directory")
    assert (refused.code, refused.out) == (1, "")
    assert (await retinue("app", "start", "with-apps", "other")).code == 3
