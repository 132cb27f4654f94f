"""Which of the requested sessions can be made: what they refer to has to be there, and quotas and grants have to allow them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict

from retinue.manager.api.sessions.dependency_links import Links
from retinue.manager.api.sessions.requests import Drafted, draft_all, wrong_number
from retinue.manager.api.sessions.template_rendering import render
from retinue.manager.server import errors
from retinue.manager.server.interceptors import current_principal
from retinue.manager.session import admission_quota, submit
from retinue.manager.session.core.image_registries import denied_image, registry_of
from retinue.manager.session.core.mounts import MountRoot, granted
from retinue.manager.session.core.pending_limit import PendingLimit
from retinue.manager.session.core.spec import MountSpec
from retinue.manager.store import agents, groups, sessions
from retinue.manager.store.database import Transaction
from retinue.manager.v1 import session_pb2


async def accept(
    tx: Transaction,
    drafted: list[Drafted],
    messages: Sequence[session_pb2.SessionSpec],
    pending: PendingLimit,
    *,
    validate_only: bool,
) -> int:
    """Makes what can be made, unless only to be checked, and puts an error in the place of each of the others; returns the first revision."""
    owner = current_principal().name
    links = Links(drafted, messages)
    await links.resolve(tx, owner)
    limited = await _check_references(tx, owner, drafted)
    await _check_images(tx, drafted)
    await _check_mounts(tx, drafted)
    await links.refuse_taken(tx, owner)
    if limited:
        await _check_quotas(tx, drafted)
    await _check_pending(tx, owner, drafted, pending, limited=limited)
    links.refuse_dependents()
    return 0 if validate_only else await _create_all(tx, drafted)


async def with_template(tx: Transaction, message: session_pb2.SessionSpec) -> session_pb2.SessionSpec:
    """The whole request that is made from a template and what is given beside it. Raises ApiError."""
    (made,) = await render(tx, [message])
    if isinstance(made, errors.ApiError):
        raise made
    return made


async def draft_with_templates(tx: Transaction, messages: Sequence[session_pb2.SessionSpec]) -> list[Drafted]:
    """Drafts of many requests, of which some are made from templates. Raises InvalidRequest when there is too much in all."""
    made = await render(tx, messages)
    if violations := wrong_number([item for item in made if not isinstance(item, errors.ApiError)] or messages):
        raise errors.InvalidRequest(violations)
    return await asyncio.to_thread(draft_all, made, current_principal())


async def _check_references(tx: Transaction, owner: str, drafted: list[Drafted]) -> bool:
    """What sessions refer to must be there, and stays until the commit; an error takes the place of those that refer to nothing. Returns
    whether there are quotas to look at.
    """
    specs = [item.session for item in drafted if isinstance(item, submit.Draft)]
    projects, known, limited = await sessions.hold_references(
        tx, owner, {item["project"] for item in specs}, {item["resource_group"] for item in specs}
    )
    for position, item in enumerate(drafted):
        if not isinstance(item, submit.Draft):
            continue
        if item.session["project"] not in projects:
            drafted[position] = errors.ProjectDenied(item.session["project"])
        elif item.session["resource_group"] not in known:
            drafted[position] = errors.InvalidRequest([("spec.resource_group", "is not the name of a resource group")])
    await _check_agents(tx, drafted)
    return limited


async def _check_agents(tx: Transaction, drafted: list[Drafted]) -> None:
    """Agents that are asked for must be in the session's group now; whether they take anything is for the scheduler to say."""
    asking = {
        position: item
        for position, item in enumerate(drafted)
        if isinstance(item, submit.Draft) and item.session["spec"]["agents"]
    }
    if not asking:
        return
    named = {agent for item in asking.values() for agent in item.session["spec"]["agents"]}
    groups = await agents.groups_of(tx, named)
    for position, item in asking.items():
        group = item.session["resource_group"]
        wrong = [
            (f"spec.agents[{number}]", f"{agent} is not an agent of resource group {group}")
            for number, agent in enumerate(item.session["spec"]["agents"])
            if groups.get(agent) != group
        ]
        if wrong:
            drafted[position] = errors.InvalidRequest(wrong)


async def _check_images(tx: Transaction, drafted: list[Drafted]) -> None:
    """An error takes the place of sessions with an image of a registry that their group does not allow."""
    wanted = [
        (position, item) for position, item in enumerate(drafted) if isinstance(item, submit.Draft) and item.images
    ]
    known = (
        await groups.read_image_registries(tx, {item.session["resource_group"] for _, item in wanted}) if wanted else {}
    )
    for position, item in wanted:
        group = item.session["resource_group"]
        if image := denied_image(item.images, known[group]):
            drafted[position] = errors.ImageNotAllowed(image, registry_of(image), group)


async def _check_mounts(tx: Transaction, drafted: list[Drafted]) -> None:
    """Each mount is noted with the root that grants it; an error takes the place of sessions with one that none does."""
    wanted = [
        (position, item) for position, item in enumerate(drafted) if isinstance(item, submit.Draft) and item.mounts
    ]
    roots = await groups.read_mount_roots(tx, {item.session["resource_group"] for _, item in wanted}) if wanted else {}
    for position, item in wanted:
        found = granted(
            item.mounts, map(MountRoot.from_json, roots[item.session["resource_group"]]), item.session["project"]
        )
        if isinstance(found, MountSpec):
            drafted[position] = errors.MountNotAllowed(found.source, writable=found.writable)
        else:
            item.session["spec"]["mounts"] = [asdict(mount) for mount in found]


async def _check_quotas(tx: Transaction, drafted: list[Drafted]) -> None:
    """An error takes the place of those that are over a quota."""
    positions = [position for position, item in enumerate(drafted) if isinstance(item, submit.Draft)]
    found = await admission_quota.violations(tx, [item for item in drafted if isinstance(item, submit.Draft)])
    for position, violations in zip(positions, found, strict=True):
        if violations:
            drafted[position] = errors.QuotaExceeded(violations)


async def _check_pending(
    tx: Transaction, owner: str, drafted: list[Drafted], pending: PendingLimit, *, limited: bool
) -> None:
    """An error takes the place of those that are too many to wait, unless a quota says how many of the owner may."""
    positions = [position for position, item in enumerate(drafted) if isinstance(item, submit.Draft)]
    if pending.spend(owner, len(positions), time.monotonic()):
        return
    if limited and await admission_quota.limits_pending(tx, owner):
        return
    number = await admission_quota.count_pending(tx, owner)
    accepted = min(pending.counted(owner, number, time.monotonic()), len(positions))
    pending.spend(owner, accepted, time.monotonic())
    for position in positions[accepted:]:
        drafted[position] = errors.QuotaExceeded(
            admission_quota.too_many_pending(owner, number + accepted, pending.most)
        )


async def _create_all(tx: Transaction, drafted: list[Drafted]) -> int:
    """Makes what can be made, and puts an error in the place of each of the others; returns the first revision."""
    made, revision = await submit.create_many(tx, [item for item in drafted if isinstance(item, submit.Draft)])
    for position, item in enumerate(drafted):
        if isinstance(item, submit.Draft) and item.session["id"] not in made:
            # With dependencies inside the request names were looked at before: another request was faster.
            drafted[position] = errors.NameTaken("session", item.session["name"])
    return revision
