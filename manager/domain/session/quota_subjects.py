"""Whom quotas are for. Pure."""

from __future__ import annotations

from typing import NamedTuple


class Account(NamedTuple):
    """Who holds something, and whether its sessions are system sessions: those have a quota of their own,
    at admission.
    """

    resource_group: str
    owner: str
    project: str
    system: bool = False


# Kind and name of whom a quota is for.
Subject = tuple[str, str]

_WORDS = {"USER": "user", "PROJECT": "project", "RESOURCE_GROUP": "resource group"}


def subjects_of(account: Account) -> tuple[Subject, ...]:
    """Returns the subjects whose quotas hold for the sessions of an account."""
    if account.system:
        return ()
    return ("USER", account.owner), ("PROJECT", account.project), ("RESOURCE_GROUP", account.resource_group)


def words(subject: Subject) -> str:
    """Returns a subject for people: `user ann`."""
    return f"{_WORDS[subject[0]]} {subject[1]}"
