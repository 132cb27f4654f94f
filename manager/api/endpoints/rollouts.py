"""Begins and changes rollouts, and sets the shares of revisions, within the transaction of a request."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from retinue.manager.api.endpoints.requests import read_revision_spec
from retinue.manager.api.endpoints.settings_convert import Reader
from retinue.manager.domain import errors, preconditions
from retinue.manager.domain.endpoints.events import EndpointEventBody, RevisionDeployed, RolloutMoved, TrafficChanged
from retinue.manager.domain.endpoints.rollout import Rolling
from retinue.manager.domain.endpoints.states import FINISHED_ROLLOUTS, RolloutState
from retinue.manager.endpoints.actions import entry
from retinue.manager.endpoints.fleet import EndpointView, readable
from retinue.manager.server.fields import Violations
from retinue.manager.server.interceptors import current_principal
from retinue.manager.store.endpoints import endpoint_revisions, endpoint_rollouts, endpoints
from retinue.manager.store.journal import journal

if TYPE_CHECKING:
    from retinue.manager.domain.session.pending_limit import PendingLimit
    from retinue.manager.store.endpoints.endpoint_revisions import RevisionRecord
    from retinue.manager.store.endpoints.endpoint_rollouts import RolloutRecord
    from retinue.manager.store.postgres.database import Transaction
    from retinue.manager.v1 import endpoint_service_pb2 as pb

_MAX_SHARES = 16
_WHOLE = 100


async def deploy(
    tx: Transaction, view: EndpointView, request: pb.DeployRevisionRequest, pending: PendingLimit
) -> RevisionRecord:
    """Makes a revision and begins its rollout; returns the revision."""
    _refuse_running(view)
    violations = Violations()
    policy = view.settings.rollout
    if request.HasField("rollout"):
        policy = Reader(violations).rollout(request.rollout, "rollout")
    violations.raise_any()
    record, by = view.record, current_principal().name
    spec = await read_revision_spec(tx, request.revision, "revision", record.project, pending)
    Reader(violations).shown(view.settings, spec.replica, "scaling")
    violations.raise_any()
    if spec.session.resource_group != record.resource_group:
        raise errors.InvalidRequest(
            [("revision.session.resource_group", f"must be that of the endpoint, {record.resource_group}")]
        )
    serving = _serving(view)
    number = await endpoint_revisions.add(tx, record.id, spec=spec, author=by)
    message = f"deployed by {by}"
    await endpoint_rollouts.begin(tx, record.id, old=serving, new=number, policy=policy, message=message)
    bodies: list[EndpointEventBody] = [
        RevisionDeployed(number, by),
        RolloutMoved(serving, number, RolloutState.PROGRESSING, 0, message),
    ]
    await journal.append(tx, [entry(view, item) for item in bodies])
    made = await endpoint_revisions.read(tx, record.id, number)
    assert made is not None  # noqa: S101  # it was just inserted
    return made


def checked_shares(request: pb.SetTrafficRequest) -> dict[int, int]:
    """Returns the shares of a request by revision. Raises InvalidRequest and TrafficSum."""
    violations = Violations()
    shares = {item.revision: item.percent for item in request.traffic}
    if not 1 <= len(request.traffic) <= _MAX_SHARES or len(shares) < len(request.traffic):
        violations.add("traffic", f"must be from 1 to {_MAX_SHARES} revisions, each once")
    for place, item in enumerate(request.traffic):
        violations.integer(f"traffic[{place}].percent", item.percent, 0, _WHOLE)
    violations.raise_any()
    if sum(shares.values()) != _WHOLE:
        raise errors.TrafficSum(sum(shares.values()))
    return shares


async def set_shares(tx: Transaction, view: EndpointView, shares: dict[int, int]) -> None:
    """Replaces the shares of an endpoint's revisions."""
    _refuse_running(view)
    for place, number in enumerate(shares):
        found = await endpoint_revisions.read(tx, view.record.id, number)
        if found is None:
            raise errors.InvalidRequest([(f"traffic[{place}].revision", "is not a revision of the endpoint")])
        readable(found.spec)
    chosen = tuple(sorted((number, percent) for number, percent in shares.items() if percent))
    await endpoint_rollouts.set_traffic(tx, view.record.id, chosen)
    await endpoints.touch(tx, view.record.id)
    await journal.append(tx, [entry(view, TrafficChanged(chosen))])


async def promote(tx: Transaction, view: EndpointView) -> None:
    """Has a rollout take its next step. Raises StateForbids unless it progresses."""
    rollout = _rollout_in(view, RolloutState.PROGRESSING)
    await endpoint_rollouts.promote(tx, view.record.id)
    await _record_move(tx, view, rollout, rollout.state, f"promoted by {current_principal().name}")


