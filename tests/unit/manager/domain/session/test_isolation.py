"""The isolation of kernels: by the request, by the policy of the resource group, and by the image."""

from __future__ import annotations

from dataclasses import replace

import pytest

from retinue.manager.domain.session.admission import admit, completed
from retinue.manager.domain.session.isolation import Isolation
from retinue.manager.domain.session.isolation_policy import IsolationPolicy
from retinue.manager.domain.session.spec import KernelSpec, SessionSpec, SftpSpec, role_counts
from retinue.manager.domain.session.states import SessionType

PROCESS, CONTAINER, VM = Isolation.PROCESS, Isolation.CONTAINER, Isolation.VM
IMAGE = KernelSpec(image="debian:12")
GPU = {"cpu": "1", "mem": "1g", "cuda.device": "1"}


def request(kernel: KernelSpec = IMAGE, **roles: KernelSpec) -> SessionSpec:
    """Returns a request with a kernel of each role."""
    spec = SessionSpec(name="n", project="p", resource_group="g", type=SessionType.INTERACTIVE, kernel=kernel)
    counts = role_counts([(role, 1) for role in roles])
    return replace(spec, roles=roles, counts=counts, cluster_size=sum(count for _, count in counts) or 1)


def wrong(spec: SessionSpec, policy: IsolationPolicy) -> dict[str, str]:
    """Returns what is wrong with a request in group g, by field."""
    return dict(policy.violations(spec, "g"))


def test_without_anything_the_image_decides_and_nothing_is_stored() -> None:
    for kernel, isolation in ((KernelSpec(), PROCESS), (IMAGE, CONTAINER)):
        admitted, violations = admit(request(kernel))
        assert not violations
        assert admitted.isolation_of("main") is isolation
        assert not admitted.isolations


def test_a_virtual_machine_may_have_an_image() -> None:
    for kernel in (KernelSpec(isolation=VM), replace(IMAGE, isolation=VM)):
        admitted, violations = admit(request(kernel))
        assert not violations
        assert admitted.isolation_of("main") is VM
        assert admitted.of_role("main").image == kernel.image


def test_a_gang_may_mix_isolations() -> None:
    asked = request(
        KernelSpec(),
        main=replace(IMAGE, isolation=VM),
        worker=IMAGE,
        helper=KernelSpec(),
    )
    admitted, violations = admit(asked)
    assert not violations
    expected = {"main": VM, "worker": CONTAINER, "helper": PROCESS}
    assert {role: admitted.isolation_of(role) for role, _ in admitted.layout} == expected


def test_a_role_of_processes_does_not_inherit_the_image() -> None:
    admitted, violations = admit(request(IMAGE, sub=KernelSpec(isolation=PROCESS)))
    assert not violations
    assert admitted.of_role("sub").image == ""
    assert (admitted.isolation_of("main"), admitted.isolation_of("sub")) == (CONTAINER, PROCESS)
    assert admitted.isolations == {"sub": PROCESS}


@pytest.mark.parametrize(
    ("kernel", "roles", "path"),
    [
        (replace(IMAGE, isolation=PROCESS), {}, "spec.kernel.image"),
        (KernelSpec(isolation=CONTAINER), {}, "spec.kernel.image"),
        (KernelSpec(), {"sub": KernelSpec(isolation=CONTAINER)}, "spec.roles[0].kernel.image"),
        (KernelSpec(isolation=PROCESS), {"main": KernelSpec(), "sub": IMAGE}, "spec.roles[1].kernel.image"),
    ],
)
def test_isolation_and_image_have_to_agree(kernel: KernelSpec, roles: dict[str, KernelSpec], path: str) -> None:
    _, violations = admit(request(kernel, **roles))
    assert [found for found, _ in violations] == [path]
    assert "isolation" in violations[0][1]


def test_a_template_may_leave_the_image_open() -> None:
    for open_template in (
        request(KernelSpec(isolation=CONTAINER)),
        request(KernelSpec(), sub=KernelSpec(isolation=CONTAINER)),
        request(KernelSpec(isolation=PROCESS), sub=KernelSpec(isolation=CONTAINER)),
    ):
        assert admit(completed(open_template))[1] == []
    assert admit(completed(request(replace(IMAGE, isolation=PROCESS))))[1]


def test_the_default_of_a_group_counts_where_nothing_is_asked_for() -> None:
    policy = IsolationPolicy(("VM", "PROCESS"), "VM")
    asked = request(IMAGE, sub=KernelSpec(isolation=PROCESS), worker=KernelSpec())
    assert wrong(asked, policy) == {}
    assert policy.resolve(asked) == {"main": VM, "sub": PROCESS, "worker": VM}
    # One that asks for what the default is anyway is stored alike.
    assert policy.resolve(request(replace(IMAGE, isolation=VM))) == policy.resolve(request(IMAGE)) == {"main": VM}
    by_default = wrong(request(KernelSpec()), IsolationPolicy((), "CONTAINER"))["spec.kernel.image"]
    assert by_default == "is required in resource group g, whose default isolation is container"
    assert "must be empty" in wrong(request(IMAGE), IsolationPolicy((), "PROCESS"))["spec.kernel.image"]


