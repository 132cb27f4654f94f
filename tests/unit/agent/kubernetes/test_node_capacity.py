"""What a node has for kernels beside the pods of others."""

from __future__ import annotations

import pytest
from lightkube.resources.core_v1 import Pod

from retinue.agent.kubernetes.core.node_capacity import full_disk, is_foreign, offered, requests_of

ALLOCATABLE = {"cpu": "3920m", "memory": "7Gi", "nvidia.com/gpu": "2", "pods": "110", "ephemeral-storage": "90Gi"}


def container(cpu: str = "", memory: str = "", **more: object) -> dict[str, object]:
    requests = {"cpu": cpu, "memory": memory}
    return {"name": "c", "resources": {"requests": {name: text for name, text in requests.items() if text}}, **more}


def read(described: dict[str, object]) -> Pod:
    found = Pod.from_dict(described)
    assert isinstance(found, Pod)
    return found


def pod(*containers: dict[str, object], first: tuple[dict[str, object], ...] = (), **spec: object) -> Pod:
    return read({"spec": {"containers": list(containers), "initContainers": list(first), **spec}})


def test_a_node_offers_its_allocatable_less_foreign_requests() -> None:
    assert offered(ALLOCATABLE, ()) == {"cpu": 3920, "mem": 7 << 30, "disk": 90 << 30, "cuda.device": 2000}
    left = offered(ALLOCATABLE, [{"cpu": 920, "mem": 1 << 30, "disk": 5 << 30}, {"cpu": 500, "cuda.device": 1000}])
    assert left == {"cpu": 2500, "mem": 6 << 30, "disk": 85 << 30, "cuda.device": 1000}


def test_a_node_offers_nothing_where_others_request_more_than_it_has() -> None:
    assert offered({"cpu": "2", "memory": "1Gi"}, [{"cpu": 3000}]) == {"cpu": 0, "mem": 1 << 30}


def test_what_a_node_does_not_have_is_not_offered() -> None:
    assert offered({"cpu": "1.5"}, [{"mem": 5, "cuda.device": 1000}]) == {"cpu": 1500}


def test_parts_of_a_unit_count_against_kernels() -> None:
    assert offered({"cpu": "1500500u", "memory": "1000.5"}, ()) == {"cpu": 1500, "mem": 1000}
    assert requests_of(pod(container("100500u", "0.5"))) == {"cpu": 101, "mem": 1}


@pytest.mark.parametrize("text", ["", "one", "1x", "xu", "n"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"quantity|numerical|suffix"):
        offered({"cpu": text}, ())


@pytest.mark.parametrize(
    ("asked", "cpu"),
    [
        (pod(container("100m"), container("250m"), container()), 350),
        (pod(container("100m"), first=(container("1"), container("700m"))), 1000),
        (pod(container("800m"), first=(container("300m"),)), 800),
        # A sidecar runs beside all that comes after it.
        (pod(container("800m"), first=(container("300m", restartPolicy="Always"),)), 1100),
        (pod(container("100m"), first=(container("300m", restartPolicy="Always"), container("1"))), 1300),
        (pod(container("100m"), first=(container("1"), container("300m", restartPolicy="Always"))), 1000),
        (pod(container("100m"), overhead={"cpu": "50m"}), 150),
        (pod(container("100m"), resources={"requests": {"cpu": "2"}}), 2000),
    ],
)
def test_requests_are_those_that_schedulers_count(asked: Pod, cpu: int) -> None:
    assert requests_of(asked)["cpu"] == cpu


@pytest.mark.parametrize(
    ("namespace", "agent", "phase", "counts"),
    [
        ("default", "", "Running", True),
        ("default", "", "Pending", True),
        ("default", "", "Succeeded", False),
        ("default", "", "Failed", False),
        ("kernels", "a", "Running", False),
        ("kernels", "b", "Running", True),
        # Others can set labels, too.
        ("default", "a", "Running", True),
    ],
)
def test_pods_of_others_count_while_they_run(namespace: str, agent: str, phase: str, *, counts: bool) -> None:
    labels = {"retinue.io/agent": agent}
    found = read({"metadata": {"namespace": namespace, "labels": labels}, "status": {"phase": phase}})
    assert is_foreign(found, "a", "kernels") is counts


def test_kubelet_says_that_a_disk_is_full() -> None:
    memory, disk = ("MemoryPressure", "True", "memory"), ("DiskPressure", "True", "kubelet has disk pressure")
    assert full_disk([memory, ("DiskPressure", "False", "kubelet has no disk pressure"), ("Ready", "True", "")]) == ""
    assert full_disk([memory, ("DiskPressure", "Unknown", "")]) == ""
    assert full_disk([memory, disk]) == "kubelet has disk pressure"
    assert full_disk([("DiskPressure", "True", "")]) == "DiskPressure"
