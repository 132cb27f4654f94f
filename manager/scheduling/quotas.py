"""Quotas inside a pass: what is left of each shrinks with every placement, so that no pass goes beyond one.

A session that exceeds a quota is skipped: it holds up no other, and it is no try.
What is left only shrinks in a pass, so it still exceeds it later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.manager.domain.reasons import SessionReason
from retinue.manager.domain.scheduling.policy import Tier
from retinue.manager.scheduling.columns import UNLIMITED, Explanation, Quotas
from retinue.rpc.core.amounts import format_amount

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retinue.manager.scheduling.equivalence import EquivalenceClass

QUOTA = SessionReason.QUOTA


class QuotaBudget:
    """The remainder of the quotas during one pass."""

    def __init__(self, quotas: Quotas, slots: Sequence[str], columns: Sequence[int]) -> None:
        """Lanes hold the `slots` in `columns`."""
        self._quotas = quotas
        self._slots = [slots[column] for column in columns]
        limits, held = quotas.limits[:, columns].tolist(), quotas.held[:, columns].tolist()
        # By quota: what is left of each limited lane, and of sessions.
        self._left = [
            {lane: limit - held[row][lane] for lane, limit in enumerate(of_quota) if limit != UNLIMITED}
            for row, of_quota in enumerate(limits)
        ]
        self._sessions_left = [
            None if limit == UNLIMITED else limit - number
            for limit, number in zip(quotas.session_limits.tolist(), quotas.sessions.tolist(), strict=True)
        ]
        self._known: dict[tuple[int, tuple[int, ...]], Explanation] = {}

    def admits(self, session: int, kind: EquivalenceClass) -> bool:
        """Returns whether every quota of a session has room for it."""
        return not any(self._over(quota, kind) for quota in self._quotas.of_sessions[session])

    def charge(self, session: int, kind: EquivalenceClass) -> None:
        """Counts a session that was placed."""
        for quota in self._quotas.of_sessions[session]:
            left = self._left[quota]
            for lane in left:
                left[lane] -= kind.total[lane]
            number = self._sessions_left[quota]
            if number is not None:
                self._sessions_left[quota] = number - 1

    def explain(self, session: int, kind: EquivalenceClass) -> Explanation:
        """Returns every quota that a session exceeds, with amounts as they are now."""
        quotas = self._quotas.of_sessions[session]
        known = self._known.get((id(kind), quotas))
        if known is None:
            said = [self._words(quota, kind) for quota in quotas if self._over(quota, kind)]
            known = self._known[id(kind), quotas] = Explanation(Tier.POLICY, QUOTA, "; ".join(said))
        return known

    def _over(self, quota: int, kind: EquivalenceClass) -> bool:
        number = self._sessions_left[quota]
        if number is not None and number < 1:
            return True
        total = kind.total
        # A slot that is not asked for does no harm, even one that is exceeded already.
        return any(total[lane] > left and total[lane] > 0 for lane, left in self._left[quota].items())

    def _words(self, quota: int, kind: EquivalenceClass) -> str:
        whose, said = self._quotas.names[quota], []
        number = self._sessions_left[quota]
        if number is not None and number < 1:
            limit = int(self._quotas.session_limits[quota])
            said.append(f"{whose} has {limit - number} of {limit} session{'' if limit == 1 else 's'}")
        holds, asks = [], []
        for lane, left in sorted(self._left[quota].items()):
            asked, slot = kind.total[lane], self._slots[lane]
            if asked > left and asked > 0:
                limit = int(self._quotas.limits[quota, self._quotas.slots.index(slot)])
                held, most, wanted = (format_amount(slot, amount) for amount in (limit - left, limit, asked))
                holds.append(f"{held} of {most} {slot}")
                asks.append(f"{wanted} {slot}")
        if holds:
            # A single amount needs no second name.
            wanted = " and ".join(asks) if len(asks) > 1 else asks[0].split()[0]
            said.append(f"{whose} holds {' and '.join(holds)}; this asks {wanted}")
        return "; ".join(said)
