"""What kernels use, as their node counts it, for both kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.agent.attempts import Phase
from retinue.agent.resources.sampler import Sampler
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from tests.integration.agent.runtime.conftest import Contract

SCRIPT = "dd if=/dev/zero of=/dev/shm/x bs=1024k count=20 2>/dev/null; echo on; while [ ! -e go ]; do sleep 0.02; done; while :; do :; done"


async def test_what_a_kernel_uses(contract: Contract) -> None:
    backend = await contract.held(contract.spec("k", "sh", "-c", SCRIPT))

    sampler = Sampler(lambda attempt_id: backend.kernel(attempt_id).usage if attempt_id in backend.observe() else None)
    assert (await sampler.sample(["other.1"])) == {}
    await backend.start("k.1")
    await contract.until_printed("k.1", "on\n")
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
    before = first.cpu

    async def used() -> bool:
        cpu = (await sampler.sample(["k.1"]))["k.1"].usage.cpu
        return cpu is not None and cpu > before + 300_000_000

    await eventually(used)
    await backend.kill("k.1")
    await contract.until("k.1", Phase.EXITED)
    # The last sample is good enough for a moment.
    await eventually(lambda: sampler.sample(["k.1"]), lambda samples: samples == {})