def test_a_virtual_machine_needs_memory_for_its_guest() -> None:
    small, enough = {"cpu": "1", "mem": "223m"}, {"cpu": "1", "mem": "224m"}
    _, violations = admit(request(KernelSpec(isolation=VM, slots=small)))
    assert violations == [("spec.kernel.slots['mem']", "must be at least 224m with isolation vm")]
    assert not admit(request(KernelSpec(isolation=VM, slots=enough)))[1]
    assert not admit(request(KernelSpec(slots=small)))[1]
    _, violations = admit(request(KernelSpec(slots=enough), sub=KernelSpec(isolation=VM, slots={"mem": "100m"})))
    assert [path for path, _ in violations] == ["spec.roles[0].kernel.slots['mem']"]
    by_default = wrong(request(KernelSpec(slots=small)), IsolationPolicy((), "VM"))
    assert by_default == {
        "spec.kernel.slots['mem']": "must be at least 224m in resource group g, whose default isolation is vm"
    }
    # A template may leave the memory open, and not ask for too little.
    assert not admit(completed(request(KernelSpec(isolation=VM))))[1]
    assert admit(completed(request(KernelSpec(isolation=VM, slots=small))))[1]


@pytest.mark.parametrize(
    ("kernel", "roles", "path", "words"),
    [
        (KernelSpec(), {}, "spec.kernel", "needs an image (`--image`): native processes have no GPUs"),
        (KernelSpec(isolation=PROCESS), {}, "spec.kernel", "with isolation process: native processes have no GPUs"),
        (KernelSpec(isolation=VM), {}, "spec.kernel", "with isolation vm: virtual machines have no GPUs"),
        (replace(IMAGE, isolation=VM), {}, "spec.kernel", "with isolation vm: virtual machines have no GPUs"),
        (IMAGE, {"sub": KernelSpec(isolation=PROCESS)}, "spec.kernel", "native processes have no GPUs"),
        (IMAGE, {"sub": KernelSpec(isolation=VM, slots=GPU)}, "spec.roles[0].kernel", "have no GPUs"),
    ],
)
def test_only_containers_have_gpus(kernel: KernelSpec, roles: dict[str, KernelSpec], path: str, words: str) -> None:
    _, violations = admit(request(replace(kernel, slots=GPU), **roles))
    assert [field for field, _ in violations] == [f"{path}.slots['cuda.device']"]
    assert words in violations[0][1]


def test_a_container_may_have_gpus_and_so_may_a_template_that_leaves_the_image_open() -> None:
    assert not admit(request(replace(IMAGE, slots=GPU)))[1]
    assert not admit(completed(request(KernelSpec(slots=GPU))))[1]
    assert not admit(completed(request(KernelSpec(), sub=KernelSpec(slots=GPU))))[1]
    assert admit(completed(request(KernelSpec(isolation=VM, slots=GPU))))[1]
    # By the default of a group, a request with an image would not run as a container.
    by_default = wrong(request(replace(IMAGE, slots=GPU)), IsolationPolicy((), "VM"))
    assert by_default == {
        "spec.kernel.slots['cuda.device']": (
            "must be left out in resource group g, whose default isolation is vm: virtual machines have no GPUs"
        )
    }


def test_a_request_that_asks_for_what_it_was_accepted_with_is_what_it_was() -> None:
    virtual, native = IsolationPolicy((), "VM"), IsolationPolicy((), "PROCESS")
    for asked in (request(KernelSpec()), request(IMAGE), request(KernelSpec(), sub=IMAGE, worker=KernelSpec())):
        accepted = replace(asked, isolations=virtual.resolve(asked))
        again = accepted.with_isolations_asked()
        roles = [role for role, _ in asked.layout]
        assert {native.isolation(again, role) for role in roles} == {VM}
        implied = asked.with_isolations_asked()
        assert [virtual.isolation(implied, role) for role in roles] == [asked.implied_isolation(role) for role in roles]


def test_what_a_group_does_not_allow_is_refused_in_words() -> None:
    policy = IsolationPolicy(("VM", "CONTAINER"))
    assert wrong(request(), policy) == {}
    expected = "resource group g does not allow native processes (allowed: vm, container)"
    assert wrong(request(KernelSpec()), policy) == {"spec.kernel.isolation": expected}
    mixed = request(IMAGE, sub=KernelSpec(isolation=PROCESS))
    assert wrong(mixed, policy) == {"spec.roles[0].kernel.isolation": expected}


def test_sftp_servers_are_neither_virtual_machines_nor_refused() -> None:
    policy = IsolationPolicy(("VM",), "VM")
    server = replace(request(KernelSpec()), type=SessionType.SYSTEM, sftp=SftpSpec())
    assert wrong(server, policy) == {}
    assert policy.resolve(server) == {}


def test_sftp_servers_have_no_isolation_of_the_callers() -> None:
    server = replace(request(KernelSpec(isolation=VM)), type=SessionType.SYSTEM, sftp=SftpSpec())
    assert "spec.kernel.isolation" in dict(admit(completed(server))[1])
