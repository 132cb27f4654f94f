"""What a guest is told of its attempt."""

from __future__ import annotations

from pathlib import Path

from retinue.agent.attempts import AttemptSpec, Mount, Owner
from retinue.agent.host.core.limits import THREAD_VARIABLES
from retinue.agent.vm.options import VmOptions
from retinue.agent.vm.starting import guest_spec

OPTIONS = VmOptions("n1", Path("/state"), Path("/scratch"), "boot")


def test_libraries_make_as_many_threads_as_a_machine_has_cores() -> None:
    own = {"OMP_NUM_THREADS": "7"}
    spec = AttemptSpec("k.1", "s", "k", 1, "main1", environment=own, slots={"cpu": 1500, "mem": 1 << 30})
    told = dict(
        variable.split("=", 1)
        for variable in guest_spec(spec, "", Owner(70_000, 60_000), OPTIONS, None, user=None).environment
    )
    assert {name: told[name] for name in THREAD_VARIABLES} == dict.fromkeys(THREAD_VARIABLES, "2") | own


def test_names_of_programs_go_where_a_command_looks_and_no_mount_is() -> None:
    variables = {"PATH": "/data/bin:/opt/bin", "LOGNAME": "ann"}
    mounts = (Mount("/srv", "", "/data"),)
    spec = AttemptSpec("k.1", "s", "k", 1, "main1", environment=variables, mounts=mounts)
    told = guest_spec(spec, "", Owner(70_000, 60_000), OPTIONS, None, user=None)
    assert told.places == ("/opt/bin", "/usr/local/bin", "/usr/bin", "/bin")
    assert {"PATH=/data/bin:/opt/bin", "USER=ann", "LOGNAME=ann"} <= set(told.environment)
