"""Projects, users, memberships and tokens."""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy
from sqlalchemy import Column, ColumnElement, LargeBinary, Uuid, cast, func, null, or_
from sqlalchemy.dialects.postgresql import insert
from sqlmodel import col, delete, select, tuple_, update

from retinue.manager.domain.session.mounts import FileOwner
from retinue.manager.store.placement import quotas
from retinue.manager.store.postgres.constructs import one_of, table_of, words
from retinue.manager.store.postgres.recordset import record_of
from retinue.manager.store.tables import Membership, Project, RetiredName, Session, Token, UserAccount

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from sqlmodel.ext.asyncio.session import AsyncSession

_ENDED = words("TERMINATED", "CANCELLED")
_membership, _token, _user = table_of(Membership), table_of(Token), table_of(UserAccount)


@dataclass(frozen=True, slots=True)
class Bearer:
    """Whom a token stands for, and whether it is still good."""

    token_id: uuid.UUID
    hash: bytes
    user: str
    role: str
    memberships: tuple[tuple[str, str], ...]
    expire_time: dt.datetime | None
    revoked: bool


@dataclass(frozen=True, slots=True)
class ProjectRecord:
    """A project."""

    name: str
    create_time: dt.datetime


@dataclass(frozen=True, slots=True)
class UserRecord:
    """A user; `role` is USER or ADMIN."""

    name: str
    role: str
    create_time: dt.datetime
    file_uid: int | None
    file_gid: int | None

    @property
    def file_owner(self) -> FileOwner | None:
        """Returns whom the user's files belong to on the nodes."""
        if self.file_uid is None or self.file_gid is None:
            return None
        return FileOwner(self.file_uid, self.file_gid)


@dataclass(frozen=True, slots=True)
class MembershipRecord:
    """The role of a user in a project: MEMBER or ADMIN."""

    project: str
    role: str


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """A token without its secret; `parent_id` is the token that it was made with."""

    id: uuid.UUID
    user_name: str
    description: str
    parent_id: uuid.UUID | None
    create_time: dt.datetime
    expire_time: dt.datetime | None
    revoke_time: dt.datetime | None


async def create_project(tx: AsyncSession, name: str) -> ProjectRecord | None:
    """A new project; None when the name is taken."""
    made = await tx.exec(insert(Project).values(name=name).on_conflict_do_nothing().returning(col(Project.name)))
    return await get_project(tx, name) if made.first() is not None else None


async def get_project(tx: AsyncSession, name: str, *, lock: bool = False) -> ProjectRecord | None:
    """A project by name; with `lock`, held until the commit."""
    found = await tx.get(Project, name, with_for_update=lock or None)
    return None if found is None else record_of(ProjectRecord, found)


async def list_projects(
    tx: AsyncSession, *, after: str, limit: int, among: Collection[str] | None
) -> list[ProjectRecord]:
    """Projects in the order of their names; `among` keeps those named in it."""
    query = select(Project).where(col(Project.name) > after).order_by(col(Project.name)).limit(limit)
    if among is not None:
        query = query.where(col(Project.name).in_(among))
    return [record_of(ProjectRecord, found) for found in await tx.exec(query)]


async def project_has_live_sessions(tx: AsyncSession, name: str) -> bool:
    """Returns whether anything is accounted to a project now."""
    live = select(Session.id).where(Session.project == name, col(Session.state).not_in(_ENDED)).limit(1)
    return (await tx.exec(live)).first() is not None


async def is_retired(tx: AsyncSession, kind: str, name: str) -> bool:
    """Returns whether a name was that of a user or a project (kinds as those of quotas) that was deleted.

    To be asked after the name was taken: only then can no other transaction delete it at the same time.
    """
    return await tx.get(RetiredName, (kind, name)) is not None


async def delete_project(tx: AsyncSession, name: str) -> None:
    """Removes a project with its memberships and its quota; its name is not used again."""
    tx.add(RetiredName(kind=quotas.PROJECT, name=name))
    await quotas.remove(tx, quotas.PROJECT, name)
    await tx.exec(delete(Project).where(col(Project.name) == name))


