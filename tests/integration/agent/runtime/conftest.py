"""Both kinds of backends, opened the same way."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from retinue.agent.attempts import AttemptSpec
from retinue.agent.conditions import Conditions
from retinue.agent.docker.core.container_spec import AGENT_LABEL, ATTEMPT_LABEL
from retinue.agent.docker.options import DockerOptions
from retinue.agent.docker.registry_addresses import RegistryAddresses
from retinue.agent.docker.runtime import DockerRuntime
from retinue.agent.host.cgroups import Cgroups
from retinue.agent.host.launch_threads import SPARE
from retinue.agent.host.processes import Process
from retinue.agent.process.runtime import ProcessRuntime
from retinue.agent.resources.core.holdings import Holdings
from retinue.agent.runtime.contract import Runtime
from retinue.agent.runtime.options import Shared
from tests.integration.agent.docker.engine import IMAGE, TestEngine
from tests.integration.agent.opened import Runtimes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from retinue.agent.process.options import ProcessOptions
    from tests.integration.agent.conftest import Place

LIMITS = ("uid", "gid", "tasks", "output_limit", "work_size", "work_files")


@dataclass(frozen=True)
class Kind:
    """A kind of kernels: what its attempts name as image, and where its records are below the agent's state."""

    name: str
    image: str
    records: str
    engine: TestEngine | None


@pytest.fixture(params=["process", "docker"])
def kind(request: pytest.FixtureRequest, place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kind]:
    if request.param == "process":
        yield Kind("process", "", "attempts", None)
        return
    engine: TestEngine = request.getfixturevalue("engine")
    monkeypatch.setenv("DOCKER_HOST", engine.host)
    yield Kind("docker", IMAGE, "docker/attempts", engine)
    engine.remove_containers(place.agent_id)


class Contract(Runtimes[Runtime]):
    """Opens backends of one kind at one place, one after another, as an agent does when it is restarted."""

    def __init__(self, place: Place, kind: Kind) -> None:
        super().__init__(place)
        self.kind = kind
        # Of each new backend; without any, nothing is pinned.
        self.cores: dict[int, list[int]] = {}
        self.conditions = Conditions()

    async def open(self, **values: object) -> Runtime:
        if self.current is not None:
            await self.current.close()
        self.current = self._runtime(
            self.place.options(**values), Shared(Holdings(self.cores), conditions=self.conditions)
        )
        await self.current.open(self._changed)
        return self.current

    def _runtime(self, options: ProcessOptions, shared: Shared) -> Runtime:
        if self.kind.engine is None:
            return ProcessRuntime(options, shared)
        common = {name: getattr(options, name) for name in ("agent_id", "state_dir", "scratch_dir", "boot_id")}
        limits = {name: getattr(options, name) for name in LIMITS}
        addresses = RegistryAddresses(("127.0.0.0/8",))
        return DockerRuntime(
            DockerOptions(host=self.kind.engine.host, registry_addresses=addresses, **common, **limits), shared
        )

    def spec(self, name: str, *command: str, **values: object) -> AttemptSpec:
        settings: dict[str, object] = {
            "slots": {"cpu": 1000, "mem": 256 << 20},
            "hostname": "main1",
            "command": command,
            "image": self.kind.image,
        }
        return AttemptSpec(f"{name}.1", "session", name, 1, **(settings | values))  # type: ignore[arg-type]

    def left(self) -> set[str]:
        """Attempts of which anything is left on the node."""
        found = {name for name in Cgroups(self.place.agent_id).names() if not name.startswith(SPARE)}
        for directory in (self.place.directory / "scratch", self.place.directory / "state" / self.kind.records):
            found |= {entry.name for entry in directory.iterdir() if entry.is_dir()}
        if self.kind.engine is not None:
            client = self.kind.engine.client()
            labelled = client.containers(all=True, filters={"label": f"{AGENT_LABEL}={self.place.agent_id}"})
            found |= {container["Labels"][ATTEMPT_LABEL] for container in labelled}
            client.close()
        return found


@pytest.fixture
async def contract(place: Place, kind: Kind) -> AsyncIterator[Contract]:
    contract = Contract(place, kind)
    yield contract
    if contract.current is not None:
        await contract.current.close()


def record(contract: Contract, attempt_id: str) -> dict[str, object]:
    path = contract.place.directory / "state" / contract.kind.records / attempt_id / "record.json"
    values = json.loads(path.read_text())
    assert isinstance(values, dict)
    return values


def first_process(contract: Contract, attempt_id: str) -> Process:
    values = record(contract, attempt_id)["init"]
    assert isinstance(values, dict)
    return Process(**values)
