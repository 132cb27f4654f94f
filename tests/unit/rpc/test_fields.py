"""Walks along the descriptors of the contract: what is set, and paths of fields."""

from __future__ import annotations

import pytest

from retinue.manager.v1 import session_pb2 as pb
from retinue.rpc.fields import fields_of, is_map, leaves, split_path

SPEC = pb.SessionSpec.DESCRIPTOR


def test_leaves_are_what_is_set_with_lists_and_maps_whole() -> None:
    spec = pb.SessionSpec(name="n", roles=[pb.RoleSpec(role="worker")])
    spec.kernel.command.extend(["a", "b"])
    spec.kernel.slots["cpu"] = "2"
    spec.retry.backoff.FromSeconds(3)
    found = {".".join(field.name for field in fields): value for fields, value in leaves(spec)}
    assert found.keys() == {"name", "roles", "kernel.command", "kernel.slots", "retry.backoff"}
    assert (list(found["kernel.command"]), dict(found["kernel.slots"])) == (["a", "b"], {"cpu": "2"})
    assert not list(leaves(pb.SessionSpec(kernel=pb.KernelSpec())))


def test_what_has_fields_of_its_own() -> None:
    kernel = SPEC.fields_by_name["kernel"]
    slots = pb.KernelSpec.DESCRIPTOR.fields_by_name["slots"]
    backoff = pb.RetryPolicy.DESCRIPTOR.fields_by_name["backoff"]
    assert fields_of(kernel) == pb.KernelSpec.DESCRIPTOR
    assert (fields_of(slots), fields_of(backoff), fields_of(SPEC.fields_by_name["name"])) == (None, None, None)
    assert (is_map(slots), is_map(kernel)) == (True, False)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("name", ("name",)),
        ("kernel.slots", ("kernel", "slots")),
        ("kernel.slots.cuda.device", ("kernel", "slots", "cuda.device")),
        ("kernel.environment.`A.B`", ("kernel", "environment", "A.B")),
        ("clusterSize", ("cluster_size",)),
        ("retry.backoff", ("retry", "backoff")),
        ("roles", ("roles",)),
        ("roles.worker", ("roles", "worker")),
        ("roles.worker.kernel.image", ("roles", "worker", "kernel", "image")),
        ("mounts", ("mounts",)),
    ],
)
def test_paths(text: str, parts: tuple[str, ...]) -> None:
    assert split_path(text, SPEC, keyed="roles") == parts


@pytest.mark.parametrize(
    "text",
    ["", ".", "name.", "name.x", "other", "kernel..slots", "mounts.target", "retry.backoff.seconds", "roles.", "slots"],
)
def test_what_is_no_path(text: str) -> None:
    assert split_path(text, SPEC, keyed="roles") is None


def test_what_is_implied_may_be_left_out() -> None:
    assert split_path("slots.cpu", SPEC, keyed="roles", implied="kernel") == ("kernel", "slots", "cpu")
    role = split_path("roles.worker.image", SPEC, keyed="roles", implied="kernel")
    assert role == ("roles", "worker", "kernel", "image")