async def create_user(tx: AsyncSession, name: str, role: str, memberships: Mapping[str, str]) -> UserRecord | None:
    """A new user with a role (USER or ADMIN) and roles in projects (MEMBER or ADMIN); None when the name is taken.

    The projects must exist.
    """
    made = await tx.exec(
        insert(UserAccount).values(name=name, role=role).on_conflict_do_nothing().returning(col(UserAccount.name))
    )
    if made.first() is None:
        return None
    for project, project_role in memberships.items():
        tx.add(Membership(user_name=name, project=project, role=project_role))
    await tx.flush()
    return await get_user(tx, name)


async def set_file_owner(tx: AsyncSession, name: str, owner: FileOwner | None) -> None:
    """Sets whom the files of a user who exists belong to on the nodes."""
    numbers = {"file_uid": None, "file_gid": None} if owner is None else {"file_uid": owner.uid, "file_gid": owner.gid}
    await tx.exec(update(UserAccount).where(col(UserAccount.name) == name).values(**numbers))


async def set_role(tx: AsyncSession, name: str, role: str) -> bool:
    """Gives a user who exists a role: USER or ADMIN. Returns whether an administrator is left: roles are set one after
    the other, so that two who take the role from each other do not both succeed.
    """
    admins = select(UserAccount.name).where(col(UserAccount.role) == "ADMIN")
    await tx.exec(admins.order_by(col(UserAccount.name)).with_for_update())
    await tx.exec(update(UserAccount).where(col(UserAccount.name) == name).values(role=role))
    return (await tx.exec(admins.limit(1))).first() is not None


async def file_owner(tx: AsyncSession, name: str) -> FileOwner | None:
    """Returns whom the files of a user belong to on the nodes; None also when there is no such user."""
    user = await get_user(tx, name)
    return None if user is None else user.file_owner


async def get_user(tx: AsyncSession, name: str, *, lock: bool = False) -> UserRecord | None:
    """A user by name; with `lock`, held until the commit."""
    found = await tx.get(UserAccount, name, with_for_update=lock or None, populate_existing=True)
    return None if found is None else record_of(UserRecord, found)


async def list_users(tx: AsyncSession, *, after: str, limit: int) -> list[UserRecord]:
    """Users in the order of their names."""
    query = select(UserAccount).where(col(UserAccount.name) > after).order_by(col(UserAccount.name)).limit(limit)
    return [record_of(UserRecord, found) for found in await tx.exec(query)]


async def memberships_of(tx: AsyncSession, users: Collection[str]) -> dict[str, list[MembershipRecord]]:
    """Memberships by user, in the order of the projects' names."""
    query = select(Membership).where(col(Membership.user_name).in_(users)).order_by(col(Membership.project))
    found: dict[str, list[MembershipRecord]] = {user: [] for user in users}
    for membership in await tx.exec(query):
        found[membership.user_name].append(record_of(MembershipRecord, membership))
    return found


async def set_membership(tx: AsyncSession, user: str, project: str, role: str) -> None:
    """Gives a user a role in a project: MEMBER or ADMIN. Both must exist."""
    given = insert(Membership).values(user_name=user, project=project, role=role)
    await tx.exec(given.on_conflict_do_update(index_elements=["user_name", "project"], set_={"role": role}))


async def remove_membership(tx: AsyncSession, user: str, project: str) -> None:
    """Removes a user from a project, if the user is a member."""
    await tx.exec(delete(Membership).where(col(Membership.user_name) == user, col(Membership.project) == project))


async def user_has_live_sessions(tx: AsyncSession, name: str) -> bool:
    """Returns whether a user owns anything that has not terminated."""
    live = select(Session.id).where(Session.owner == name, col(Session.state).not_in(_ENDED)).limit(1)
    return (await tx.exec(live)).first() is not None


async def delete_user(tx: AsyncSession, name: str) -> None:
    """Removes a user with tokens, memberships and quota; the name is not used again."""
    tx.add(RetiredName(kind=quotas.USER, name=name))
    await quotas.remove(tx, quotas.USER, name)
    await tx.exec(delete(UserAccount).where(col(UserAccount.name) == name))


