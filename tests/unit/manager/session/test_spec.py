"""How a request unfolds into kernels."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from retinue.manager.domain.session.spec import (
    KernelSpec,
    SessionSpec,
    cluster_environment,
    kernel_plans,
    launcher_environment,
    role_counts,
)
from retinue.manager.domain.session.states import SessionType

SESSION = uuid.UUID("00000000-0000-4000-8000-000000000001")


def spec(size: int, *, single_node: bool = True) -> SessionSpec:
    return SessionSpec(
        name="s",
        project="p",
        resource_group="g",
        type=SessionType.BATCH,
        single_node=single_node,
        cluster_size=size,
        kernel=KernelSpec(command=("serve",), environment={"A": "1", "B": "2"}, slots={"cpu": "1", "mem": "1g"}),
        roles={"sub": KernelSpec(command=("work",), environment={"B": "3"}, slots={"cpu": "2"})},
    )


def test_the_main_kernel_is_the_session() -> None:
    plans = kernel_plans(SESSION, spec(3).layout)
    assert [plan.hostname for plan in plans] == ["main1", "sub1", "sub2"]
    assert [(plan.role, plan.index, plan.local_rank) for plan in plans] == [
        ("main", 1, 0),
        ("sub", 1, 1),
        ("sub", 2, 2),
    ]
    assert plans[0].id == SESSION
    assert len({plan.id for plan in plans}) == 3
    assert plans == kernel_plans(SESSION, spec(3).layout)


def test_roles_override_key_by_key() -> None:
    sub = spec(2).of_role("sub")
    assert sub == KernelSpec("", ("work",), {"A": "1", "B": "3"}, {"cpu": "2", "mem": "1g"})
    assert spec(2).of_role("main").command == ("serve",)


def test_a_command_for_all_is_the_main_kernels() -> None:
    plain = SessionSpec(
        name="s",
        project="p",
        resource_group="g",
        type=SessionType.BATCH,
        cluster_size=2,
        kernel=KernelSpec(command=("x",)),
    )
    assert plain.of_role("sub").command == ()


def test_the_eight_variables_and_what_a_session_is_called() -> None:
    plan = kernel_plans(SESSION, spec(3).layout)[2]
    assert cluster_environment(SESSION, 12, spec(3, single_node=False), plan) == {
        "BACKENDAI_CLUSTER_HOST": "sub2",
        "BACKENDAI_CLUSTER_HOSTS": "main1,sub1,sub2",
        "BACKENDAI_CLUSTER_IDX": "2",
        "BACKENDAI_CLUSTER_LOCAL_RANK": "2",
        "BACKENDAI_CLUSTER_MODE": "multi-node",
        "BACKENDAI_CLUSTER_REPLICAS": "main:1,sub:2",
        "BACKENDAI_CLUSTER_ROLE": "sub",
        "BACKENDAI_CLUSTER_SIZE": "3",
        "BACKENDAI_KERNEL_ID": str(plan.id),
        "BACKENDAI_SESSION_ID": str(SESSION),
        "BACKENDAI_SESSION_NUMBER": "12",
    }


def test_launchers_find_the_first_kernel_and_their_place() -> None:
    asked = spec(3)
    assert launcher_environment(asked, kernel_plans(SESSION, asked.layout)[2]) == {
        "MASTER_ADDR": "main1",
        "MASTER_PORT": "29500",
        "RANK": "2",
        "WORLD_SIZE": "3",
        "NODE_RANK": "2",
        "PET_MASTER_ADDR": "main1",
        "PET_MASTER_PORT": "29500",
        "PET_NODE_RANK": "2",
        "PET_NNODES": "3",
        "GRPC_DNS_RESOLVER": "native",
    }
    assert launcher_environment(spec(1), kernel_plans(SESSION, spec(1).layout)[0]) == {}


def test_roles_with_counts_say_which_kernels_there_are() -> None:
    counts = role_counts([("sub", None), ("worker", 2), ("main", None), ("idle", 0)])
    assert counts == (("main", 1), ("sub", 1), ("worker", 2), ("idle", 0))
    asked = replace(spec(4), counts=counts)
    plans = kernel_plans(SESSION, asked.layout)
    assert [plan.hostname for plan in plans] == ["main1", "sub1", "worker1", "worker2"]
    assert [(plan.index, plan.local_rank) for plan in plans] == [(1, 0), (1, 1), (1, 2), (2, 3)]
    environment = cluster_environment(SESSION, 1, asked, plans[3])
    assert environment["BACKENDAI_CLUSTER_REPLICAS"] == "main:1,sub:1,worker:2"
    assert environment["BACKENDAI_CLUSTER_HOSTS"] == "main1,sub1,worker1,worker2"
    assert (environment["BACKENDAI_CLUSTER_ROLE"], environment["BACKENDAI_CLUSTER_IDX"]) == ("worker", "2")
    assert asked.of_role("worker").command == ()


@pytest.mark.parametrize("roles", [[], [("main", None)], [("sub", None), ("main", None)]])
def test_without_counts_the_size_says_it(roles: list[tuple[str, int | None]]) -> None:
    assert role_counts(roles) == ()
