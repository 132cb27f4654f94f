"""Containers run, print, take commands, have their limits and end, whatever an administrator wrote into daemon.json."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from retinue.agent.attempts import Phase
from retinue.agent.inside import work_disk
from retinue.rpc.core.reasons import AgentConditionReason
from tests.integration.agent.docker.engine import IMAGE, TestEngine, install
from tests.integration.agent.runtime.beside import ran
from tests.integration.agent.runtime.conftest import Contract, Kind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from tests.integration.agent.conftest import Place

GROUP = f"rt-test-engine-{os.getpid()}"
CONFIGURATIONS: Mapping[str, dict[str, Any]] = {
    "hardened": {
        "userns-remap": "daemon",
        "no-new-privileges": True,
        "log-driver": "none",
        "default-ulimits": {"nproc": {"Name": "nproc", "Soft": 64, "Hard": 64}},
    },
    "customized": {
        "log-driver": "syslog",
        "exec-opts": ["native.cgroupdriver=cgroupfs"],
        "cgroup-parent": f"/{GROUP}",
        "runtimes": {"own": {"path": "runc"}},
        "default-runtime": "own",
        "default-ipc-mode": "shareable",
        "default-cgroupns-mode": "host",
        "default-shm-size": "1m",
        "registry-mirrors": ["https://127.0.0.1:1"],
        "insecure-registries": ["10.0.0.0/8"],
        "max-concurrent-downloads": 1,
        "live-restore": True,
        "init": True,
    },
}
LOOK = """
id -u; touch mine /tmp/mine /dev/shm/mine && stat -c %u mine; cat /proc/self/uid_map | tr -s ' '
cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null
df -k /dev/shm | tail -n 1 | awk '{print $2}'; cat /proc/1/comm
"""


@pytest.fixture(scope="module", params=CONFIGURATIONS)
def configured(request: pytest.FixtureRequest) -> Iterator[TestEngine]:
    install()
    configuration = CONFIGURATIONS[request.param]
    users = "daemon:165536:65536\n" if "userns-remap" in configuration else ""
    engine = TestEngine(configuration=configuration, users=users)
    try:
        engine.start()
        engine.make_image()
        yield engine
    finally:
        engine.stop()
        # An engine leaves it.
        for left in (*Path("/sys/fs/cgroup").glob(GROUP), *Path("/sys/fs/cgroup").glob(f"*/{GROUP}")):
            left.rmdir()


@pytest.fixture
async def contract(place: Place, configured: TestEngine) -> AsyncIterator[Contract]:
    contract = Contract(place, Kind("docker", IMAGE, "docker/attempts", configured))
    yield contract
    if contract.current is not None:
        await contract.current.close()
    configured.remove_containers(place.agent_id)


async def test_a_kernel_is_as_ever(contract: Contract) -> None:
    node = await contract.started(
        contract.spec("k", "sh", "-c", f"{LOOK} echo over; exec sleep 100000", slots={"cpu": 500, "mem": 64 << 20})
    )
    printed = (await contract.until_printed("k.1", "over\n")).split()
    user = printed[0]
    assert 70_000 <= int(user) < 80_000
    # Its numbers are the node's, half of its memory is for files there, and our program is its first process.
    assert printed[1:] == [user, "0", "0", "4294967295", str(64 << 20), str(32 << 10), "init", "over"]
    beside = await ran(contract, "sh", "-c", "id -u; cat mine; exit 7")
    assert (beside.output.decode(), beside.code) == (f"{user}\n", 7)
    await node.kill("k.1")
    ended = await contract.until("k.1", Phase.EXITED)
    assert ended.exit_code == 137
    await node.remove("k.1")
    assert not contract.left()


async def test_agent_and_kernel_have_the_same_work_directory(contract: Contract) -> None:
    """Also where the engine does not see what the agent mounts, which is said then: the engine that maps users has a
    mount namespace of its own.
    """
    await contract.started(contract.spec("k", "sh", "-c", "echo mine >file; echo done; sleep 1000"))
    await contract.until_printed("k.1", "done\n")
    home = contract.place.directory / "scratch" / "k.1"
    assert (home / "file").read_text() == "mine\n"
    reasons = {condition.reason for condition in contract.conditions.all()}
    assert reasons == (set() if work_disk.is_bounded(home) else {AgentConditionReason.ENGINE_APART})
    # A later kernel is not given what its engine would not see.
    await contract.started(contract.spec("next", "sleep", "1000"))
    assert work_disk.is_bounded(home.with_name("next.1")) == work_disk.is_bounded(home)


async def test_a_kernel_that_takes_too_much_memory_is_killed(contract: Contract) -> None:
    spec = contract.spec("k", "sh", "-c", "head -c 200m /dev/zero | tail", slots={"cpu": 500, "mem": 64 << 20})
    ended, _ = await contract.ran(spec)
    assert (ended.exit_code, ended.reason) == (137, "OOM_KILLED")
