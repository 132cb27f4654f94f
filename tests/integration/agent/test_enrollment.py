"""Enrolment, announcing and renewal against a real server with a test authority."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import random
import shutil
from typing import TYPE_CHECKING

import grpc
import pytest

from retinue.agent import daemon
from retinue.agent.announcement import Announcement, Announcer
from retinue.agent.enrollment.enrollment import enroll
from retinue.agent.enrollment.identity import IdentityError, IdentityStore, instance_of
from retinue.agent.host.cgroups import Cgroups
from tests.integration.agent.authority import Authority
from tests.integration.agent.manager_side import TOKEN, Manager
from tests.integration.agent.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.agent.conftest import Agent


async def test_enrol(manager: Manager, tmp_path: Path) -> None:
    printed = ":".join(manager.authority.fingerprint[n : n + 2] for n in range(0, 64, 2)).upper()
    identity = await enroll("node-1", (manager.address,), TOKEN, printed)
    assert identity.agent_endpoint == f":{manager.enrollment.agent_port}"
    assert identity.ca_certificate.strip() == manager.authority.certificate.strip()
    store = IdentityStore(tmp_path / "identity.json")
    assert store.load("node-1") is None
    store.save(identity)
    assert (tmp_path / "identity.json").stat().st_mode & 0o777 == 0o600
    assert IdentityStore(tmp_path / "identity.json").load("node-1") == identity
    with pytest.raises(IdentityError, match="belongs to agent node-1"):
        IdentityStore(tmp_path / "identity.json").load("node-2")
    (tmp_path / "identity.json").write_text("{")
    with pytest.raises(IdentityError, match="damaged"):
        store.load("node-1")


async def test_wrong_fingerprint_never_sends_the_token(manager: Manager) -> None:
    with pytest.raises(IdentityError, match="no CA certificate"):
        await enroll("node-1", (manager.address,), TOKEN, Authority().fingerprint)
    with pytest.raises(ValueError, match="64 hexadecimal"):
        await enroll("node-1", (manager.address,), TOKEN, "abc")


async def test_wrong_token(manager: Manager) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await enroll("node-1", (manager.address,), "guess", manager.authority.fingerprint)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_impostor_with_the_right_chain_and_no_key(manager: Manager) -> None:
    """Whoever shows the CA's certificate without having a certificate of it is not spoken to."""
    impostor = Manager(Authority())
    other = Authority()
    impostor.key, impostor.certificate = other.issue("manager.retinue", "spiffe://retinue/manager")
    impostor.certificate += manager.authority.certificate
    await impostor.start()
    try:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await enroll("node-1", (impostor.address,), TOKEN, manager.authority.fingerprint)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    finally:
        await impostor.stop()


async def test_announces_as_itself_and_needs_no_token_again(agent: Agent, manager: Manager) -> None:
    uri = f"spiffe://retinue/agent/{agent.settings.agent_id}".encode()
    assert uri in manager.enrollment.callers[0]
    await agent.stop()
    agent.settings = dataclasses.replace(agent.settings, join_token="", ca_fingerprint="")
    first = agent.address
    await agent.start()
    assert agent.address != ""
    assert manager.enrollment.announced.empty()
    assert first.startswith("127.0.0.1:")


async def test_an_instance_is_one_state_directory(agent: Agent, manager: Manager, tmp_path: Path) -> None:
    identity = IdentityStore(agent.settings.state_dir / "identity.json").load(agent.settings.agent_id)
    assert identity is not None
    machine = tmp_path / "product_uuid"
    machine.write_text("one\n")
    first = instance_of(identity, agent.settings.state_dir, machine)
    await agent.stop()
    for instance in ("the same", "the same", "another"):
        if instance == "another":
            shutil.copytree(agent.settings.state_dir, tmp_path / "copy")
            agent.settings = dataclasses.replace(agent.settings, state_dir=tmp_path / "copy")
        await agent.start()
        # What the agent announced last is taken from the queue by `start`.
        found = instance_of(identity, agent.settings.state_dir, machine)
        assert (found == first) == (instance == "the same")
        welcome = (await agent.converse()).welcome
        assert welcome.instance == instance_of(identity, agent.settings.state_dir)
        await agent.stop()
    # A machine that was copied as a whole, and an enrolment of its own.
    machine.write_text("two\n")
    assert instance_of(identity, agent.settings.state_dir, machine) != found
    assert instance_of(dataclasses.replace(identity, enrolment="x"), agent.settings.state_dir, machine) != found


