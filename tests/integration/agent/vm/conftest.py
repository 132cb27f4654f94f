"""Virtual machines of an agent of their own for each test, and nothing left of them after."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from retinue.agent.attempts import AttemptSpec, Isolation
from retinue.agent.host.cgroups import Cgroups
from retinue.agent.host.launch_threads import SPARE
from retinue.agent.vm import channels
from retinue.agent.vm.images import ImageRoots
from retinue.agent.vm.machines import FAMILY
from retinue.agent.vm.options import VmOptions
from retinue.agent.vm.runtime import VmRuntime
from tests.integration.agent.opened import Runtimes
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.integration.agent.conftest import Place
    from tests.integration.agent.docker.engine import TestEngine


class Vms(Runtimes[VmRuntime]):
    """Opens runtimes of virtual machines at one place, one after another, as an agent does when it is restarted."""

    def __init__(self, place: Place, run_dir: Path) -> None:
        super().__init__(place)
        self.run_dir = run_dir
        self.engine: TestEngine | None = None

    @property
    def images(self) -> Path:
        return self.place.directory / "state/vm/images"

    def options(self, **values: object) -> VmOptions:
        settings: dict[str, object] = {
            "agent_id": self.place.agent_id,
            "state_dir": self.place.directory / "state",
            "scratch_dir": self.place.directory / "scratch",
            "boot_id": "this-boot",
            "run_dir": self.run_dir,
            # Without KVM, and beside much else, a machine takes its time.
            "boot_timeout": NEVER,
        }
        return VmOptions(**(settings | values))  # type: ignore[arg-type]

    async def open(self, **values: object) -> VmRuntime:
        if self.current is not None:
            await self.current.close()
        options, images = self.options(**values), None
        if self.engine is not None:
            images = ImageRoots(self.engine.host, self.place.agent_id, self.images, None, None)
        self.current = VmRuntime(options, images=images)
        await self.current.open(self._changed)
        assert self.current.statuses[0].available, self.current.statuses
        return self.current

    def spec(self, name: str, *command: str, **values: object) -> AttemptSpec:
        settings: dict[str, object] = {
            "slots": {"cpu": 1000, "mem": 256 << 20},
            "hostname": "main1",
            "command": command,
            "isolation": Isolation.VM,
        }
        return AttemptSpec(f"{name}.1", "session", name, 1, **(settings | values))  # type: ignore[arg-type]

    def cgroups(self) -> Cgroups:
        return Cgroups(FAMILY.format(self.place.agent_id))

    def left(self) -> set[str]:
        """Returns the names of all that is left of attempts on the node."""
        found = {name for name in self.cgroups().names() if not name.startswith(SPARE)}
        for directory in ("scratch", "state/vm/attempts"):
            found |= {entry.name for entry in (self.place.directory / directory).iterdir() if entry.is_dir()}
        return found | {entry.name for entry in self.run_dir.iterdir()}


@pytest.fixture
async def vms(
    place: Place, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Vms]:
    monkeypatch.setattr(channels, "STREAM_TIMEOUT", NEVER)
    vms = Vms(place, tmp_path_factory.mktemp("s"))
    yield vms
    if vms.current is not None:
        await vms.current.close()
    cgroups = vms.cgroups()
    for name in cgroups.names():
        assert cgroups.remove(name, NEVER)
    cgroups.close(NEVER)
