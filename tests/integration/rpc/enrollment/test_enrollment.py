"""Enrolment, announcement and renewal against a real server with a test authority."""

from __future__ import annotations

import asyncio
import datetime as dt
import random
from typing import TYPE_CHECKING

import grpc
import pytest

from retinue.rpc.enrollment.announcement import Announcement, Announcer
from retinue.rpc.enrollment.enrollment import enroll, identify
from retinue.rpc.enrollment.identity import IdentityError, IdentityStore
from tests.integration.agent.authority import Authority
from tests.integration.agent.manager_side import TOKEN, Manager
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from pathlib import Path


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


async def test_a_node_whose_answer_was_lost_asks_again_with_its_key(manager: Manager, tmp_path: Path) -> None:
    path = tmp_path / "identity.json"
    fingerprint = manager.authority.fingerprint
    # What it asked with was written down before, so that also one that was killed asks with the same.
    lost = IdentityStore(path).enrolment_key("node-1", TOKEN)
    identity = await identify("node-1", (manager.address,), TOKEN, fingerprint, IdentityStore(path))
    assert identity.private_key == lost.private_key
    assert IdentityStore(path).enrolment_key("node-1", TOKEN).private_key != lost.private_key


def test_a_key_of_an_enrolment_is_for_one_token_and_for_its_owner(tmp_path: Path) -> None:
    store, file = IdentityStore(tmp_path / "identity.json"), tmp_path / "enrolment.json"
    key = store.enrolment_key("node-1", "a")
    assert file.stat().st_mode & 0o777 == 0o600
    assert store.enrolment_key("node-1", "a").private_key == key.private_key
    # A key that may be known to others is no key of the next enrolment.
    other = store.enrolment_key("node-1", "b")
    assert other.private_key != key.private_key
    file.write_text("{")
    assert store.enrolment_key("node-1", "b").private_key != other.private_key


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
    """A server that shows the CA's certificate without a certificate issued by it gets no token."""
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


async def test_the_log_names_each_manager_that_was_tried(
    manager: Manager, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = IdentityStore(tmp_path / "identity.json")
    store.save(await enroll("node-1", (manager.address,), TOKEN, manager.authority.fingerprint))
    # Nothing listens there.
    about = Announcement(("127.0.0.2:1", "127.0.0.3:1"), "127.0.0.1:1", "i", "1")
    announcing = asyncio.create_task(
        Announcer(about, store, random.SystemRandom()).announce_always(asyncio.Event().wait)
    )
    try:
        (said, *_) = await eventually(
            lambda: [text for text in caplog.messages if text.startswith("cannot announce this node")]
        )
    finally:
        announcing.cancel()
    port = manager.enrollment.agent_port
    assert f"at 127.0.0.2:{port}: UNAVAILABLE: " in said
    assert f"at 127.0.0.3:{port}: UNAVAILABLE: " in said


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
