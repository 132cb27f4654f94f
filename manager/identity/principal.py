"""Principals: the callers of the API."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from enum import StrEnum

ADMIN, USER = "ADMIN", "USER"


class Kind(StrEnum):
    """A kind of caller."""

    USER = "USER"
    AGENT = "AGENT"
    ROUTER = "ROUTER"


@dataclass(frozen=True, slots=True)
class Membership:
    """A role in a project: MEMBER or ADMIN."""

    project: str
    role: str


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller: a user by token, or an agent or router by certificate."""

    kind: Kind
    name: str
    # Of a user: USER or ADMIN.
    role: str = USER
    memberships: tuple[Membership, ...] = ()
    token_id: uuid.UUID | None = None
    # Of an agent or router: which enrolment its certificate is of, and the certificate's fingerprint.
    generation: int = 0
    certificate: str = field(default="", compare=False)

    @property
    def is_admin(self) -> bool:
        """Returns whether the caller may do everything."""
        return self.kind is Kind.USER and self.role == ADMIN

    def lost(self, now: Principal) -> bool:
        """Returns whether the same caller, as it is now, lacks a right that this one has."""
        return (self.is_admin and not now.is_admin) or not set(self.memberships) <= set(now.memberships)

    @property
    def projects(self) -> tuple[str, ...]:
        """Projects the caller is a member of."""
        return tuple(membership.project for membership in self.memberships)

    @property
    def administered(self) -> tuple[str, ...]:
        """Projects the caller is an administrator of."""
        return tuple(membership.project for membership in self.memberships if membership.role == ADMIN)