async def test_not_enrolled(settings: daemon.Settings) -> None:
    without = dataclasses.replace(settings, join_token="")
    with pytest.raises(IdentityError, match="is not enrolled"):
        await daemon.serve(without, asyncio.Event())


async def test_renewed_certificate_is_shown_at_once(settings: daemon.Settings, manager: Manager, agent: Agent) -> None:
    """A certificate two thirds of whose life are over is replaced, and the server uses the new one without a restart."""
    await agent.stop()
    path = settings.state_dir / "identity.json"
    path.unlink()
    manager.enrollment.life = (dt.timedelta(hours=-3), dt.timedelta(hours=4))
    await agent.start()
    async with asyncio.timeout(10):
        renewed = await manager.enrollment.renewed.get()
    store = IdentityStore(path)
    await eventually(lambda: (now := store.load(settings.agent_id)) is not None and now.certificate == renewed)
    host, _, port = agent.address.rpartition(":")
    # It is on the disk a moment before it is in use.
    async with asyncio.timeout(10):
        while await asyncio.to_thread(_shown, host, int(port), manager) != renewed:
            await asyncio.sleep(0.01)
    await agent.converse()


def _shown(host: str, port: int, manager: Manager) -> str:
    """The certificate that a server shows, in PEM."""
    import socket  # noqa: PLC0415
    import ssl  # noqa: PLC0415

    context = ssl.create_default_context(cadata=manager.authority.certificate)
    context.check_hostname = False
    context.set_alpn_protocols(["h2"])
    with socket.create_connection((host, port)) as plain, context.wrap_socket(plain) as secure:
        certificate = secure.getpeercert(binary_form=True)
    assert certificate is not None
    return ssl.DER_cert_to_PEM_cert(certificate)


async def test_another_manager_is_turned_to_when_one_is_dead(manager: Manager, tmp_path: Path) -> None:
    # Nothing listens at the first one's ports; that for agents has the same number everywhere.
    managers = ("127.0.0.2:1", manager.address)
    store = IdentityStore(tmp_path / "identity.json")
    store.save(await enroll("node-1", managers, TOKEN, manager.authority.fingerprint))
    announcer = Announcer(Announcement(managers, "127.0.0.1:1", "i", "1"), store, random.SystemRandom())
    await announcer.announce()
    assert await manager.announced() == "127.0.0.1:1"
    await announcer.renew()
    assert store.current().certificate == await manager.enrollment.renewed.get()


async def test_a_refusal_is_not_taken_to_another_manager(manager: Manager) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await enroll("node-1", (manager.address, "127.0.0.2:1"), "guess", manager.authority.fingerprint)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_renewal_waits_for_two_thirds(manager: Manager, tmp_path: Path) -> None:
    manager.enrollment.life = (dt.timedelta(0), dt.timedelta(hours=3))
    store = IdentityStore(tmp_path / "identity.json")
    store.save(await enroll("node-1", (manager.address,), TOKEN, manager.authority.fingerprint))
    begin, end = store.current().life()
    assert end - begin == dt.timedelta(hours=3)
    assert not store.current().due(begin + dt.timedelta(minutes=119))
    assert store.current().due(begin + dt.timedelta(minutes=120))
    assert store.current().expired(end)
    about = Announcement((manager.address,), "127.0.0.1:1", "i", "1")
    announcer = Announcer(about, store, random.SystemRandom())
    old = store.current()
    await announcer.renew()
    assert store.current().certificate == await manager.enrollment.renewed.get()
    assert store.current().private_key != old.private_key


async def test_agent_that_cannot_listen_leaves_nothing(settings: daemon.Settings, agent: Agent) -> None:
    other = dataclasses.replace(
        settings,
        agent_id=f"{settings.agent_id}-b",
        state_dir=settings.state_dir / "b",
        scratch_dir=settings.state_dir / "b" / "scratch",
        listen=agent.address,
    )

    with pytest.raises(OSError, match="cannot listen"):
        await daemon.serve(other, asyncio.Event())
    assert not Cgroups(other.agent_id).names()
