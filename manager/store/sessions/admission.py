"""What new sessions refer to, locked until they are inserted: projects, and groups with what they take."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from sqlalchemy import Text, func, select

from retinue.manager.domain.session.isolation_policy import IsolationPolicy
from retinue.manager.store.postgres.constructs import EMPTY_OBJECT, Construct, one_of, parameter, table_of
from retinue.manager.store.postgres.database import Query, Transaction
from retinue.manager.store.tables import Project, Quota, ResourceGroup, UserAccount

if TYPE_CHECKING:
    from retinue.manager.store.postgres.recordset import Row


_group, _project, _quota, _user = table_of(ResourceGroup), table_of(Project), table_of(Quota), table_of(UserAccount)


@dataclass(frozen=True, slots=True)
class AdmissionPolicy:
    """The sessions that a resource group takes: their types, none for all, the isolations of their kernels, and their
    longest grace in seconds; and the pull policy of kernels that ask for none, empty for none.
    """

    types: Sequence[str]
    isolation: IsolationPolicy
    max_grace_seconds: int
    pull_policy: str


References: TypeAlias = tuple[set[str], dict[str, AdmissionPolicy], bool]


"""Projects and groups that exist, none of the projects without the owner, the groups with what they take; and whether
there are any quotas.
"""


async def lock_references(
    tx: Transaction, owner: str, projects: Collection[str], groups: Collection[str]
) -> References:
    """Locks projects and groups until the commit, so that they cannot be deleted."""
    query = references_query(owner, projects, groups)
    return (await tx.pipeline(query)).of(query)


def _making_references() -> Construct:
    """Projects, groups and the owner, locked; and whether there are any quotas."""
    owner = select(_user.c.name).where(_user.c.name == parameter("owner", Text()))
    projects = select(_project.c.name).where(_project.c.name == one_of("projects")).order_by(_project.c.name)
    taking = [_group.c[name] for name in ("session_types", "isolations", "default_isolation", "max_grace_seconds")]
    groups = (
        select(_group.c.name, *taking, _group.c.default_pull_policy)
        .where(_group.c.name == one_of("groups"))
        .order_by(_group.c.name)
    )
    u, p, g = (
        each.with_for_update(read=True, key_share=True).cte(name)
        for each, name in ((owner, "u"), (projects, "p"), (groups, "g"))
    )
    of_owner = select(p.c.name).where(select(u.c.name).exists())
    policies = select(func.coalesce(func.jsonb_object_agg(g.c.name, func.to_jsonb(g.table_valued())), EMPTY_OBJECT))
    return Construct(
        select(
            func.array(of_owner.scalar_subquery()).label("projects"),
            policies.scalar_subquery().label("groups"),
            select(_quota.c.name).exists().label("quotas"),
        )
    )


_REFERENCES = _making_references()


def references_query(owner: str, projects: Collection[str], groups: Collection[str]) -> Query[References]:
    """Locks projects and groups until the commit, so that they cannot be deleted, and reads them."""
    return Query(
        _REFERENCES,
        {"owner": owner, "projects": list(projects), "groups": list(groups)},
        read=_references,
    )


def _references(rows: Sequence[Row]) -> References:
    found = rows[0]
    policies = {
        name: AdmissionPolicy(
            group["session_types"],
            IsolationPolicy(group["isolations"], group["default_isolation"]),
            group["max_grace_seconds"],
            group["default_pull_policy"],
        )
        for name, group in found["groups"].items()
    }
    return set(found["projects"]), policies, found["quotas"]
