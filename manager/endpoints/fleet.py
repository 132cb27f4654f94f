"""An endpoint as stored, as the values that are decided on and the routers' side gets."""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from retinue.manager.domain.endpoints.measures import CONCURRENCY
from retinue.manager.domain.endpoints.model import RoutedEndpoint, RoutedReplica, RoutedRevision
from retinue.manager.domain.endpoints.observation import replica_state
from retinue.manager.domain.endpoints.replicas import Fleet, Replica, Revision
from retinue.manager.domain.endpoints.rollout import Rollout, RolloutPolicy, effective_shares
from retinue.manager.domain.endpoints.scaling import Metric, ScalingPolicy
from retinue.manager.domain.endpoints.spec import EndpointSettings, ReplicaSpec, RevisionSpec, default_target
from retinue.manager.domain.endpoints.states import SERVING, Lifecycle, ReplicaState
from retinue.manager.domain.preconditions import StateForbids
from retinue.manager.domain.session.states import SessionState
from retinue.manager.store.endpoints.endpoint_replicas import ReplicaRecord
from retinue.manager.store.endpoints.endpoints import EndpointRecord
from retinue.manager.store.postgres.documents import Unreadable

if TYPE_CHECKING:
    import datetime as dt

    from retinue.manager.store.endpoints.endpoint_rollouts import RolloutRecord

_log = logging.getLogger(__name__)

_LOST = "LOST"
# Of a revision that cannot be read, of an endpoint that is being deleted: its times are the defaults.
_UNKNOWN_REPLICA = ReplicaSpec(1)
_T = TypeVar("_T", EndpointSettings, RevisionSpec, RolloutPolicy)


class UnreadableEndpointError(StateForbids):
    """A stored endpoint, revision or rollout that this version cannot read: another version wrote it,
    or it is damaged.
    """

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}: another version of the manager wrote it, or it is damaged", "endpoint")


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """What the routers know: replicas of which every live router knows that they drain, their requests,
    and whether all hold new requests.

    Without a router no replica has any; those of a replica that is not in `requests` are unknown.
    """

    draining: Collection[uuid.UUID] = ()
    requests: Mapping[uuid.UUID, int] | None = None
    gated: bool = True


@dataclass(frozen=True, slots=True)
class EndpointView:
    """An endpoint as stored and read: settings, revisions, and its replicas as they are now."""

    record: EndpointRecord
    settings: EndpointSettings
    revisions: Mapping[int, RevisionSpec]
    replicas: tuple[ReplicaRecord, ...]
    # By session; of those that are not gone.
    states: Mapping[uuid.UUID, ReplicaState]

    @property
    def is_active(self) -> bool:
        """Returns whether it is not being deleted."""
        return self.record.lifecycle is Lifecycle.ACTIVE

    @property
    def rollout(self) -> RolloutRecord | None:
        """Returns the newest rollout; for an endpoint that is being deleted, only one that can be read."""
        stored = self.record.rollout
        if not self.is_active and stored is not None and isinstance(stored.policy, Unreadable):
            return None
        return stored

    @property
    def ready(self) -> int:
        """Returns the number of replicas that are ready."""
        return sum(state is ReplicaState.READY for state in self.states.values())

    @property
    def starting(self) -> int:
        """Returns the number of replicas that start."""
        return sum(state is ReplicaState.STARTING for state in self.states.values())

    @property
    def live(self) -> int:
        """Returns the number of replicas that neither drain nor stop."""
        return sum(state in SERVING for state in self.states.values())

    @property
    def serving(self) -> list[uuid.UUID]:
        """Returns the sessions of the replicas that neither drain nor stop."""
        return [session_id for session_id, state in self.states.items() if state in SERVING]

    @property
    def running(self) -> list[uuid.UUID]:
        """Returns those of them that run."""
        found = {item.session_id for item in self.replicas if item.session_state is SessionState.RUNNING}
        return [session_id for session_id in self.serving if session_id in found]

    def policy(self) -> ScalingPolicy:
        """Returns the scaling policy, with the metric of the newest revision unless others were asked for."""
        newest = self.revisions.get(self.record.newest_revision)
        if not self.settings.default_metric or newest is None:
            return self.settings.scaling
        return replace(self.settings.scaling, metrics=(Metric(CONCURRENCY, default_target(newest.replica)),))

    def fleet(self, now: dt.datetime, known: Acknowledged = Acknowledged()) -> Fleet:  # it never changes
        """Returns what a plan looks at."""
        requests = known.requests
        return Fleet(
            target=self.record.target if self.is_active else 0,
            revisions={
                item.number: Revision(
                    item.number,
                    item.percent,
                    self._replica_spec(item.number).start_timeout,
                    self._replica_spec(item.number).drain_timeout,
                    _ms(item.retry_time) if item.retry_time else 0,
                    item.failures,
                )
                for item in self.record.revisions
            },
            replicas=[
                Replica(
                    item.session_id,
                    item.revision,
                    self.states[item.session_id],
                    item.serial,
                    _ms(item.since_time),
                    _ms(item.start_time) if item.start_time else None,
                    # One that was never in the table has none.
                    0 if requests is None or not item.address else requests.get(item.session_id),
                    _ms(item.drain_time) if item.drain_time else 0,
                    item.session_id in known.draining,
                    item.agent_drained,
                    item.agent_state == _LOST,
                    item.agent_held,
                )
                for item in self.replicas
                if self.states[item.session_id] is not ReplicaState.GONE
            ],
            now=_ms(now),
            gated=known.gated,
        )

    def _replica_spec(self, number: int) -> ReplicaSpec:
        return self.revisions[number].replica if number in self.revisions else _UNKNOWN_REPLICA

    def routed(self, now: dt.datetime, rollout: Rollout | None) -> RoutedEndpoint:
        """Returns what routers are to serve."""
        fleet = self.fleet(now)
        shares = effective_shares(fleet, rollout)
        record = self.record
        specs = {number: self._replica_spec(number) for number in sorted(item.number for item in record.revisions)}
        revisions = tuple(
            RoutedRevision(
                number,
                shares.get(number, 0),
                spec.protocol,
                spec.max_concurrency,
                spec.queue,
                self._routed_replicas(number),
                spec.liveness is not None,
            )
            for number, spec in specs.items()
        )
        serves = any(shares.values())
        return RoutedEndpoint(
            id=record.id,
            project=record.project,
            name=record.name,
            host_label=record.host_label,
            routing=self.settings.routing,
            access=self.settings.access,
            revisions=revisions,
            gate=fleet.target == 0 or not serves,
            deleted=record.lifecycle is Lifecycle.DELETED,
        )

    def _routed_replicas(self, number: int) -> tuple[RoutedReplica, ...]:
        """Returns the replicas of a revision that can be reached, and get requests or finish what they have."""
        return tuple(
            RoutedReplica(item.session_id, item.address, item.port, state)
            for item in self.replicas
            if item.revision == number
            and item.address
            and (state := self.states[item.session_id]) in (ReplicaState.READY, ReplicaState.DRAINING)
        )

    def changed(self, states: Mapping[uuid.UUID, ReplicaState]) -> EndpointView:
        """Returns the endpoint with replicas in other states."""
        return replace(self, states={**self.states, **states})