async def pause(tx: Transaction, view: EndpointView) -> None:
    """Stops a rollout after what has begun. Raises StateForbids unless it progresses."""
    rollout = _rollout_in(view, RolloutState.PROGRESSING)
    await _move(tx, view, rollout, RolloutState.PAUSED, f"paused by {current_principal().name}")


async def resume(tx: Transaction, view: EndpointView) -> None:
    """Continues a rollout. Raises StateForbids unless it is paused."""
    rollout = _rollout_in(view, RolloutState.PAUSED)
    await _move(tx, view, rollout, RolloutState.PROGRESSING, f"resumed by {current_principal().name}")


async def roll_back(tx: Transaction, view: EndpointView, number: int) -> None:
    """Has a rollout go back to where it came from, or begins one that goes back; `number` 0 names no revision.
    Raises InvalidRequest, StateForbids and RolloutRunning.
    """
    by, rollout = current_principal().name, view.record.rollout
    if rollout is None or rollout.state in FINISHED_ROLLOUTS:
        await _go_back(tx, view, number, by)
        return
    rollout = _rollout_in(view, RolloutState.PROGRESSING, RolloutState.PAUSED)
    _check_way_back(view, rollout, number)
    await _move(tx, view, rollout, RolloutState.ROLLING_BACK, f"rolled back by {by}")


def _rollout_in(view: EndpointView, *states: RolloutState) -> RolloutRecord:
    record, rollout = view.record, view.record.rollout
    if rollout is None or rollout.state in FINISHED_ROLLOUTS:
        raise preconditions.StateForbids("no rollout is running", f"endpoint/{record.name}")
    if rollout.state not in states:
        raise preconditions.StateForbids(f"the rollout is {rollout.state}", f"endpoint/{record.name}")
    return rollout


async def _move(tx: Transaction, view: EndpointView, rollout: RolloutRecord, state: RolloutState, message: str) -> None:
    await endpoint_rollouts.move(tx, view.record.id, state=state, step=rollout.step, message=message, restart=False)
    await _record_move(tx, view, rollout, state, message)


async def _record_move(
    tx: Transaction, view: EndpointView, rollout: RolloutRecord, state: RolloutState, message: str
) -> None:
    await endpoints.touch(tx, view.record.id)
    moved = RolloutMoved(rollout.from_revision, rollout.to_revision, state, rollout.step, message)
    await journal.append(tx, [entry(view, moved)])


async def _go_back(tx: Transaction, view: EndpointView, number: int, by: str) -> None:
    record, serving = view.record, _serving(view)
    if number and await endpoint_revisions.read(tx, record.id, number) is None:
        raise errors.InvalidRequest([("to_revision", "is not a revision of the endpoint")])
    number = number or await endpoint_revisions.find_served_before(tx, record.id, serving) or serving
    if (found := await endpoint_revisions.read(tx, record.id, number)) is not None:
        readable(found.spec)
    if number == serving:
        why = f"there is no revision before {serving} that has served"
        raise preconditions.StateForbids(why, f"endpoint/{record.name}")
    # Whatever its starts did before: it is tried again.
    await endpoint_revisions.record_starts(tx, record.id, number, failures=0, retry_seconds=None)
    message = f"rolled back by {by}"
    policy = view.settings.rollout
    if not isinstance(policy.strategy, Rolling):
        # Steps and promotions are for revisions that have not proved themselves: this one has served.
        policy = replace(policy, strategy=Rolling())
    await endpoint_rollouts.begin(tx, record.id, old=serving, new=number, policy=policy, message=message)
    await endpoints.touch(tx, record.id)
    await journal.append(tx, [entry(view, RolloutMoved(serving, number, RolloutState.PROGRESSING, 0, message))])


def _check_way_back(view: EndpointView, rollout: RolloutRecord, number: int) -> None:
    """Refuses to go anywhere but to where a running rollout came from,
    and to end a rollback without that being named.
    """
    if number and number != rollout.from_revision:
        raise preconditions.RolloutRunning(view.record.name, rollout.state)
    if not number and rollout.to_revision < rollout.from_revision:
        why = f"it goes back to revision {rollout.to_revision} already"
        raise preconditions.StateForbids(why, f"endpoint/{view.record.name}")


def _refuse_running(view: EndpointView) -> None:
    rollout = view.record.rollout
    if rollout is not None and rollout.state not in FINISHED_ROLLOUTS:
        raise preconditions.RolloutRunning(view.record.name, rollout.state)


def _serving(view: EndpointView) -> int:
    """Returns the revision with the greatest share, of several the newest."""
    return max(view.record.revisions, key=lambda item: (item.percent, item.number)).number
