"""Decides which of the requested sessions are accepted: what they refer to exists, and grants and quotas allow them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.manager.domain.errors import (
    ApiError,
    ImageNotAllowed,
    InvalidRequest,
    MountNotAllowed,
    ProjectDenied,
    QuotaExceeded,
)
from retinue.manager.domain.preconditions import EndpointManaged
from retinue.manager.domain.session.image_references import registry_of
from retinue.manager.domain.session.image_registries import denied_image
from retinue.manager.domain.session.mounts import NotGranted, granted
from retinue.manager.domain.session.runtime_features import (
    features_by_path,
    missing_feature,
    rare_slots,
    runtimes_for,
    unknown_slots,
)
from retinue.manager.domain.session.states import SessionType
from retinue.manager.session import admission_quota, dependency_links
from retinue.manager.session.drafts import Candidates, Draft
from retinue.manager.store.accounts import accounts, ssh_keys
from retinue.manager.store.endpoints import endpoints
from retinue.manager.store.fleet import agents, groups
from retinue.manager.store.placement import quotas
from retinue.manager.store.sessions import admission

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retinue.manager.domain.session.pending_limit import PendingLimit
    from retinue.manager.domain.session.refusals import Refused
    from retinue.manager.store.postgres.database import Query, Transaction

_NAMED_GROUPS = 16
_NAMED_TROUBLES = 2


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
    asked = _Asked.of(candidates) if offered else _Asked()
    has_quotas, absent = await _check_references(tx, owner, candidates, asked)
    await _check_agents(tx, candidates)
    if offered:
        await _check_slots(tx, candidates, absent.slots)
        await _check_runtimes(tx, candidates, asked, absent)
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


@dataclass(frozen=True, slots=True)
class _Asked:
    """What sessions ask of agents, and not every agent has: groups with slots, and groups with FEATURES, as one bit."""

    slots: frozenset[tuple[str, str]] = frozenset()
    features: frozenset[tuple[str, int]] = frozenset()

    @classmethod
    def of(cls, candidates: Candidates) -> _Asked:
        # By identity of the spec: most of very many ask for the same.
        asking = {
            (draft.session.resource_group, id(draft.spec)): draft.spec for draft in candidates.drafts.values()
        }.items()
        return cls(
            frozenset((group, slot) for (group, _), spec in asking for slot in rare_slots(spec)),
            frozenset(
                (group, bit)
                for (group, _), spec in asking
                for bits in features_by_path(spec).values()
                for bit in _bits(bits)
            ),
        )


async def _check_references(tx: Transaction, owner: str, candidates: Candidates, asked: _Asked) -> tuple[bool, _Asked]:
    """Refuses sessions of projects and resource groups that do not exist, and of types, isolations and graces that
    their group does not take; locks what the others refer to, gives their kernels the default isolation of their group.

    Returns whether there are any quotas, and what of `asked` no agent has ever had: in the same round trip.
    """
    drafts = candidates.drafts
    references = admission.references_query(
        owner,
        {draft.session.project for draft in drafts.values()},
        {draft.session.resource_group for draft in drafts.values()},
    )
    slots, features = sorted(asked.slots), sorted(asked.features)
    unknown, missing = agents.unknown_slots_query(slots), _missing_query(features)
    queries = [unknown] if slots else []
    queries += [missing] if features else []
    answers = await tx.pipeline(references, *queries)
    projects, policies, has_quotas = answers.of(references)
    absent = _Asked(
        frozenset(slots[position] for position in answers.of(unknown)) if slots else frozenset(),
        frozenset(features[position] for position in answers.of(missing)) if features else frozenset(),
    )
    reasons: dict[int, ApiError] = {}
    for n, draft in drafts.items():
        if draft.session.project not in projects:
            reasons[n] = ProjectDenied(draft.session.project)
        elif (policy := policies.get(group := draft.session.resource_group)) is None:
            reasons[n] = InvalidRequest((("spec.resource_group", await _no_group(tx, group)),))
        elif policy.types and draft.spec.type not in policy.types:
            words = f"resource group {group} takes {' and '.join(policy.types).lower()} sessions only"
            reasons[n] = InvalidRequest((("spec.type", words),))
        elif draft.spec.grace_seconds > policy.max_grace_seconds:
            words = f"must be at most {policy.max_grace_seconds} s in resource group {group}"
            reasons[n] = InvalidRequest((("spec.termination_grace", words),))
        elif wrong := policy.isolation.violations(draft.spec, group):
            reasons[n] = InvalidRequest(tuple(wrong))
        elif (isolations := policy.isolation.resolve(draft.spec)) != draft.spec.isolations:
            candidates.drafts[n] = draft.with_isolations(isolations)
        if n not in reasons and policies[draft.session.resource_group].pull_policy:
            policy = policies[draft.session.resource_group]
            candidates.drafts[n] = candidates.drafts[n].with_pull_policy(policy.pull_policy)
    candidates.refuse(reasons)
    return has_quotas, absent


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
    reasons: dict[int, ApiError] = {}
    for n, draft in asking.items():
        group = draft.session.resource_group
        wrong = tuple(
            (f"spec.agents[{number}]", f"{agent} is not an agent of resource group {group}")
            for number, agent in enumerate(draft.spec.agents)
            if group_of.get(agent) != group
        )
        if wrong:
            reasons[n] = InvalidRequest(wrong)
    candidates.refuse(reasons)


async def _check_slots(tx: Transaction, candidates: Candidates, absent: frozenset[tuple[str, str]]) -> None:
    """Refuses sessions with slots that no agent has ever had: a mistyped name would wait for ever."""
    if not absent:
        return
    names = await agents.slot_names(tx)
    reasons: dict[int, ApiError] = {}
    for n, draft in candidates.drafts.items():
        group = draft.session.resource_group
        slots = frozenset(slot for name, slot in absent if name == group)
        if wrong := unknown_slots(draft.spec, slots, names):
            reasons[n] = InvalidRequest(tuple(wrong))
    candidates.refuse(reasons)


async def _check_runtimes(tx: Transaction, candidates: Candidates, asked: _Asked, absent: _Asked) -> None:
    """Refuses sessions with kernels of a kind that no agent of their group has ever run."""
    # Kernels may have another isolation by now: what they asked for, or the default of their group.
    needed = _Asked.of(candidates).features
    missing = set(absent.features & needed)
    if changed := sorted(needed - asked.features):
        query = _missing_query(changed)
        missing.update(changed[position] for position in (await tx.pipeline(query)).of(query))
    if not missing:
        return
    words = {(group, bit): await _no_runtime(tx, group, bit) for group, bit in missing}
    reasons: dict[int, ApiError] = {}
    for n, draft in candidates.drafts.items():
        group = draft.session.resource_group
        wrong = [
            (path, words[group, bit])
            for path, bits in features_by_path(draft.spec).items()
            for bit in _bits(bits)
            if (group, bit) in words
        ]
        if wrong:
            reasons[n] = InvalidRequest(tuple(wrong))
    candidates.refuse(reasons)


def _missing_query(features: Sequence[tuple[str, int]]) -> Query[list[int]]:
    return agents.missing_runtimes_query([(group, runtimes_for(bit)) for group, bit in features])


async def _no_runtime(tx: Transaction, group: str, bit: int) -> str:
    runtimes = runtimes_for(bit)
    others = await agents.groups_with(tx, runtimes, _NAMED_GROUPS)
    return missing_feature(bit, group, others, await agents.runtime_troubles(tx, group, runtimes, _NAMED_TROUBLES))


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
    asking = {n: (draft, images) for n, draft in candidates.drafts.items() if (images := draft.spec.images)}
    if not asking:
        return
    allowed = await groups.read_image_registries(tx, {draft.session.resource_group for draft, _ in asking.values()})
    reasons: dict[int, ApiError] = {}
    for n, (draft, images) in asking.items():
        group = draft.session.resource_group
        if image := denied_image(images, allowed[group]):
            reasons[n] = ImageNotAllowed(image, registry_of(image), group)
    candidates.refuse(reasons)


async def _check_mounts(tx: Transaction, candidates: Candidates) -> None:
    """Records with each mount the root that grants it, and whom its files belong to; refuses sessions with one that no
    root grants.
    """
    asking = {n: draft for n, draft in candidates.drafts.items() if draft.spec.mounts}
    if not asking:
        return
    roots = await groups.read_mount_roots(tx, {draft.session.resource_group for draft in asking.values()})
    owners = {draft.session.owner for draft in asking.values()}
    numbers = {owner: await accounts.file_owner(tx, owner) for owner in owners}
    reasons: dict[int, ApiError] = {}
    for n, draft in asking.items():
        of_group, owner = roots[draft.session.resource_group], draft.session.owner
        found = granted(draft.spec.mounts, of_group, draft.session.project, owner, numbers[owner])
        if isinstance(found, NotGranted):
            mount, whose = found.mount, owner if found.without_owner else ""
            reasons[n] = MountNotAllowed(mount.source, writable=mount.writable, without_owner=whose)
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
