"""What the scheduler keeps of the accounts: what live claims hold and how many sessions are placed, and whose quotas hold for them. Pure."""

from __future__ import annotations

import numpy as np

from manager.lifecycle.growing import Slots, empty, empty_amounts, grown, widened
from manager.scheduling.columns import Integers

# Group, owner and project.
Account = tuple[str, str, str]
# Kind and name of whom a quota is for.
Subject = tuple[str, str]

_WORDS = {"USER": "user", "PROJECT": "project", "RESOURCE_GROUP": "resource group"}


class AccountTable:
    """What live claims hold, and how many placed sessions there are, by group, owner and project."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self.names: list[Account] = []
        self.row_of: dict[Account, int] = {}
        self.held = empty_amounts()
        self.sessions: Integers = empty(np.int64)
        # Rows by group, and by the subject of a quota.
        self.of_group: dict[str, list[int]] = {}
        self.of_subject: dict[Subject, list[int]] = {}

    def row(self, account: Account) -> int:
        """The row of an account, a new one when there is none."""
        number = self.row_of.get(account)
        if number is None:
            number = self.row_of[account] = len(self.names)
            self.names.append(account)
            self.held, self.sessions = grown(self.held, number + 1), grown(self.sessions, number + 1)
            self.of_group.setdefault(account[0], []).append(number)
            for subject in subjects_of(account):
                self.of_subject.setdefault(subject, []).append(number)
        return number

    def widen(self) -> None:
        """Makes room for new slots."""
        self.held = widened(self.held, len(self._slots.names))


def subjects_of(account: Account) -> tuple[Subject, Subject, Subject]:
    """Whose quotas hold for the sessions of an account."""
    group, owner, project = account
    return ("USER", owner), ("PROJECT", project), ("RESOURCE_GROUP", group)


def words(subject: Subject) -> str:
    """Whose a quota is, for people: `user ann`."""
    return f"{_WORDS[subject[0]]} {subject[1]}"