def readable(decoded: _T | Unreadable) -> _T:
    """Returns what was decoded. Raises UnreadableEndpointError."""
    if isinstance(decoded, Unreadable):
        raise UnreadableEndpointError(decoded.error)
    return decoded


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Makes an UnreadableEndpointError of any error that a value out of a row can cause. Also a decorator."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # What was wrong is for the log: callers may not see all that is stored.
        _log.warning("what is stored of an endpoint cannot be read", exc_info=error)
        raise UnreadableEndpointError(f"what is stored of it cannot be read: {type(error).__name__}") from error


def view_of(record: EndpointRecord, replicas: Sequence[ReplicaRecord]) -> EndpointView:
    """Returns an endpoint as stored. Raises UnreadableEndpointError, unless it is being deleted: then settings are the
    defaults, whose access needs a token, and revisions are those that can be read.
    """
    settings, specs = record.settings, {item.number: item.spec for item in record.revisions}
    if record.lifecycle is Lifecycle.ACTIVE:
        rollout_of(record.rollout)
    else:
        settings = EndpointSettings() if isinstance(settings, Unreadable) else settings
        specs = {number: spec for number, spec in specs.items() if not isinstance(spec, Unreadable)}
    return EndpointView(
        record,
        readable(settings),
        {number: readable(spec) for number, spec in specs.items()},
        tuple(replicas),
        {item.session_id: observed_state(item) for item in replicas},
    )


def observed_state(record: ReplicaRecord) -> ReplicaState:
    """Returns the state of a replica by what is stored now."""
    return replica_state(
        record.state,
        record.session_state,
        record.health,
        lost=record.agent_state == _LOST,
        published=bool(record.address),
    )


def rollout_of(
    record: RolloutRecord | None, *, progress_at: int | None = None, requests: int = 0, errors: int = 0
) -> Rollout | None:
    """Returns a rollout as a plan looks at it. Raises UnreadableEndpointError."""
    if record is None:
        return None
    since = _ms(record.since_time)
    return Rollout(
        record.from_revision,
        record.to_revision,
        record.state,
        record.step,
        since,
        readable(record.policy),
        record.promoted,
        since if progress_at is None else progress_at,
        requests,
        errors,
    )


def _ms(time: dt.datetime) -> int:
    return int(time.timestamp() * 1_000)
