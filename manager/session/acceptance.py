"""Decides which of the requested sessions are accepted: what they refer to exists, and grants and quotas allow them."""

from __future__ import annotations

import time
from collections.abc import Sequence

from retinue.manager.session import admission_quota, dependency_links
from retinue.manager.session.core.image_registries import denied_image, registry_of
from retinue.manager.session.core.mounts import granted
from retinue.manager.session.core.pending_limit import PendingLimit
from retinue.manager.session.core.refusals import (
    EndpointManaged,
    ImageNotAllowed,
    InvalidFields,
    MountNotAllowed,
    ProjectDenied,
    QuotaExceeded,
    Reason,
    Refused,
)
from retinue.manager.session.core.runtime_features import (
    features_by_path,
    missing_feature,
    rare_slots,
    runtimes_for,
    unknown_slots,
)
from retinue.manager.session.core.spec import MountSpec
from retinue.manager.session.core.states import SessionType
from retinue.manager.session.drafts import Candidates, Draft
from retinue.manager.store import agents, endpoints, groups, quotas, sessions, ssh_keys
from retinue.manager.store.database import Transaction

_NAMED_GROUPS = 16


async def decide(
    tx: Transaction,
    owner: str,
    prepared: Sequence[Draft | Refused],
    pending: PendingLimit,
    *,
    replicas: bool = False,
    offered: bool = True,
) -> Candidates:
    """Returns the drafts that are accepted, with their dependencies and mounts resolved,
    and the reasons of those that are refused.

    What they refer to stays until the commit. Only `replicas` may name an endpoint that there is. With `offered`,
    sessions are refused that ask for what no agent of theirs has ever had.
    """
    candidates = Candidates(prepared)
    links = await dependency_links.link(tx, owner, candidates)
    has_quotas = await _check_references(tx, owner, candidates)
    await _check_agents(tx, candidates)
    if offered:
        await _check_slots(tx, candidates)
        await _check_runtimes(tx, candidates)
    if not replicas:
        await _check_endpoints(tx, candidates)
    await _check_images(tx, candidates)
    await _check_mounts(tx, candidates)
    await links.refuse_taken(tx, owner, candidates)
    if has_quotas:
        await _check_quotas(tx, candidates)
    await _check_system_sessions(tx, owner, candidates)
    await _check_pending(tx, owner, candidates, pending, has_quotas=has_quotas)
    links.refuse_dependents(candidates)
    return candidates


async def _check_references(tx: Transaction, owner: str, candidates: Candidates) -> bool:
    """Refuses sessions of projects and resource groups that do not exist, and of types and isolations that their group
    does not take; locks what the others refer to, gives their kernels the default isolation of their group,
    and returns whether there are any quotas.
    """
    drafts = candidates.drafts
    projects, policies, has_quotas = await sessions.lock_references(
        tx,
        owner,
        {draft.session.project for draft in drafts.values()},
        {draft.session.resource_group for draft in drafts.values()},
    )
    reasons: dict[int, Reason] = {}
    for n, draft in drafts.items():
        if draft.session.project not in projects:
            reasons[n] = ProjectDenied(draft.session.project)
        elif (policy := policies.get(group := draft.session.resource_group)) is None:
            reasons[n] = InvalidFields((("spec.resource_group", await _no_group(tx, group)),))
        elif policy.types and draft.spec.type not in policy.types:
            words = f"resource group {group} takes {' and '.join(policy.types).lower()} sessions only"
            reasons[n] = InvalidFields((("spec.type", words),))
        elif wrong := policy.isolation.violations(draft.spec, group):
            reasons[n] = InvalidFields(tuple(wrong))
        elif (isolations := policy.isolation.resolve(draft.spec)) != draft.spec.isolations:
            candidates.drafts[n] = draft.with_isolations(isolations)
    candidates.refuse(reasons)
    return has_quotas


async def _no_group(tx: Transaction, name: str) -> str:
    names = await groups.first_names(tx, _NAMED_GROUPS + 1)
    more = ", …" if len(names) > _NAMED_GROUPS else ""
    verb = "is" if len(names) == 1 else "are"
    return f"{name} is not a resource group; there {verb} {', '.join(names[:_NAMED_GROUPS])}{more}"


async def _check_agents(tx: Transaction, candidates: Candidates) -> None:
    """Refuses sessions that ask for agents of other groups; whether an agent is schedulable
    is for the scheduler to say.
    """
    asking = {n: draft for n, draft in candidates.drafts.items() if draft.spec.agents}
    if not asking:
        return
    group_of = await agents.groups_of(tx, {agent for draft in asking.values() for agent in draft.spec.agents})
    reasons: dict[int, Reason] = {}
    for n, draft in asking.items():
        group = draft.session.resource_group
        wrong = tuple(
            (f"spec.agents[{number}]", f"{agent} is not an agent of resource group {group}")
            for number, agent in enumerate(draft.spec.agents)
            if group_of.get(agent) != group
        )
        if wrong:
            reasons[n] = InvalidFields(wrong)
    candidates.refuse(reasons)


async def _check_slots(tx: Transaction, candidates: Candidates) -> None:
    """Refuses sessions with slots that no agent has ever had: a mistyped name would wait for ever."""
    asking = {n: draft for n, draft in candidates.drafts.items() if rare_slots(draft.spec)}
    if not asking:
        return
    known, told = await agents.read_slots(tx, {draft.session.resource_group for draft in asking.values()})
    candidates.refuse(
        {
            n: InvalidFields(tuple(wrong))
            for n, draft in asking.items()
            # Nothing is known of what a group will have whose agents are still to come.
            if draft.session.resource_group in told and (wrong := unknown_slots(draft.spec, known))
        }
    )


