"""What routers get of an endpoint, whatever is stored of its revisions, its replicas and its rollout."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.manager.domain.endpoints.model import RoutedEndpoint
from retinue.manager.domain.endpoints.replicas import divided
from retinue.manager.domain.endpoints.rollout import BlueGreen, Canary, CanaryStep, Rolling, RolloutPolicy
from retinue.manager.domain.endpoints.spec import EndpointSettings, ReplicaSpec, RevisionSpec
from retinue.manager.domain.endpoints.states import Lifecycle, ReplicaState, RolloutState
from retinue.manager.domain.session.spec import SessionSpec
from retinue.manager.domain.session.states import SessionState, SessionType
from retinue.manager.endpoints.fleet import EndpointView, rollout_of, view_of
from retinue.manager.endpoints.routers.core.table import EdgeTable, difference
from retinue.manager.endpoints.routers.messages import endpoint_message
from retinue.manager.store.endpoints.endpoint_replicas import ReplicaRecord
from retinue.manager.store.endpoints.endpoint_revisions import RevisionRecord
from retinue.manager.store.endpoints.endpoint_rollouts import RolloutRecord
from retinue.manager.store.endpoints.endpoints import EndpointRecord

if TYPE_CHECKING:
    from collections.abc import Sequence


NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
SPEC = RevisionSpec(SessionSpec("replica", "default", "default", SessionType.INFERENCE), ReplicaSpec(8000))
SETTINGS = EndpointSettings()
POLICIES = [
    RolloutPolicy(strategy) for strategy in (Rolling(), BlueGreen(), Canary((CanaryStep(10), CanaryStep(60, 1_000))))
]
IDS = [uuid.UUID(int=number) for number in range(1, 4)]


@st.composite
def replicas(draw: st.DrawFn, endpoint: uuid.UUID, numbers: Sequence[int]) -> list[ReplicaRecord]:
    """Any replicas: what is stored, what the session is, and what the agent said last need not go together."""
    made = []
    for serial in range(draw(st.integers(0, 6))):
        address = draw(st.sampled_from(["", "192.0.2.1"]))
        made.append(
            ReplicaRecord(
                session_id=uuid.UUID(int=endpoint.int * 100 + serial),
                endpoint_id=endpoint,
                revision=draw(st.sampled_from(numbers)),
                serial=serial,
                state=draw(st.sampled_from(list(ReplicaState))),
                since_time=NOW,
                drain_time=NOW,
                was_ready=draw(st.booleans()),
                message="",
                health=draw(st.sampled_from(["", "STARTING", "READY", "UNREADY"])),
                health_message="",
                address=address,
                port=31_000 + serial if address else 0,
                session_name=f"replica-{serial}",
                session_state=draw(st.sampled_from([*SessionState, None])),
                session_reason="",
                session_message="",
                start_time=NOW,
                epoch=1,
                agent_id="a1",
                agent_state=draw(st.sampled_from(["ALIVE", "SUSPECT", "LOST"])),
                agent_drained=draw(st.booleans()),
                agent_held=draw(st.booleans()),
                image="",
                image_digest="",
                image_id="",
            )
        )
    return made


@st.composite
def views(draw: st.DrawFn, endpoint: uuid.UUID = IDS[0]) -> EndpointView:
    numbers = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4, unique=True))
    shares = divided(100, {number: draw(st.integers(0, 3)) for number in numbers} | {numbers[0]: 1})
    revisions = [
        RevisionRecord(endpoint, number, SPEC, {}, draw(st.integers(0, 5)), None, None, "ada", NOW, shares[number])
        for number in sorted(numbers)
    ]
    rollout = RolloutRecord(
        endpoint,
        draw(st.sampled_from(numbers)),
        draw(st.sampled_from(numbers)),
        draw(st.sampled_from(list(RolloutState))),
        draw(st.integers(0, 3)),
        draw(st.booleans()),
        "",
        draw(st.sampled_from(POLICIES)),
        NOW,
    )
    record = EndpointRecord(
        id=endpoint,
        name="llm",
        project="default",
        owner="ada",
        resource_group="default",
        host_label=f"llm-{endpoint.int}",
        lifecycle=draw(st.sampled_from(list(Lifecycle))),
        settings=SETTINGS,
        version=1,
        newest_revision=max(numbers),
        target=draw(st.integers(0, 4)),
        target_reason="",
        decision=None,
        conditions=(),
        first_ready_time=None,
        short_time=None,
        create_time=NOW,
        delete_time=None,
        revisions=tuple(revisions),
        rollout=draw(st.sampled_from([rollout, None])),
    )
    return view_of(record, draw(replicas(endpoint, numbers)))


def routed(view: EndpointView) -> RoutedEndpoint:
    return view.routed(NOW, rollout_of(view.record.rollout))


@given(views())
@settings(max_examples=200, deadline=None)
def test_routers_get_every_replica_that_serves_or_drains_and_no_other(view: EndpointView) -> None:
    found = {
        item.session_id: (revision.number, item.state)
        for revision in routed(view).revisions
        for item in revision.replicas
    }
    reachable = {item.session_id: item for item in view.replicas if item.address}
    expected = {
        key: (item.revision, view.states[key])
        for key, item in reachable.items()
        if view.states[key] in (ReplicaState.READY, ReplicaState.DRAINING)
    }
    assert found == expected
    for key, (_, state) in found.items():
        item = reachable[key]
        if state is ReplicaState.READY:
            # Acknowledged: its session runs, its probe has passed, and its node is there.
            # A session of another version stays as it was.
            known = (
                item.session_state is SessionState.RUNNING
                and item.health in ("", "READY")
                and item.agent_state != "LOST"
            )
            assert known or (item.session_state is None and item.state is ReplicaState.READY)
        else:
            assert item.state is ReplicaState.DRAINING


@given(views())
@settings(max_examples=200, deadline=None)
def test_shares_are_whole_and_of_revisions_that_have_a_replica_for_them(view: EndpointView) -> None:
    table = routed(view)
    serving = {
        revision.number
        for revision in table.revisions
        if any(item.state is ReplicaState.READY for item in revision.replicas)
    }
    weights = {revision.number: revision.weight for revision in table.revisions}
    assert sum(weights.values()) == (100 if serving else 0)
    assert {number for number, weight in weights.items() if weight} <= serving
    assert table.gate == (not serving or view.record.target == 0 or not view.is_active)
    stored = {item.number: item.percent for item in view.record.revisions}
    rollout = view.record.rollout
    if rollout is None or rollout.state in (RolloutState.DONE, RolloutState.ROLLED_BACK):
        # What is missing of others is divided: nothing with a share and a replica gets less than its share.
        assert all(weights[number] >= stored[number] for number in serving)


@given(st.lists(st.lists(st.sampled_from(IDS), unique=True), min_size=1, max_size=5), st.data())
@settings(max_examples=100, deadline=None)
def test_what_differs_between_tables_makes_one_of_the_other(
    changes: list[list[uuid.UUID]], data: st.DataObject
) -> None:
    table, router = EdgeTable(), dict[uuid.UUID, RoutedEndpoint]()
    for present in changes:
        endpoints = [routed(data.draw(views(endpoint))) for endpoint in present]
        following = table.after(endpoints, {}, 2)
        change = difference(table, following)
        assert following.revision - table.revision == (
            1 if change.changed or change.removed or not table.revision else 0
        )
        for endpoint in change.changed:
            router[endpoint.id] = endpoint
        for key in change.removed:
            del router[key]
        assert router == following.endpoints
        assert following.after(endpoints, {}, 2) is following
        table = following
        for found in router.values():
            message = endpoint_message(found, "localhost")
            # Behind the gate no replica gets a new request.
            assert not found.gate or all(item.draining for part in message.revisions for item in part.replicas)
