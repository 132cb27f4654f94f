"""Deep merging of what is given over what a template has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from retinue.manager.api.sessions.override_convert import mask_paths, overrides_of, spec_of
from retinue.manager.domain.errors import InvalidRequest
from retinue.manager.domain.session.overrides import NOTHING, Overrides
from retinue.manager.v1 import session_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

PATHS = [("a",), ("m",), ("m", "x"), ("m", "y"), ("r", "w", "s", "c"), ("r", "w", "s", "d"), ("r", "v", "n")]
LEAVES = [path for path in PATHS if path != ("m",)]
ROOTS = [*PATHS, ("r",), ("r", "w"), ("r", "w", "s")]
overrides = st.builds(
    lambda given_, roots: NOTHING.then(Overrides(given_, frozenset(roots))),
    st.dictionaries(st.sampled_from(LEAVES), st.integers(0, 3)),
    st.sets(st.sampled_from(ROOTS)),
)


@given(overrides, overrides, overrides)
def test_merging_is_associative(a: Overrides, b: Overrides, c: Overrides) -> None:
    assert a.then(b).then(c) == a.then(b.then(c))


@given(overrides)
def test_nothing_changes_nothing_and_twice_is_once(a: Overrides) -> None:
    assert a.then(NOTHING) == a == NOTHING.then(a)
    assert a.then(a) == a


@given(overrides, overrides)
def test_what_is_given_wins_and_what_is_not_named_stays(a: Overrides, b: Overrides) -> None:
    merged = a.then(b).given
    for path in LEAVES:
        named = any(path[:length] in b.removed for length in range(1, len(path) + 1))
        expected = b.given.get(path, None if named else a.given.get(path))
        assert merged.get(path) == expected


def parsed(content: dict[str, Any]) -> pb.SessionSpec:
    return json_format.ParseDict(content, pb.SessionSpec())


TEMPLATE = {
    "type": "SESSION_TYPE_BATCH",
    "priority": 7,
    "preemptible": True,
    "timeLimit": "60s",
    "kernel": {
        "image": "base",
        "command": ["serve", "-v"],
        "environment": {"A": "1", "B": "2"},
        "slots": {"cpu": "1", "mem": "4g", "cuda.device": "1"},
    },
    "roles": [
        {"role": "main", "kernel": {"slots": {"cpu": "2"}}},
        {"role": "worker", "count": 3, "kernel": {"command": ["work"], "environment": {"W": "1"}}},
    ],
    "labels": {"team": "x", "a.b/c": "y"},
    "retry": {"maxAttempts": 3, "onFailure": True},
    "mounts": [{"source": "/a", "target": "/b"}],
}


@pytest.mark.parametrize(
    ("override", "mask", "changes"),
    [
        ({}, [], {}),
        ({"kernel": {"slots": {"cpu": "8"}}}, [], {"kernel.slots.cpu": "8"}),
        ({"kernel": {"image": "other"}}, [], {"kernel.image": "other"}),
        ({"kernel": {"command": ["x"]}}, [], {"kernel.command": ["x"]}),
        ({"kernel": {"environment": {"C": "3"}}}, [], {"kernel.environment.C": "3"}),
        ({"priority": 0}, [], {"priority": 0}),
        ({"timeLimit": "1.500s"}, [], {"timeLimit": "1.500s"}),
        ({"mounts": [{"source": "/c", "target": "/d"}]}, [], {"mounts": [{"source": "/c", "target": "/d"}]}),
        ({"retry": {"maxAttempts": 5}}, [], {"retry.maxAttempts": 5}),
        # Named in the mask: gone, or replaced as a whole.
        ({}, ["kernel.slots.cuda.device"], {"kernel.slots.cuda.device": None}),
        ({}, ["kernel.slots.`cuda.device`"], {"kernel.slots.cuda.device": None}),
        ({}, ["labels.a.b/c"], {"labels.a.b/c": None}),
        ({}, ["preemptible", "priority", "time_limit"], {"preemptible": None, "priority": None, "timeLimit": None}),
        ({}, ["kernel.command"], {"kernel.command": None}),
        ({"kernel": {"environment": {"C": "3"}}}, ["kernel.environment"], {"kernel.environment": {"C": "3"}}),
        ({"kernel": {"environment": {"A": "9"}}}, ["kernel.environment.A"], {"kernel.environment.A": "9"}),
        ({"kernel": {"image": "only"}}, ["kernel"], {"kernel": {"image": "only"}}),
        ({}, ["retry"], {"retry": None}),
        ({}, ["mounts"], {"mounts": None}),
    ],
)
def test_table_of_overrides(override: dict[str, Any], mask: Sequence[str], changes: dict[str, Any]) -> None:
    request = parsed(override)
    request.template.override_mask.paths.extend(mask)
    made = json_format.MessageToDict(
        spec_of(overrides_of(parsed(TEMPLATE), "spec").then(overrides_of(request, "spec")))
    )
    expected = json_format.MessageToDict(parsed(TEMPLATE))
    for path, value in changes.items():
        where, (first, _, rest) = expected, path.partition(".")
        while rest and not isinstance(where.get(first), str):
            where, key = where[first], rest
            first, _, rest = (key, "", "") if key in where or first in {"slots", "environment"} else key.partition(".")
        if value is None:
            del where[first]
        else:
            where[first] = value
    assert made == expected


def test_roles_are_merged_by_name_and_keep_their_order() -> None:
    request = parsed(
        {
            "roles": [
                {"role": "worker", "count": 0, "kernel": {"environment": {"W": "2"}}},
                {"role": "cache", "kernel": {"image": "c"}},
            ]
        }
    )
    made = spec_of(overrides_of(parsed(TEMPLATE), "spec").then(overrides_of(request, "spec")))
    assert [role.role for role in made.roles] == ["main", "worker", "cache"]
    worker = made.roles[1]
    assert (worker.HasField("count"), worker.count, list(worker.kernel.command)) == (True, 0, ["work"])
    assert dict(worker.kernel.environment) == {"W": "2"}
    assert not made.roles[2].HasField("count")
    request.Clear()
    request.template.override_mask.paths.extend(["roles.main", "roles.worker.count"])
    made = spec_of(overrides_of(parsed(TEMPLATE), "spec").then(overrides_of(request, "spec")))
    assert [(role.role, role.HasField("count")) for role in made.roles] == [("worker", False)]


def test_a_request_is_its_leaves() -> None:
    assert spec_of(overrides_of(parsed(TEMPLATE), "spec")) == parsed(TEMPLATE)


@pytest.mark.parametrize(
    "path",
    [
        "",
        ".",
        "kernel.",
        "nothing",
        "kernel.nothing",
        "kernel.image.x",
        "command",
        "template",
        "template.name",
        "x" * 999,
        "mounts.source",
        "time_limit.seconds",
        "roles.worker.nothing",
        "kernel..image",
        "{{7*7}}",
    ],
)
def test_paths_that_name_no_field(path: str) -> None:
    found, wrong = mask_paths([path], "mask")
    assert not found
    assert [where for where, _ in wrong] == ["mask"]


def test_a_role_given_twice_and_too_many_paths() -> None:
    with pytest.raises(InvalidRequest) as raised:
        overrides_of(parsed({"roles": [{"role": "a"}, {"role": "a"}]}), "spec")
    assert [path for path, _ in raised.value.violations] == ["spec.roles[1].role"]
    assert mask_paths(["priority"] * 501, "mask")[1] == [("mask", "must be at most 500 paths")]