async def _check_runtimes(tx: Transaction, candidates: Candidates) -> None:
    """Refuses sessions with kernels of a kind that no agent of their group has ever run."""
    # By identity of the spec: most of very many ask for the same.
    paths_of: dict[int, dict[str, int]] = {}
    needs: dict[int, tuple[str, dict[str, int]]] = {}
    for n, draft in candidates.drafts.items():
        if (paths := paths_of.get(id(draft.spec))) is None:
            paths = paths_of[id(draft.spec)] = features_by_path(draft.spec)
        needs[n] = (draft.session.resource_group, paths)
    if not needs:
        return
    asked = sorted({(group, bit) for group, paths in needs.values() for bits in paths.values() for bit in _bits(bits)})
    missing = {
        asked[position]
        for position in await agents.read_missing(tx, [(group, runtimes_for(bit)) for group, bit in asked])
    }
    words = {
        (group, bit): missing_feature(bit, group, await agents.groups_with(tx, runtimes_for(bit), _NAMED_GROUPS))
        for group, bit in missing
    }
    reasons: dict[int, Reason] = {}
    for n, (group, paths) in needs.items() if words else ():
        wrong = [
            (path, words[group, bit]) for path, bits in paths.items() for bit in _bits(bits) if (group, bit) in words
        ]
        if wrong:
            reasons[n] = InvalidFields(tuple(wrong))
    candidates.refuse(reasons)


def _bits(mask: int) -> list[int]:
    return [1 << position for position in range(mask.bit_length()) if mask >> position & 1]


async def _check_endpoints(tx: Transaction, candidates: Candidates) -> None:
    """Refuses sessions that name an endpoint: its controller counts those as replicas of its own."""
    asking = {n: draft.session for n, draft in candidates.drafts.items() if draft.session.endpoint}
    if not asking:
        return
    taken = await endpoints.names_taken(tx, {(session.project, session.endpoint) for session in asking.values()})
    candidates.refuse(
        {
            n: EndpointManaged(session.endpoint)
            for n, session in asking.items()
            if (session.project, session.endpoint) in taken
        }
    )


async def _check_images(tx: Transaction, candidates: Candidates) -> None:
    """Refuses sessions with an image of a registry that their group does not allow."""
    asking = {n: (draft, images) for n, draft in candidates.drafts.items() if (images := draft.images)}
    if not asking:
        return
    allowed = await groups.read_image_registries(tx, {draft.session.resource_group for draft, _ in asking.values()})
    reasons: dict[int, Reason] = {}
    for n, (draft, images) in asking.items():
        group = draft.session.resource_group
        if image := denied_image(images, allowed[group]):
            reasons[n] = ImageNotAllowed(image, registry_of(image), group)
    candidates.refuse(reasons)


async def _check_mounts(tx: Transaction, candidates: Candidates) -> None:
    """Records with each mount the root that grants it, and refuses sessions with one that no root grants."""
    asking = {n: draft for n, draft in candidates.drafts.items() if draft.spec.mounts}
    if not asking:
        return
    roots = await groups.read_mount_roots(tx, {draft.session.resource_group for draft in asking.values()})
    reasons: dict[int, Reason] = {}
    for n, draft in asking.items():
        of_group = roots[draft.session.resource_group]
        found = granted(draft.spec.mounts, of_group, draft.session.project, draft.session.owner)
        if isinstance(found, MountSpec):
            reasons[n] = MountNotAllowed(found.source, found.writable)
        else:
            candidates.drafts[n] = draft.with_mounts(found)
    candidates.refuse(reasons)


async def _check_quotas(tx: Transaction, candidates: Candidates) -> None:
    """Refuses sessions that exceed a quota."""
    found = await admission_quota.violations(tx, list(candidates.drafts.values()))
    candidates.refuse(
        {
            n: QuotaExceeded(tuple(violations))
            for n, violations in zip(candidates.drafts, found, strict=True)
            if violations
        }
    )


async def _check_system_sessions(tx: Transaction, owner: str, candidates: Candidates) -> None:
    """Refuses system sessions beyond the number that a user may have."""
    asking = [n for n, draft in candidates.drafts.items() if draft.spec.type is SessionType.SYSTEM]
    if not asking:
        return
    maximum = await quotas.max_system_sessions(tx, owner)
    number = await ssh_keys.lock_system_sessions(tx, owner)
    candidates.refuse(admission_quota.too_many_system(owner, asking, number, maximum))


async def _check_pending(
    tx: Transaction, owner: str, candidates: Candidates, pending: PendingLimit, *, has_quotas: bool
) -> None:
    """Refuses sessions beyond the limit on pending ones, unless a quota of the owner has one;
    system sessions have a number of their own.
    """
    positions = [n for n, draft in candidates.drafts.items() if draft.spec.type is not SessionType.SYSTEM]
    if pending.spend(owner, len(positions), time.monotonic()):
        return
    if has_quotas and await admission_quota.limits_pending(tx, owner):
        return
    number = await admission_quota.count_pending(tx, owner)
    accepted = min(pending.counted(owner, number, time.monotonic()), len(positions))
    pending.spend(owner, accepted, time.monotonic())
    too_many = QuotaExceeded(tuple(admission_quota.too_many_pending(owner, number + accepted, pending.maximum)))
    candidates.refuse(dict.fromkeys(positions[accepted:], too_many))
