"""What bounds a machine from outside: its share of the disk, and the watchdog when its agent is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.agent.attempts import Phase
from retinue.agent.fencing import watchdog
from tests.integration.agent.fencing.watchdogs import LATE, watchdogs, write
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.integration.agent.vm.conftest import Vms

# A file that has no name any more is open in QEMU only.
HOG = "cd; until [ -e go ]; do sleep 0.1; done; exec 3>big; rm big; head -c 67108864 /dev/zero >&3 || echo full; sleep 1000"


async def test_bounds(vms: Vms, tmp_path_factory: pytest.TempPathFactory) -> None:
    runtime = await vms.open(work_size=32 << 20, work_files=1000)
    own = {"cpu": 1000, "mem": 256 << 20, "disk": 48 << 20}
    observed, printed = await vms.ran(vms.spec("own", "sh", "-c", "df -k ~ | tail -n 1 | awk '{print $2}'", slots=own))
    assert observed.exit_code == 0
    assert 48 << 20 <= int(printed) << 10 <= 53 << 20
    await vms.held(vms.spec("k", "sh", "-c", HOG))
    await vms.held(vms.spec("other", "sh", "-c", "truncate -s 1G ~/sparse; echo sparse; sleep 1000"))
    for name in ("k.1", "other.1"):
        await runtime.start(name)
    await eventually(lambda: vms.printed("other.1") == "sparse\n")
    (vms.place.directory / "scratch/k.1/go").touch()
    assert "full\n" in await vms.until_printed("k.1", "full\n")
    assert runtime.observe()["other.1"].phase is Phase.RUNNING
    await runtime.kill("k.1")
    await vms.until("k.1", Phase.EXITED)
    await runtime.remove("k.1")
    # Without its agent, all of a machine is ended by what the agent left behind.
    target = runtime.kernel("other.1").fence_target()
    assert target is not None
    await runtime.close()
    vms.current = None
    state: Path = tmp_path_factory.mktemp("watchdog")
    write(state, LATE, **{"other.1": target.process})
    watchdog.ensure(state)
    await eventually(lambda: watchdog.was_ended(state, "other.1"))
    await eventually(lambda: not vms.cgroups().processes("other.1") and not watchdogs(state))
    runtime = await vms.open()
    fenced = await vms.until("other.1", Phase.EXITED)
    assert (fenced.reason, fenced.exit_code) == ("KILLED", None), fenced
    await runtime.remove("other.1")
    assert not vms.left()
