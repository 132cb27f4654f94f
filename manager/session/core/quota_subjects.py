"""Whom quotas are for. Pure."""

from __future__ import annotations

# Group, owner and project.
Account = tuple[str, str, str]
# Kind and name of whom a quota is for.
Subject = tuple[str, str]

_WORDS = {"USER": "user", "PROJECT": "project", "RESOURCE_GROUP": "resource group"}


def subjects_of(account: Account) -> tuple[Subject, Subject, Subject]:
    """Returns the subjects whose quotas hold for the sessions of an account."""
    group, owner, project = account
    return ("USER", owner), ("PROJECT", project), ("RESOURCE_GROUP", group)


def words(subject: Subject) -> str:
    """Returns a subject for people: `user ann`."""
    return f"{_WORDS[subject[0]]} {subject[1]}"