async def create_token(
    tx: AsyncSession,
    user: str,
    secret_hash: bytes,
    *,
    description: str,
    ttl: dt.timedelta | None,
    parent_id: uuid.UUID | None = None,
) -> TokenRecord:
    """A new token of a user who exists; `ttl` None means that it does not end by itself. With a parent, a token of the
    same user, it ends no later than that.
    """
    token_id = uuid.uuid4()
    of_parent = sqlalchemy.select(_token.c.expire_time).where(_token.c.id == parent_id).scalar_subquery()
    await tx.execute(
        insert(Token).values(
            id=token_id,
            hash=secret_hash,
            user_name=user,
            description=description,
            parent_id=parent_id,
            # NULL, of a token that does not end by itself, counts as later than any other.
            expire_time=func.least(null() if ttl is None else func.now() + ttl, of_parent),
        )
    )
    return record_of(TokenRecord, await tx.get_one(Token, token_id))


async def get_token(tx: AsyncSession, token_id: uuid.UUID) -> TokenRecord | None:
    """A token by id."""
    found = await tx.get(Token, token_id, populate_existing=True)
    return None if found is None else record_of(TokenRecord, found)


async def list_tokens(
    tx: AsyncSession, user: str, *, after: tuple[dt.datetime, uuid.UUID] | None, limit: int
) -> list[TokenRecord]:
    """A user's tokens, newest first; `after` is the last one of the page before."""
    query = select(Token).where(col(Token.user_name) == user)
    if after is not None:
        query = query.where(tuple_(col(Token.create_time), col(Token.id)) < after)
    query = query.order_by(col(Token.create_time).desc(), col(Token.id).desc()).limit(limit)
    return [record_of(TokenRecord, found) for found in await tx.exec(query)]


async def count_live_tokens(tx: AsyncSession, user: str) -> int:
    """Returns how many tokens of a user are neither revoked nor expired."""
    good = or_(_token.c.expire_time.is_(None), _token.c.expire_time > func.now())
    query = sqlalchemy.select(func.count()).where(_token.c.user_name == user, _token.c.revoke_time.is_(None), good)
    return int((await tx.execute(query)).scalar_one())


async def revoke_token(tx: AsyncSession, token_id: uuid.UUID) -> None:
    """Makes a token worthless from now on, and all that were made with it; those that are stay as they are.
    Its user has to be locked.
    """
    made = sqlalchemy.select(cast(token_id, Uuid).label("id")).cte("made", recursive=True)
    children = sqlalchemy.select(_token.c.id).join_from(made, _token, _token.c.parent_id == made.c.id)
    made = made.union(children)
    revoking = update(_token).where(_token.c.id == made.c.id, _token.c.revoke_time.is_(None))
    await tx.execute(revoking.values(revoke_time=func.now()))


def _memberships(of: Column[Any]) -> ColumnElement[Any]:
    """A column of a user's memberships, as an array, in the order of the projects' names."""
    query = sqlalchemy.select(of).where(_membership.c.user_name == _user.c.name)
    return func.array(query.order_by(_membership.c.project).scalar_subquery())


_BEARERS = (
    sqlalchemy.select(
        _token.c.id,
        _token.c.hash,
        _user.c.name,
        _user.c.role,
        _token.c.expire_time,
        _token.c.revoke_time.is_not(None).label("revoked"),
        _memberships(_membership.c.project).label("projects"),
        _memberships(_membership.c.role).label("roles"),
    )
    .join_from(_token, _user, _user.c.name == _token.c.user_name)
    .where(_token.c.hash == one_of("hashes", LargeBinary()))
)


async def find_bearers(tx: AsyncSession, hashes: Collection[bytes]) -> dict[bytes, Bearer]:
    """Returns by hash whom the tokens with these hashes stand for; expired and revoked ones are found too."""
    return {
        bytes(row.hash): Bearer(
            row.id,
            bytes(row.hash),
            row.name,
            row.role,
            tuple(zip(row.projects, row.roles, strict=True)),
            row.expire_time,
            row.revoked,
        )
        for row in await tx.execute(_BEARERS, {"hashes": list(hashes)})
    }


async def find_bearer(tx: AsyncSession, secret_hash: bytes) -> Bearer | None:
    """Whom the token with this hash stands for; expired and revoked ones are found too."""
    return (await find_bearers(tx, (secret_hash,))).get(secret_hash)
