"""The accounts in the scheduler's cache: what live claims hold and how many sessions are placed, and whose quotas hold for them. Pure."""

from __future__ import annotations

import numpy as np

from retinue.manager.scheduler.core.growable import Slots, empty, empty_amounts, grown, widened
from retinue.manager.scheduling.columns import Integers
from retinue.manager.session.core.quota_subjects import Account, Subject, subjects_of


class AccountTable:
    """The amounts that live claims hold, and the number of placed sessions, by group, owner and project."""

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
        """Returns the row of an account, a new one when there is none."""
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
