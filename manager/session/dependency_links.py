"""Finds what new sessions depend on, and refuses those that depend on a refused one."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlmodel.ext.asyncio.session import AsyncSession

from retinue.manager.session.core.dependency_graph import dependents, find_cycles, path_text
from retinue.manager.session.core.refusals import (
    DependencyFailed,
    DependencyRefused,
    InvalidFields,
    NameTaken,
    Reason,
    Violation,
)
from retinue.manager.session.core.states import ENDED_SESSION_STATES, Result, SessionType
from retinue.manager.session.drafts import Candidates, Draft, Parent
from retinue.manager.store import dependencies, sessions
from retinue.manager.store.dependencies import ResolvedSession

# Project and name, or project and what is given for a name.
_Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Links:
    """Dependencies among the requests of one call, by position; `names` are theirs. Empty when there are none."""

    parents: Mapping[int, Sequence[int]]
    names: Mapping[int, str]

    async def refuse_taken(self, tx: AsyncSession, owner: str, candidates: Candidates) -> None:
        """Refuses sessions whose name is taken, with those that depend on them: later,
        it would be too late for the latter.
        """
        if self.parents:
            await refuse_taken(tx, owner, candidates)
            self.refuse_dependents(candidates)

    def refuse_dependents(self, candidates: Candidates) -> None:
        """Refuses sessions that depend on a refused one, directly or not."""
        candidates.refuse(
            {
                n: DependencyRefused("spec.depends_on", self.names[parent])
                for n, parent in dependents(self.parents, candidates.refused).items()
                if n in candidates.drafts
            }
        )


async def refuse_taken(tx: AsyncSession, owner: str, candidates: Candidates) -> None:
    """Refuses sessions whose name a live session of the owner has, or an earlier one of these."""
    keys = {n: (draft.session.project, draft.session.name) for n, draft in candidates.drafts.items()}
    taken = await sessions.names_taken(tx, owner, list(keys.values()))
    reasons: dict[int, Reason] = {}
    earlier = set[tuple[str, str]]()
    for n, key in keys.items():
        if key in taken or key in earlier:
            reasons[n] = NameTaken(key[1], within=key not in taken)
        earlier.add(key)
    candidates.refuse(reasons)


async def link(tx: AsyncSession, owner: str, candidates: Candidates) -> Links:
    """Gives drafts the ids of the sessions that they depend on, and refuses those that cannot depend on them.

    Sessions outside the call are locked, so this comes before anything else is locked.
    """
    asked = {
        n: references
        for n, draft in candidates.drafts.items()
        if (references := (*draft.spec.depends_on, *draft.spec.runs_after))
    }
    if not asked:
        return Links({}, {})
    here: dict[_Key, int] = {}
    for n, draft in candidates.drafts.items():
        here.setdefault((draft.session.project, draft.session.name), n)
    refused = {item.name: n for n, item in candidates.refused.items() if item.name}
    inside: dict[int, list[int]] = {}
    outside: set[_Key] = set()
    for n, references in asked.items():
        for reference in references:
            key = (candidates.drafts[n].session.project, reference)
            if (position := here.get(key, refused.get(reference))) is None:
                outside.add(key)
            else:
                inside.setdefault(n, []).append(position)
    names = {n: draft.session.name for n, draft in candidates.drafts.items()}
    links = Links(inside, names | {n: item.name for n, item in candidates.refused.items()})
    candidates.refuse(_cycles(links))
    found = await dependencies.resolve(tx, owner, outside) if outside else {}
    for n in asked:
        if (asking := candidates.drafts.get(n)) is None:
            continue
        linked = _parents(asking, candidates, here, refused, found)
        if isinstance(linked, list):
            candidates.drafts[n] = asking.with_parents(linked)
        else:
            candidates.refuse({n: linked})
    links.refuse_dependents(candidates)
    return links


def _cycles(links: Links) -> dict[int, Reason]:
    reasons: dict[int, Reason] = {}
    for cycle in find_cycles(links.parents):
        # It is spelled out once, where the first of them is asked for.
        first = cycle.index(min(cycle))
        names = [links.names[n] for n in (*cycle[first:], *cycle[:first])]
        for n in cycle:
            text = f"is a cycle: {path_text(names)}" if n == cycle[first] else f"is in the cycle of {names[0]}"
            reasons[n] = InvalidFields((("spec.depends_on", text),))
    return reasons


def _parents(
    draft: Draft,
    candidates: Candidates,
    here: Mapping[_Key, int],
    refused: Mapping[str, int],
    found: Mapping[_Key, ResolvedSession],
) -> list[Parent] | Reason:
    """Returns the sessions that a draft depends on, or why it cannot."""
    wrong: list[Violation] = []
    failed: Reason | None = None
    parents: dict[uuid.UUID, Parent] = {}
    asked = [
        *((f"spec.depends_on[{n}]", reference, False) for n, reference in enumerate(draft.spec.depends_on)),
        *((f"spec.runs_after[{n}]", reference, True) for n, reference in enumerate(draft.spec.runs_after)),
    ]
    for path, reference, any_result in asked:
        key = (draft.session.project, reference)
        if (inside := here.get(key, refused.get(reference))) is not None:
            other = candidates.drafts.get(inside)
            if other is None:
                failed = failed or DependencyRefused(path, reference)
            elif other.session.type != SessionType.BATCH:
                wrong.append((path, "is not a batch session"))
            else:
                parents.setdefault(other.session.id, Parent(other.session.id, settled=False, any_result=any_result))
            continue
        parent = found.get(key)
        if parent is None:
            wrong.append((path, "is not a session of yours"))
        elif parent.type != SessionType.BATCH:
            wrong.append((path, "is not a batch session"))
        elif parent.id in parents:
            if parents[parent.id].any_result == any_result:
                wrong.append((path, "is given twice"))
        else:
            has_ended, succeeded = parent.state in ENDED_SESSION_STATES, parent.result == Result.SUCCESS
            settled = has_ended and (any_result or succeeded)
            parents[parent.id] = Parent(parent.id, settled=settled, any_result=any_result)
            if has_ended and not settled:
                result = parent.state if parent.result in {None, Result.UNDEFINED} else parent.result
                failed = failed or DependencyFailed(path, parent.name, str(result))
    if wrong:
        return InvalidFields(tuple(wrong))
    return failed or list(parents.values())
