"""Documents come back as they were stored; damaged ones, cut ones and those of other
versions cost nothing but themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.manager.domain.endpoints.model import AccessPolicy, RoutingPolicy
from retinue.manager.domain.endpoints.rollout import AbortOn, Canary, CanaryStep, RolloutPolicy
from retinue.manager.domain.endpoints.scaling import ScalingPolicy
from retinue.manager.domain.endpoints.schedules import Schedule
from retinue.manager.domain.endpoints.spec import EndpointSettings, ReplicaSpec, RevisionSpec
from retinue.manager.domain.idle.policy import Checker, IdlePolicy
from retinue.manager.domain.idle.utilization import Mark, Reading, WindowRecord
from retinue.manager.domain.scheduling.policy import Tier
from retinue.manager.domain.session.explanation import (
    NO_EXPLANATION,
    StoredExplanation,
    StoredShortfall,
    parse_explanation,
)
from retinue.manager.domain.session.mounts import MountRoot
from retinue.manager.domain.session.probes import Probe, ProbeKind, PublishedPort
from retinue.manager.domain.session.spec import KernelSpec, RetryPolicy, SessionSpec
from retinue.manager.domain.session.states import SessionType
from retinue.manager.store.endpoints import endpoint_revisions, endpoint_rollouts, endpoints
from retinue.manager.store.fleet import agents, groups
from retinue.manager.store.placement import attempts
from retinue.manager.store.postgres.documents import Unreadable
from retinue.manager.store.postgres.recordset import recordset
from retinue.manager.store.sessions import idle


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of documents: a value, its stored form, and what reads it."""

    value: object
    stored: object
    decode: Callable[[object], object]


PROBE = Probe(ProbeKind.HTTP, path="/health")
REVISION = RevisionSpec(
    SessionSpec(
        "replica",
        "default",
        "default",
        SessionType.INFERENCE,
        kernel=KernelSpec("image:1", ("serve",), {"A": "b"}, {"cpu": "2"}),
        retry=RetryPolicy(3),
    ),
    ReplicaSpec(8000, startup=PROBE, readiness=PROBE, max_concurrency=4, metrics_path="/metrics"),
)
ROLLOUT = RolloutPolicy(Canary((CanaryStep(10, 1_000), CanaryStep(60))), abort_on=AbortOn(5))
SETTINGS = EndpointSettings(
    ScalingPolicy(min=1, max=8),
    default_metric=False,
    schedules=(Schedule("0 8 * * 1-5", 3_600_000, 2, "Europe/Oslo"),),
    routing=RoutingPolicy(),
    access=AccessPolicy(),
    rollout=ROLLOUT,
    labels={"team": "a"},
)
POLICY = IdlePolicy(
    60.0,
    interaction=600.0,
    thresholds={"cpu": 5.0},
    any_slot=True,
    any_checker=False,
    exempt=frozenset({Checker.LIFETIME}),
)
READING = Reading(10.0, 5.0, 3.5, {"cpu": 1.25}, 40.0)
WINDOW = WindowRecord(1.0, 160.0, (Mark(0.0, {}), Mark(10.0, {"cpu": 30.0})))
EXPLANATION = StoredExplanation(Tier.CAPACITY, (StoredShortfall("main1", "a1", "cpu", "4", "2", "2"),))
KINDS = {
    "idle policy": Kind(POLICY, idle.encode_policy(POLICY), idle.decode_policy),
    "reading": Kind(READING, READING, idle.READING.decode),
    "window": Kind(WINDOW, WINDOW, idle.WINDOW.decode),
    "explanation": Kind(EXPLANATION, EXPLANATION, parse_explanation),
    "settings": Kind(SETTINGS, SETTINGS, endpoints.SETTINGS.decode),
    "rollout": Kind(ROLLOUT, ROLLOUT, endpoint_rollouts.ROLLOUT_POLICY.decode),
    "revision": Kind(REVISION, endpoint_revisions.encode_revision(REVISION), endpoint_revisions.REVISION_SPEC.decode),
    "published": Kind(
        PublishedPort(8000, PROBE, PROBE, metrics_path="/metrics"), REVISION.replica, attempts.PUBLISHED_PORT.decode
    ),
    "mount root": Kind(
        MountRoot("/data", writable=True, projects=("p",)),
        {"path": "/data", "writable": True, "projects": ["p"]},
        groups.MOUNT_ROOT.decode,
    ),
}
# As earlier versions wrote them.
EARLIER = {
    "idle policy": ('{"warning": 0.0, "interaction": 4.0}', IdlePolicy(warning=0.0, interaction=4.0)),
    "reading": ('{"at": 10, "patience": 5.0, "remaining": 3.5, "averages": {"cpu": 1.25}, "observed": 40.0}', READING),
    "window": ('{"start": 1.0, "width": 160.0, "marks": [[0.0, {}], [10.0, {"cpu": 30.0}]]}', WINDOW),
    "explanation": (
        """{"tier": "CAPACITY", "shortfalls": [
            {"hostname": "main1", "agent": "a1", "slot": "cpu", "requested": "4", "free": "2", "short": "2"}]}""",
        EXPLANATION,
    ),
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def document(kind: str) -> object:
    """Returns a document as a column gives it back."""
    (found,) = orjson.loads(recordset([KINDS[kind].stored]))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_document_comes_back_as_it_was_stored(kind: str) -> None:
    assert KINDS[kind].decode(document(kind)) == KINDS[kind].value


@pytest.mark.parametrize("kind", EARLIER)
def test_documents_of_earlier_versions_are_read(kind: str) -> None:
    stored, expected = EARLIER[kind]
    assert KINDS[kind].decode(orjson.loads(stored)) == expected


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"revision"}))
def test_members_of_later_versions_are_left_alone(kind: str) -> None:
    later = document(kind)
    assert isinstance(later, dict)
    assert KINDS[kind].decode({**later, "hibernates": {"at": 7}}) == KINDS[kind].value


