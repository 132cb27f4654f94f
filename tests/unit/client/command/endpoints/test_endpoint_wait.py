"""When waiting for a rollout ends, and how."""

from __future__ import annotations

import pytest

from retinue.client.command.endpoints.endpoint_wait import rollout_end
from retinue.client.errors import RetinueError
from retinue.manager.v1 import endpoint_pb2 as epb
from retinue.manager.v1 import endpoint_service_pb2 as pb

CANARY = epb.RolloutSpec(canary=epb.CanaryRollout(steps=[epb.CanaryStep(percent=10), epb.CanaryStep(percent=50)]))
CANARY.canary.steps[1].hold.FromSeconds(60)
BLUE_GREEN = epb.RolloutSpec(blue_green=epb.BlueGreenRollout())
ROLLING = epb.RolloutSpec(rolling=epb.RollingRollout())
MOVING, PAUSED, BACK = epb.ROLLOUT_STATE_PROGRESSING, epb.ROLLOUT_STATE_PAUSED, epb.ROLLOUT_STATE_ROLLING_BACK
DONE, WENT_BACK = epb.ROLLOUT_STATE_DONE, epb.ROLLOUT_STATE_ROLLED_BACK


def answer(
    state: epb.RolloutState.ValueType,
    spec: epb.RolloutSpec = ROLLING,
    *,
    share: int = 0,
    revisions: tuple[int, int] = (1, 2),
    ready: int = 0,
    least: int = 0,
    shown: epb.EndpointState.ValueType = epb.ENDPOINT_STATE_UPDATING,
) -> pb.GetEndpointResponse:
    """An endpoint in a rollout, which wants two replicas and has `ready` of the new revision."""
    rollout = epb.Rollout(
        from_revision=revisions[0], to_revision=revisions[1], state=state, spec=spec, message="five failed"
    )
    traffic = [epb.RevisionShare(revision=revisions[1], percent=share)]
    spec_now = epb.EndpointSpec(name="shop", scaling=epb.ScalingPolicy(min=least, max=2))
    endpoint = epb.Endpoint(
        spec=spec_now, rollout=rollout, target=2, ready_replicas=ready, state=shown, traffic=traffic
    )
    replicas = [epb.Replica(revision=revisions[1], state=epb.REPLICA_STATE_READY)] * ready
    return pb.GetEndpointResponse(endpoint=endpoint, replicas=replicas)


READY, SHORT, ASLEEP = epb.ENDPOINT_STATE_READY, epb.ENDPOINT_STATE_DEGRADED, epb.ENDPOINT_STATE_ASLEEP
BEGUN = answer(MOVING).endpoint


@pytest.mark.parametrize(
    ("found", "promoted", "end"),
    [
        (answer(MOVING), False, None),
        (answer(DONE, shown=SHORT), False, None),
        (answer(DONE, shown=READY), False, ""),
        # An endpoint is ready for a while though it has too few replicas.
        (answer(DONE, shown=READY, least=2, ready=1), False, None),
        (answer(DONE, shown=READY, least=2, ready=2), False, ""),
        (answer(DONE, shown=ASLEEP, least=2), False, ""),
        (answer(PAUSED), False, "paused"),
        (answer(MOVING, shown=ASLEEP), False, "asleep"),
        (answer(MOVING, CANARY), False, None),
        (answer(MOVING, CANARY, share=10), False, "10 %"),
        (answer(MOVING, CANARY, share=10), True, "10 %"),
        # With a time of its own, and the last part, it moves by itself.
        (answer(MOVING, CANARY, share=50), False, None),
        (answer(MOVING, CANARY, share=100), False, None),
        (answer(MOVING, BLUE_GREEN, ready=1), False, None),
        (answer(MOVING, BLUE_GREEN, ready=2), False, "all replicas of revision 2 are ready"),
        # It has not moved since it was promoted.
        (answer(MOVING, BLUE_GREEN, ready=2), True, None),
        (answer(MOVING, BLUE_GREEN, ready=2, share=100), True, "all requests"),
    ],
)
def test_waiting_ends_when_it_is_done_or_a_user_has_to_act(
    found: pb.GetEndpointResponse, promoted: bool, end: str | None
) -> None:
    result = rollout_end(found, BEGUN, promoted=promoted)
    if end:
        assert result is not None
        assert end in result
    else:
        assert result == end


def test_a_rollout_that_was_promoted_in_its_step_has_to_leave_it() -> None:
    begun = answer(MOVING, CANARY, share=10).endpoint
    assert rollout_end(answer(MOVING, CANARY, share=10), begun, promoted=True) is None


@pytest.mark.parametrize("state", [BACK, WENT_BACK])
def test_a_deployment_that_goes_back_by_itself_is_an_error(state: epb.RolloutState.ValueType) -> None:
    with pytest.raises(RetinueError, match="the rollout went back to revision 1: five failed"):
        rollout_end(answer(state, shown=READY), BEGUN)


def test_a_rollback_is_done_when_the_old_revision_serves_again() -> None:
    back = answer(BACK).endpoint
    assert rollout_end(answer(BACK), back) is None
    assert rollout_end(answer(WENT_BACK, shown=READY), back) == ""


def test_another_rollout_is_an_error() -> None:
    with pytest.raises(RetinueError, match="another rollout"):
        rollout_end(answer(MOVING, revisions=(2, 3)), BEGUN)
