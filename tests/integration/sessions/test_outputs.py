"""What is kept of the output of ended kernels: its tail, at its true offset."""

from __future__ import annotations

import itertools

import pytest

from retinue.client import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEPT = 1024 * 1024


async def test_the_tail_of_a_long_output_is_kept_at_its_offset(client: Client) -> None:
    size = 3 * KEPT
    session = await client.sessions.create(
        type="batch",
        command=["sh", "-c", f"yes 0123456789abcde | head -c {size}; printf end"],
        slots={"cpu": "1", "mem": "64m"},
    )
    await session.wait_ended(60)
    chunks = [chunk async for chunk in client.sessions.logs(session.id, follow=True)]
    data = b"".join(chunk.data for chunk in chunks)
    assert data.endswith(b"0123456789abcde\nend")
    assert chunks[0].offset + len(data) == size + 3
    assert len(data) in (size + 3, KEPT), "whole while its agent has it, the tail once it was collected"
    for before, after in itertools.pairwise(chunks):
        assert after.offset == before.offset + len(before.data)


async def test_output_of_all_kernels_at_once(client: Client) -> None:
    session = await client.sessions.create(
        type="batch", command=["sh", "-c", "sleep 0.3; echo main"], sub_command=["sh", "-c", "echo sub; sleep 60"], cluster_size=3,
        slots={"cpu": "0.5", "mem": "32m"}, termination_grace=0,
    )  # fmt: skip
    seen: dict[str, bytes] = {}
    async for chunk in client.sessions.logs(session.id, all_kernels=True, follow=True):
        seen[chunk.hostname] = seen.get(chunk.hostname, b"") + chunk.data
    assert seen == {"main1": b"main\n", "sub1": b"sub\n", "sub2": b"sub\n"}
    await session.wait_ended(60)
    assert session.result == "SUCCESS"


async def test_a_session_that_waits_has_no_output(client: Client) -> None:
    session = await client.sessions.create(type="batch", command=["true"], slots={"cpu": "64"})
    assert [chunk async for chunk in client.sessions.logs(session.id)] == []
    await session.terminate()
    assert [chunk async for chunk in client.sessions.logs(session.id, follow=True)] == []
