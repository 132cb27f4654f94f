"""Drafts: requests as they are admitted, with the records of the sessions that they become. Pure computation."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from retinue.manager.domain.errors import ApiError, InvalidRequest, ProjectDenied
from retinue.manager.domain.preconditions import FeatureUnavailable
from retinue.manager.domain.session.admission import admit, is_other_system, wrong_name
from retinue.manager.domain.session.dependency_graph import DependencyKind
from retinue.manager.domain.session.features import FEATURES
from retinue.manager.domain.session.images import PullPolicy
from retinue.manager.domain.session.new_session import NewKernel, NewSession
from retinue.manager.domain.session.refusals import Refused, no_project
from retinue.manager.domain.session.spec import MountSpec, SessionSpec, SftpSpec, kernel_id, kernel_plans
from retinue.rpc.core.amounts import parse_amount

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from retinue.manager.domain.session.isolation import Isolation
    from retinue.manager.identity.principal import Principal


@dataclass(frozen=True, slots=True)
class Request:
    """A request for a session by a name. Requests that differ in nothing but their names may share a `spec`,
    with any of the names.
    """

    name: str
    spec: SessionSpec


@dataclass(frozen=True, slots=True)
class Parent:
    """A session that another one depends on; `settled` when an end of the kind has come already. An `implied` one was
    not named, but shares a label.
    """

    id: uuid.UUID
    settled: bool
    kind: DependencyKind = DependencyKind.SUCCESS
    implied: bool = False


@dataclass(frozen=True, slots=True)
class Draft:
    """A session to be created, with its kernels. Its `spec` may be shared by others,
    so the name is that of `session`.
    """

    session: NewSession
    kernels: tuple[NewKernel, ...]
    spec: SessionSpec
    parents: tuple[Parent, ...] = ()

    def with_isolations(self, isolations: Mapping[str, Isolation]) -> Draft:
        """Returns the draft with the isolations of its kernels by role, but for those that its images imply."""
        return replace(self, spec=replace(self.spec, isolations=isolations))

    def with_pull_policy(self, default: str) -> Draft:
        """Returns the draft with the pull policy of its group, if it has an image and asks for none."""
        kernel = self.spec.kernel
        images = any(self.spec.of_role(role).image for role, _ in self.spec.layout)
        if kernel.pull_policy is not None or not images:
            return self
        return replace(self, spec=replace(self.spec, kernel=replace(kernel, pull_policy=PullPolicy(default))))

    def with_mounts(self, mounts: Sequence[MountSpec]) -> Draft:
        """Returns the draft with its mounts as they are granted."""
        return replace(self, spec=replace(self.spec, mounts=tuple(mounts)))

    def with_parents(self, parents: Sequence[Parent]) -> Draft:
        """Returns the draft with the sessions that it depends on, by their ids."""
        ids = {kind: tuple(str(parent.id) for parent in parents if parent.kind is kind) for kind in DependencyKind}
        spec = replace(
            self.spec,
            depends_on=ids[DependencyKind.SUCCESS],
            runs_after=ids[DependencyKind.END],
            runs_after_failure=ids[DependencyKind.FAILURE],
        )
        return replace(self, spec=spec, parents=tuple(parents))


def prepare(requests: Sequence[Request | Refused], owner: Principal) -> list[Draft | Refused]:
    """Returns a draft for each request, or why there is none; what is refused already stays so.
    Takes up to a second.
    """
    drafts: list[Draft | Refused] = []
    # By identity of the spec: most of very many differ in nothing but their names.
    alike: dict[int, Draft] = {}
    for request in requests:
        if isinstance(request, Refused):
            drafts.append(request)
            continue
        if (known := alike.get(id(request.spec))) is not None and not wrong_name(request.name):
            drafts.append(_draft_alike(known, uuid.uuid4(), request.name))
            continue
        admitted = _admitted(replace(request.spec, name=request.name), owner)
        if isinstance(admitted, Refused):
            drafts.append(admitted)
            continue
        made = draft(uuid.uuid4(), owner.name, admitted)
        drafts.append(made)
        if not admitted.has_dependencies:
            alike[id(request.spec)] = made
    return drafts


def _admitted(spec: SessionSpec, owner: Principal) -> SessionSpec | Refused:
    if not spec.project:
        violation = ("spec.project", no_project(owner.name, owner.projects))
        return Refused(spec.name, InvalidRequest((violation,)))
    if spec.project not in owner.projects:
        return Refused(spec.name, ProjectDenied(spec.project, owner.projects))
    if is_other_system(spec) and not owner.is_admin:
        # Those are for administrators; for all others it is what no SFTP server has.
        spec = replace(spec, sftp=SftpSpec())
    admitted, violations = admit(spec)
    if violations:
        return Refused(spec.name, InvalidRequest(tuple(violations)))
    for feature in sorted(admitted.features() - FEATURES[admitted.type]):
        return Refused(spec.name, FeatureUnavailable.of_type(admitted.type, feature))
    return admitted


def draft(session_id: uuid.UUID, owner: str, spec: SessionSpec, parents: Sequence[Parent] = ()) -> Draft:
    """Returns the draft of an admitted request; amounts of its kernels are in smallest units."""
    session = NewSession(
        session_id,
        spec.name,
        owner,
        spec.project,
        spec.resource_group,
        spec.type,
        "SINGLE_NODE" if spec.single_node else "MULTI_NODE",
        spec.cluster_size,
        spec.priority,
        spec.endpoint,
    )
    amounts = {
        role: {slot: parse_amount(slot, text) for slot, text in spec.of_role(role).slots.items()}
        for role, _ in spec.layout
    }
    kernels = tuple(
        NewKernel(plan.id, session_id, plan.role, plan.index, plan.local_rank, plan.hostname, amounts[plan.role])
        for plan in kernel_plans(session_id, spec.layout)
    )
    return Draft(session, kernels, spec, tuple(parents))


def _draft_alike(other: Draft, session_id: uuid.UUID, name: str) -> Draft:
    """Returns the draft of a request that differs from another one, which depends on nothing,
    in nothing but its name.
    """
    kernels = tuple(
        NewKernel(
            kernel_id(session_id, kernel.local_rank, kernel.hostname),
            session_id,
            kernel.role,
            kernel.role_index,
            kernel.local_rank,
            kernel.hostname,
            kernel.slots,
        )
        for kernel in other.kernels
    )
    return Draft(other.session.renamed(session_id, name), kernels, other.spec)


class Candidates:
    """The requests of one call while it is decided which are accepted: drafts and reasons to refuse, by position."""

    def __init__(self, prepared: Sequence[Draft | Refused]) -> None:
        self.drafts = {n: item for n, item in enumerate(prepared) if isinstance(item, Draft)}
        self.refused = {n: item for n, item in enumerate(prepared) if isinstance(item, Refused)}

    def refuse(self, reasons: Mapping[int, ApiError]) -> None:
        """Refuses drafts by their positions."""
        for n, reason in reasons.items():
            self.refused[n] = Refused(self.drafts.pop(n).session.name, reason)
