"""What kernels use, as their node counts it, for both kinds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from retinue.agent.attempts import Phase
from retinue.agent.resources.sampler import FRESH, Sampler

if TYPE_CHECKING:
    from retinue.agent.resources.core.usage import Usage
    from tests.integration.backends.conftest import Contract

SCRIPT = "dd if=/dev/zero of=/dev/shm/x bs=1024k count=20 2>/dev/null; echo on; while [ ! -e go ]; do sleep 0.02; done; while :; do :; done"


async def test_what_a_kernel_uses(contract: Contract) -> None:
    backend = await contract.held(contract.spec("k", "sh", "-c", SCRIPT))

    async def read_usage(attempt_id: str) -> Usage | None:
        return await backend.kernel(attempt_id).usage() if attempt_id in backend.observe() else None

    sampler = Sampler(read_usage)
    assert (await sampler.sample(["other.1"])) == {}
    await backend.start("k.1")
    async for _ in backend.output("k.1").stream(0, follow=True):
        break
    first = (await sampler.sample(["k.1"]))["k.1"].usage
    assert first.cpu is not None
    assert first.memory is not None
    assert 20 << 20 <= first.memory < 200 << 20
    assert first.memory_peak is not None
    assert first.memory_peak >= first.memory
    assert first.memory_limit == 256 << 20
    assert first.read is not None
    assert first.written is not None
    assert first.tasks is not None
    assert first.tasks >= 1
    # It has no network of its own: nothing is counted, and that is not zero.
    assert (first.received, first.sent) == (None, None)
    next((contract.place.directory / "scratch").iterdir()).joinpath("go").touch()
    async with asyncio.timeout(20):
        while True:
            await asyncio.sleep(FRESH)
            usage = (await sampler.sample(["k.1"]))["k.1"].usage
            if usage.cpu is not None and usage.cpu > first.cpu + 300_000_000:
                break
    await backend.kill("k.1")
    await contract.until("k.1", Phase.EXITED)
    await asyncio.sleep(FRESH)
    assert await sampler.sample(["k.1"]) == {}