def test_a_request_of_a_later_version_is_not_read_in_part() -> None:
    later = document("revision")
    assert isinstance(later, dict)
    later["session"] |= {"version": 1000, "hibernates": True}
    assert isinstance(KINDS["revision"].decode(later), Unreadable)


@st.composite
def damaged(draw: st.DrawFn, found: object) -> object:
    """Returns a document of which a part is cut, or is something else."""
    if isinstance(found, Mapping) and found and draw(st.booleans()):
        key = draw(st.sampled_from(sorted(found)))
        if draw(st.integers(0, 3)) == 0:
            return {name: value for name, value in found.items() if name != key}
        return {**found, key: draw(damaged(found[key]))}
    if isinstance(found, list) and found and draw(st.booleans()):
        return found[: draw(st.integers(0, len(found)))]
    return draw(JSON)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_damaged_document_is_a_value_or_unreadable(kind: str, data: st.DataObject) -> None:
    decoded = KINDS[kind].decode(data.draw(damaged(document(kind))))
    assert isinstance(decoded, type(KINDS[kind].value) | Unreadable)


@given(JSON)
def test_a_list_costs_its_damaged_entries_only(odd: object) -> None:
    sound = {"name": "docker", "available": True, "message": ""}
    found = agents.RUNTIME.decode_each([sound, odd, sound])
    assert [item.name for item in found if item.name == "docker"] == ["docker", "docker"]
    assert len(found) == 2
    conditions = agents.decode_conditions([odd])
    assert len(conditions) == 1
    assert isinstance(conditions[0], Unreadable)
    assert agents.RUNTIME.decode_each(odd) == ()


def test_a_mount_root_without_projects_is_not_one_of_all_projects() -> None:
    assert isinstance(groups.MOUNT_ROOT.decode({"path": "/data", "writable": True}), Unreadable)


def test_what_is_unreadable_names_no_value() -> None:
    found = idle.decode_policy({"interaction": "s3cret"})
    assert isinstance(found, Unreadable)
    assert "an idle policy cannot be read" in found.error
    assert "s3cret" not in found.error


def test_an_explanation_that_cannot_be_read_says_nothing() -> None:
    assert parse_explanation({"tier": "VIBES"}) == NO_EXPLANATION
    assert parse_explanation({}) == NO_EXPLANATION
