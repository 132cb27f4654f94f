"""A node whose certificate has expired gets another one by itself, and announces itself at once."""

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
from tests.integration.agent.manager_side import TOKEN, Manager
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from pathlib import Path

EXPIRED = (dt.timedelta(hours=-2), dt.timedelta(hours=1))


async def expired(manager: Manager, directory: Path) -> IdentityStore:
    """The identity of a node whose certificate ended an hour ago."""
    manager.enrollment.life = EXPIRED
    store = IdentityStore(directory / "identity.json")
    store.save(await enroll("node-1", (manager.address,), TOKEN, manager.authority.fingerprint))
    return store


def announcer(manager: Manager, store: IdentityStore, *managers: str) -> Announcer:
    about = Announcement((*managers, manager.address), "127.0.0.1:1", "i", "1")
    return Announcer(about, store, random.SystemRandom())


async def test_a_node_comes_back_by_the_key_of_an_expired_certificate(manager: Manager, tmp_path: Path) -> None:
    store = await expired(manager, tmp_path)
    old = store.current()
    # One manager is gone for good.
    at_work = announcer(manager, store, "127.0.0.2:1")
    tasks = [
        asyncio.create_task(at_work.announce_always(asyncio.Event().wait)),
        asyncio.create_task(at_work.renew_always()),
    ]
    try:
        assert await manager.announced() == "127.0.0.1:1"
    finally:
        for task in tasks:
            task.cancel()
    assert store.current().certificate == manager.enrollment.recovered.get_nowait()
    assert store.current().private_key != old.private_key
    assert store.current().enrolment == old.enrolment
    # It is kept.
    assert IdentityStore(tmp_path / "identity.json").load("node-1") == store.current()


async def test_a_certificate_that_only_the_manager_takes_for_expired_is_renewed_too(
    manager: Manager, tmp_path: Path
) -> None:
    store = await expired(manager, tmp_path)
    about = Announcement((manager.address,), "127.0.0.1:1", "i", "1")
    # By this clock, it has an hour left.
    slow = Announcer(about, store, random.SystemRandom(), lambda: dt.datetime.now(dt.UTC) - dt.timedelta(hours=2))
    await slow.renew()
    assert store.current().certificate == manager.enrollment.recovered.get_nowait()


async def test_a_revoked_node_says_so_and_keeps_its_identity(
    manager: Manager, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = await expired(manager, tmp_path)
    old = store.current()
    manager.enrollment.revoked = True
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await announcer(manager, store).renew()
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert store.current() == old


async def test_a_node_starts_with_an_expired_certificate_and_without_a_manager(
    manager: Manager, tmp_path: Path
) -> None:
    store = await expired(manager, tmp_path)
    for token, fingerprint in (("", ""), (TOKEN, manager.authority.fingerprint)):
        # Nothing listens there.
        identity = await identify(
            "node-1", ("127.0.0.2:1",), token, fingerprint, IdentityStore(tmp_path / "identity.json")
        )
        assert identity == store.current()
    with pytest.raises(IdentityError, match="a join token and the CA's fingerprint are needed"):
        await identify("node-1", (manager.address,), "", "", IdentityStore(tmp_path / "none.json"))


@pytest.mark.parametrize("revoked", [False, True])
async def test_a_join_token_is_used_only_when_the_expired_certificate_is_refused(
    manager: Manager, tmp_path: Path, revoked: bool
) -> None:
    old = (await expired(manager, tmp_path)).current()
    manager.enrollment.revoked = revoked
    manager.enrollment.life = (dt.timedelta(minutes=-1), dt.timedelta(hours=1))
    fresh = IdentityStore(tmp_path / "identity.json")
    async with asyncio.timeout(NEVER):
        identity = await identify("node-1", (manager.address,), TOKEN, manager.authority.fingerprint, fresh)
    assert not identity.expired(dt.datetime.now(dt.UTC))
    assert (identity.enrolment != old.enrolment) == revoked
    assert manager.enrollment.recovered.qsize() == (0 if revoked else 1)
