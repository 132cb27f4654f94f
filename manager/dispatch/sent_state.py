"""The desired state of one agent, as the messages that it is sent, and the difference of two such states."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from retinue.agent.v1 import agent_service_pb2 as pb


@dataclass(frozen=True, slots=True)
class DesiredState:
    """All that is desired on one agent: attempts by id, networks by session id. Attempts hold secrets."""

    attempts: Mapping[str, pb.Attempt] = field(default_factory=dict, repr=False)
    networks: Mapping[str, pb.Network] = field(default_factory=dict)
    # Attempts that the agent has and the manager does not know, which are to end.
    removed: frozenset[str] = frozenset()
    # Sessions that cannot be read whole: what is missing of them is to stay as the agent has it.
    unreadable: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Difference:
    """The change that turns one desired state into another."""

    attempts: tuple[pb.Attempt, ...] = field(repr=False)
    removed_attempts: tuple[str, ...]
    networks: tuple[pb.Network, ...]
    removed_networks: tuple[str, ...]
    added_protected: tuple[str, ...] = ()
    removed_protected: tuple[str, ...] = ()
    added_routers: tuple[str, ...] = ()
    removed_routers: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        addresses = (*self.added_protected, *self.removed_protected, *self.added_routers, *self.removed_routers)
        attempts, networks = (self.attempts, self.removed_attempts), (self.networks, self.removed_networks)
        return any((*attempts, *networks, addresses))


def difference(before: DesiredState, after: DesiredState) -> Difference:
    """Returns what has to be sent to an agent that knows `before` so that it knows `after`."""
    return Difference(
        tuple(attempt for key, attempt in after.attempts.items() if not _is_same(before.attempts.get(key), attempt)),
        tuple(sorted({key for key in before.attempts if key not in after.attempts} | after.removed)),
        tuple(network for key, network in after.networks.items() if before.networks.get(key) != network),
        tuple(key for key in before.networks if key not in after.networks),
    )


def _is_same(one: pb.Attempt | None, other: pb.Attempt) -> bool:
    """Returns whether an attempt is as it was sent. The key and certificate of an SFTP server do not count: they follow
    from the attempt, though not the same bytes each time.
    """
    if one is None or not (one.HasField("sftp") and other.HasField("sftp")):
        return one == other
    adapted = pb.Attempt()
    adapted.CopyFrom(one)
    adapted.sftp.host_key, adapted.sftp.host_certificate = other.sftp.host_key, other.sftp.host_certificate
    return adapted == other


class SentState:
    """The state that an agent was sent, by session, so that a change of some sessions does
    not require reading the others.
    """

    def __init__(
        self, desired: DesiredState, protected: frozenset[str] = frozenset(), routers: frozenset[str] = frozenset()
    ) -> None:
        """Starts from what the agent was sent as a whole; `protected` are addresses that no kernel may reach, `routers`
        those that reach published ports.
        """
        self._protected = protected
        self._routers = routers
        self._attempts: dict[str, dict[str, pb.Attempt]] = {}
        self._networks: dict[str, pb.Network] = {}
        self._take(desired)

    def advance(
        self,
        wanted: DesiredState,
        session_ids: Iterable[str] | None,
        protected: frozenset[str] = frozenset(),
        routers: frozenset[str] = frozenset(),
    ) -> Difference:
        """Returns what must be sent so that the agent knows `wanted`, and counts it as sent. `wanted` is all there is
        of these sessions on the agent, but for sessions that cannot be read:
        of these the agent keeps what it was sent; None means of all sessions.
        """
        wanted = self._completed(wanted)
        ids: Collection[str] = {*self._attempts, *self._networks} if session_ids is None else set(session_ids)
        before = DesiredState(
            {key: attempt for id_ in ids for key, attempt in self._attempts.get(id_, {}).items()},
            {id_: self._networks[id_] for id_ in ids if id_ in self._networks},
        )
        for id_ in ids:
            self._attempts.pop(id_, None)
            self._networks.pop(id_, None)
        self._take(wanted)
        added, removed = protected - self._protected, self._protected - protected
        self._protected = protected
        routers_before, self._routers = self._routers, routers
        return replace(
            difference(before, wanted),
            added_protected=tuple(sorted(added)),
            removed_protected=tuple(sorted(removed)),
            added_routers=tuple(sorted(routers - routers_before)),
            removed_routers=tuple(sorted(routers_before - routers)),
        )

    def _completed(self, wanted: DesiredState) -> DesiredState:
        attempts, networks = dict(wanted.attempts), dict(wanted.networks)
        for session_id in wanted.unreadable:
            for key, known in self._attempts.get(session_id, {}).items():
                attempts[key] = known
                if (found := wanted.attempts.get(key)) is not None:
                    attempts[key] = pb.Attempt()
                    attempts[key].CopyFrom(known)
                    attempts[key].goal = found.goal
                    attempts[key].stop_grace.CopyFrom(found.stop_grace)
            if session_id in self._networks:
                networks.setdefault(session_id, self._networks[session_id])
        return replace(wanted, attempts=attempts, networks=networks) if wanted.unreadable else wanted

    def _take(self, desired: DesiredState) -> None:
        for key, attempt in desired.attempts.items():
            self._attempts.setdefault(attempt.session_id, {})[key] = attempt
        self._networks.update(desired.networks)
