"""What kernels need of agents, by the field that asks for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from retinue.manager.domain.session.isolation import Isolation
from retinue.manager.domain.session.runtime_features import (
    FEATURES,
    features_by_path,
    missing_feature,
    rare_slots,
    runtimes_for,
    unknown_slots,
)
from retinue.manager.domain.session.spec import KernelSpec, SessionSpec, SftpSpec
from retinue.manager.domain.session.states import SessionType

NATIVE, CONTAINERS, SFTP, MACHINES, IMAGES = (1 << bit for bit in range(len(FEATURES)))
SPEC = SessionSpec(name="s", project="p", resource_group="g", type=SessionType.BATCH)


@pytest.mark.parametrize(
    ("changes", "needs"),
    [
        ({}, {"spec.kernel.isolation": NATIVE}),
        ({"kernel": KernelSpec(image="i")}, {"spec.kernel.image": CONTAINERS}),
        ({"kernel": KernelSpec(image="i"), "isolations": {"main": Isolation.VM}}, {"spec.kernel.image": IMAGES}),
        ({"isolations": {"main": Isolation.VM}}, {"spec.kernel.isolation": MACHINES}),
        ({"sftp": SftpSpec()}, {"spec.type": NATIVE | SFTP}),
        (
            {"cluster_size": 2, "roles": {"sub": KernelSpec(image="i")}},
            {"spec.kernel.isolation": NATIVE, "spec.roles[0].kernel.image": CONTAINERS},
        ),
    ],
)
def test_needs_by_field(changes: dict[str, Any], needs: dict[str, int]) -> None:
    assert features_by_path(replace(SPEC, **changes)) == needs


def test_a_missing_runtime_is_named_with_groups_that_have_it() -> None:
    assert runtimes_for(CONTAINERS) == ["docker", "kubernetes", "null"]
    assert missing_feature(CONTAINERS, "g", []) == (
        "no agent of resource group g has a runtime for containers: see `retinue agents ls -o wide`"
    )
    assert missing_feature(SFTP, "g", ["a", "b"]).endswith("has OpenSSH's server for SFTP; there is one in a, b")
    assert missing_feature(SFTP, "g", [], ["x is missing", "y"]).endswith("OpenSSH's server for SFTP: x is missing; y")
    assert missing_feature(SFTP, "g", ["a"], ["x is missing"]).endswith(" (x is missing); there is one in a")


def test_slots_are_looked_up_where_not_every_agent_has_them() -> None:
    sub = KernelSpec(slots={"cuda.devices": "1"})
    spec = replace(SPEC, kernel=KernelSpec(slots={"cpu": "1", "mem": "1g", "gpu": "1"}), roles={"sub": sub})
    assert rare_slots(spec) == {"gpu", "cuda.devices"}
    assert rare_slots(SPEC) == set()
    assert unknown_slots(spec, ["cuda.devices"], ["cuda.device", "gpu"]) == [
        (
            "spec.roles[0].kernel.slots['cuda.devices']",
            "no agent has such a slot, did you mean cuda.device? there are cpu, cuda.device, disk, gpu, mem",
        )
    ]
    mistyped = replace(SPEC, kernel=KernelSpec(slots=dict.fromkeys(("cpuu", "gpu", "memory"), "1")))
    assert [text.partition("; ")[0] for _, text in unknown_slots(mistyped, mistyped.kernel.slots, [])] == [
        "no agent has such a slot, did you mean cpu? there are cpu, disk, mem",
        "no agent has such a slot",
        "no agent has such a slot, did you mean mem? there are cpu, disk, mem",
    ]
    many = unknown_slots(spec, ["gpu", "cuda.devices"], [f"x{number}" for number in range(30)])
    assert many[0][1].endswith(" and 17 more")
