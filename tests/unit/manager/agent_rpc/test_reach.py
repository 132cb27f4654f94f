"""Why an agent is not reached, by what answers at its address."""

from __future__ import annotations

import asyncio
import datetime as dt
import socket
import ssl
import tempfile
from typing import TYPE_CHECKING

import pytest

from retinue.manager.agent_rpc import reach
from retinue.manager.agent_rpc.dialer import NOT_REACHED_SECONDS, AgentNotReachedError, Dialer
from retinue.manager.agent_rpc.reach import REFUSED, ClientIdentity, NotReached, explain, probe
from retinue.manager.identity.authority import Authority
from retinue.manager.identity.principal import Kind
from retinue.rpc.core.reasons import AgentConditionReason
from tests.integration.manager.rig import key_and_request
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LONG_AGO = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


def now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def authority(directory: Path, name: str) -> Authority:
    (directory / name).mkdir()
    return Authority.load(directory / name, now)


@pytest.fixture
def own(tmp_path: Path) -> Authority:
    return authority(tmp_path, "own")


def identity(of: Authority) -> ClientIdentity:
    certificate = of.issue_manager_client()
    return ClientIdentity(of.certificate, certificate.key, certificate.certificate)


def served_by(issuer: Authority, kind: Kind, name: str, trusts: Authority) -> ssl.SSLContext:
    """The context of a node's port that takes managers which `trusts` vouches for."""
    key, request = key_and_request()
    certificate = issuer.issue_node(kind, name, 1, request).certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"])
    context.load_verify_locations(cadata=trusts.certificate.decode())
    with tempfile.NamedTemporaryFile() as file:
        file.write(key + certificate)
        file.flush()
        context.load_cert_chain(file.name)
    return context


async def probed(
    context: ssl.SSLContext | None, client: ClientIdentity, first: bytes = b"settings"
) -> NotReached | None:
    """What a probe of agent n1 says where a server answers; without a context, in plain text."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        return await probe("n1", f"127.0.0.1:{port}", lambda: client, NEVER)


async def test_the_agent_itself_is_reached(own: Authority) -> None:
    assert await probed(served_by(own, Kind.AGENT, "n1", own), identity(own)) is None


async def test_another_agent_is_named(own: Authority) -> None:
    found = await probed(served_by(own, Kind.AGENT, "n2", own), identity(own))
    assert found is not None
    assert found.reason is AgentConditionReason.WRONG_AGENT
    assert "agent n2 answers" in found.why


async def test_what_is_no_agent_is_told_from_one(own: Authority, tmp_path: Path) -> None:
    others = authority(tmp_path, "others")
    for context in (
        served_by(others, Kind.AGENT, "n1", own),
        served_by(own, Kind.ROUTER, "n1", own),
        None,
    ):
        found = await probed(context, identity(own))
        assert found is not None
        assert found.reason is AgentConditionReason.NOT_AN_AGENT


async def test_an_agent_that_refuses_the_manager_is_not_reached(own: Authority, tmp_path: Path) -> None:
    context = served_by(own, Kind.AGENT, "n1", authority(tmp_path, "others"))
    found = await probed(context, identity(own))
    assert found is not None
    assert found.reason is AgentConditionReason.MANAGER_REFUSED


async def test_a_certificate_that_has_ended_is_said(tmp_path: Path) -> None:
    time = [LONG_AGO]
    (tmp_path / "own").mkdir()
    own = Authority.load(tmp_path / "own", lambda: time[0])
    context = served_by(own, Kind.AGENT, "n1", own)
    time[0] = now()
    found = await probed(context, identity(own))
    assert found is not None
    assert found.reason is AgentConditionReason.CERTIFICATE_INVALID
    assert "clocks" in found.why


@pytest.fixture
def unused() -> Iterator[str]:
    """An address that nothing listens at."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


async def test_where_nothing_listens_the_connection_is_refused(unused: str) -> None:
    assert await probe("n1", unused, None) == REFUSED


async def test_what_takes_connections_and_says_nothing_hangs(own: Authority) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert await probe("n1", address, None) is None
        found = await probe("n1", address, lambda: identity(own), 0.5)
    assert found is not None
    assert found.reason is AgentConditionReason.TIMED_OUT
    assert "hangs" in found.why


@pytest.mark.parametrize("address", ["", "host", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:99999", "[::1:1", ":\0:1"])
async def test_an_address_that_is_none_is_an_answer(address: str) -> None:
    found = await probe("n1", address, None)
    assert found is not None
    assert found.why


@pytest.mark.parametrize("connected", [False, True])
@pytest.mark.parametrize(
    "error", [OSError(), OSError(113, "x"), TimeoutError(), ValueError(), RuntimeError("x"), ssl.SSLError(), KeyError()]
)
def test_every_error_has_words_without_an_address(error: Exception, connected: bool) -> None:
    found = explain(error, connected=connected)
    assert found.why
    assert found.reason in AgentConditionReason


async def test_calls_of_an_agent_that_was_not_reached_fail_at_once_for_a_while(unused: str) -> None:
    time = [0.0]
    dialer = Dialer(lambda: pytest.fail("a channel was opened"), clock=lambda: time[0])
    failed: list[str] = []
    dialer.on_failure(failed.append)
    dialer.check("n1", unused)
    assert await dialer.explain("n1", unused) == REFUSED
    assert failed == ["n1"]
    with pytest.raises(AgentNotReachedError, match="agent n1 is not reached: the connection is refused"):
        dialer.check("n1", unused)
    # At another address, or another agent, is another matter.
    dialer.check("n1", f"{unused}0")
    dialer.check("n2", unused)
    time[0] += NOT_REACHED_SECONDS
    dialer.check("n1", unused)
    await dialer.explain("n1", unused)
    dialer.note("n1", unused, None)
    dialer.check("n1", unused)
    await dialer.close()


async def test_probes_at_the_same_time_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = 0
    release = asyncio.Event()

    async def slow(*_: object) -> NotReached | None:
        nonlocal begun
        begun += 1
        await release.wait()
        return REFUSED

    monkeypatch.setattr(reach, "probe", slow)
    dialer = Dialer(lambda: pytest.fail("a channel was opened"))
    asking = [asyncio.create_task(dialer.explain("n1", "127.0.0.1:1")) for _ in range(50)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    release.set()
    assert await asyncio.gather(*asking) == [REFUSED] * 50
    assert begun == 1
    await dialer.close()
