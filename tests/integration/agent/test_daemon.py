"""An agent from its enrolment to its end, against a real server with a test authority."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from retinue.agent import daemon
from retinue.agent.host import loop_disk
from retinue.agent.host.cgroups import Cgroups
from retinue.agent.inside import work_disk
from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.rpc.enrollment.identity import IdentityError, IdentityStore, instance_of
from tests.integration.agent.conftest import Agent
from tests.integration.agent.manager_side import Manager, attempt
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from retinue.agent.settings import Settings
    from tests.integration.agent.conftest import Place


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


async def test_what_is_free_on_the_disk_of_work_directories_is_offered(
    settings: Settings, manager: Manager, place: Place
) -> None:
    """Less a tenth, or the reserve that was given. What its own kernels have written there stays in the offer."""
    image, disk = place.directory / "disk.image", place.directory / "disk"
    loop_disk.make(image, 512 << 20, 1000)
    disk.mkdir()
    loop_disk.mount(image, disk)
    status = os.statvfs(disk)
    free = status.f_bavail * status.f_frsize
    agent = Agent(dataclasses.replace(settings, scratch_dir=disk / "scratch"), manager)
    try:
        await agent.start()
        conversation = await agent.converse()
        offered = conversation.welcome.capacity["disk"]
        assert 0.9 * free - (2 << 20) <= offered <= 0.9 * free
        write = "dd if=/dev/zero of=big bs=1M count=64 conv=fsync && echo written; sleep 1000"
        slots = {"cpu": 1000, "mem": 128 << 20, "disk": 128 << 20}
        await conversation.snapshot(attempt("k", "sh", "-c", write, slots=slots))
        await conversation.until_state("k.1", pb.ATTEMPT_STATE_RUNNING)
        written = work_disk.image_of(disk / "scratch" / "k.1")
        await eventually(lambda: written.stat().st_blocks * 512, lambda taken: taken > 64 << 20)
        await agent.stop()
        await agent.start()
        assert abs((await agent.converse()).welcome.capacity["disk"] - offered) <= 2 << 20
        await agent.stop()
        agent.settings = dataclasses.replace(agent.settings, reserve={"disk": 200 << 20})
        await agent.start()
        reserved = (await agent.converse()).welcome.capacity["disk"]
        assert abs(free - (200 << 20) - reserved) <= 2 << 20
    finally:
        await agent.stop()


async def test_not_enrolled(settings: Settings) -> None:
    without = dataclasses.replace(settings, join_token="")
    with pytest.raises(IdentityError, match="is not enrolled"):
        await daemon.serve(without, asyncio.Event())


async def test_renewed_certificate_is_shown_at_once(settings: Settings, manager: Manager, agent: Agent) -> None:
    """A certificate two thirds of whose life have passed is replaced,
    and the server uses the new one without a restart.
    """
    await agent.stop()
    path = settings.state_dir / "identity.json"
    path.unlink()
    manager.enrollment.life = (dt.timedelta(hours=-3), dt.timedelta(hours=4))
    await agent.start()
    renewed = await manager.enrollment.renewed.get()
    store = IdentityStore(path)
    await eventually(lambda: (now := store.load(settings.agent_id)) is not None and now.certificate == renewed)
    host, _, port = agent.address.rpartition(":")
    # It is on the disk a moment before it is in use.
    await eventually(lambda: asyncio.to_thread(_shown, host, int(port), manager), lambda shown: shown == renewed)
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


async def test_agent_that_cannot_listen_leaves_nothing(settings: Settings, agent: Agent) -> None:
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
