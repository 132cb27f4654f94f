"""Finds what new sessions depend on, and refuses those that depend on a refused one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.manager.domain.errors import ApiError, InvalidRequest, NameTaken, Violation
from retinue.manager.domain.preconditions import DependencyRefused
from retinue.manager.domain.session.admission import MAX_DEPENDENCIES
from retinue.manager.domain.session.dependency_graph import DependencyKind, dependents, find_cycles, path_text
from retinue.manager.domain.session.states import SessionType
from retinue.manager.session.drafts import Candidates, Draft, Parent
from retinue.manager.store.sessions import dependencies, sessions

if TYPE_CHECKING:
    import uuid

    from sqlmodel.ext.asyncio.session import AsyncSession

    from retinue.manager.domain.session.spec import SessionSpec
    from retinue.manager.store.sessions.dependencies import ResolvedSession

# Sessions of a request that may run one after the other by their label: each waits for all before it.
MAX_ALIKE = 100
# Project and name, or project and what is given for a name.
_Key = tuple[str, str]
# Project, and key and value of a label.
_Label = tuple[str, str, str]


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
    reasons: dict[int, ApiError] = {}
    earlier = set[tuple[str, str]]()
    for n, key in keys.items():
        if key in taken or key in earlier:
            reasons[n] = NameTaken(
                "session", key[1], "" if key in taken else "an earlier session of the request has it"
            )
        earlier.add(key)
    candidates.refuse(reasons)


@dataclass(frozen=True, slots=True)
class _Reference:
    """A session, or an array, that a request names in the field `path`."""

    path: str
    name: str
    kind: DependencyKind


def _references(spec: SessionSpec) -> list[_Reference]:
    lists = (
        ("depends_on", spec.depends_on, DependencyKind.SUCCESS),
        ("runs_after_failure", spec.runs_after_failure, DependencyKind.FAILURE),
        ("runs_after", spec.runs_after, DependencyKind.END),
    )
    return [
        _Reference(f"spec.{field}[{position}]", name, kind)
        for field, names, kind in lists
        for position, name in enumerate(names)
    ]


async def link(tx: AsyncSession, owner: str, candidates: Candidates) -> Links:
    """Gives drafts the ids of the sessions that they depend on, and refuses those that cannot depend on them.

    Sessions outside the call are locked, so this comes before anything else is locked.
    """
    asked = {n: _references(draft.spec) for n, draft in candidates.drafts.items() if draft.spec.has_dependencies}
    if not asked:
        return Links({}, {})
    here: dict[_Key, int] = {}
    for n, draft in candidates.drafts.items():
        here.setdefault((draft.session.project, draft.session.name), n)
    refused = {item.name: n for n, item in candidates.refused.items() if item.name}

    def position_of(key: _Key) -> int | None:
        return here.get(key, refused.get(key[1]))

    inside: dict[int, list[int]] = {}
    outside: set[_Key] = set()
    for n, references in asked.items():
        for reference in references:
            key = (candidates.drafts[n].session.project, reference.name)
            if (position := position_of(key)) is None:
                outside.add(key)
            else:
                inside.setdefault(n, []).append(position)
    earlier = _earlier_with_label(candidates)
    text = f"is for at most {MAX_ALIKE} sessions of a request: have those of an array run one at a time by %1"
    too_many: ApiError = InvalidRequest((("spec.runs_after_label", text),))
    candidates.refuse({n: too_many for n, others in earlier.items() if len(others) >= MAX_ALIKE})
    names = {n: draft.session.name for n, draft in candidates.drafts.items()}
    links = Links(inside, names | {n: item.name for n, item in candidates.refused.items()})
    waits = {n: [*inside.get(n, ()), *earlier.get(n, ())] for n in asked if n in candidates.drafts}
    candidates.refuse(_cycles(waits, links.names))
    labels = {label for n in asked if n in candidates.drafts and (label := _label(candidates.drafts[n]))}
    live = await dependencies.live_with_labels(tx, owner, labels) if labels else {}
    found = await dependencies.resolve(tx, owner, outside) if outside else {}
    for n, references in asked.items():
        if (asking := candidates.drafts.get(n)) is None:
            continue
        linked = _parents(asking, references, candidates, position_of, found)
        if isinstance(linked, list):
            ids = {parent.id for parent in linked}
            sharing = [session.id for session in live.get(_label(asking) or ("", "", ""), ())]
            sharing += [candidates.drafts[one].session.id for one in earlier.get(n, ()) if one in candidates.drafts]
            linked += [
                Parent(one, settled=False, kind=DependencyKind.END, implied=True) for one in sharing if one not in ids
            ]
            if len(linked) > MAX_DEPENDENCIES:
                path = references[0].path if references else "spec.runs_after_label"
                text = f"stands for more sessions than the {MAX_DEPENDENCIES:,} that a session may wait for"
                candidates.refuse({n: InvalidRequest(((path, text),))})
            else:
                candidates.drafts[n] = asking.with_parents(linked)
        else:
            candidates.refuse({n: linked})
    links.refuse_dependents(candidates)
    return links


def _label(draft: Draft) -> _Label | None:
    """Returns the label whose earlier sessions a draft runs after, with its project."""
    key = draft.spec.runs_after_label
    return (draft.session.project, key, draft.spec.labels[key]) if key in draft.spec.labels else None


def _earlier_with_label(candidates: Candidates) -> dict[int, list[int]]:
    """Returns the earlier batch sessions of the request that have the label after which a session of it runs."""
    keys = {draft.spec.runs_after_label for draft in candidates.drafts.values()} - {""}
    having: dict[_Label, list[int]] = {}
    earlier: dict[int, list[int]] = {}
    for n, draft in candidates.drafts.items() if keys else ():
        if (label := _label(draft)) in having:
            earlier[n] = having[label][: MAX_ALIKE + 1]
        if draft.session.type == SessionType.BATCH:
            for key in keys & draft.spec.labels.keys():
                having.setdefault((draft.session.project, key, draft.spec.labels[key]), []).append(n)
    return earlier


def _cycles(parents: Mapping[int, Sequence[int]], of: Mapping[int, str]) -> dict[int, ApiError]:
    reasons: dict[int, ApiError] = {}
    for cycle in find_cycles(parents):
        # It is spelled out once, where the first of them is asked for.
        first = cycle.index(min(cycle))
        names = [of[n] for n in (*cycle[first:], *cycle[:first])]
        for n in cycle:
            text = f"is a cycle: {path_text(names)}" if n == cycle[first] else f"is in the cycle of {names[0]}"
            reasons[n] = InvalidRequest((("spec.depends_on", text),))
    return reasons


def _parents(
    draft: Draft,
    references: Sequence[_Reference],
    candidates: Candidates,
    position_of: Callable[[_Key], int | None],
    found: Mapping[_Key, Sequence[ResolvedSession]],
) -> list[Parent] | ApiError:
    """Returns the sessions that a draft names to depend on, or why it cannot."""
    wrong: list[Violation] = []
    failed: ApiError | None = None
    parents: dict[uuid.UUID, Parent] = {}
    named: set[uuid.UUID] = set()
    for reference in references:
        key, kind = (draft.session.project, reference.name), reference.kind
        if (inside := position_of(key)) is not None:
            other = candidates.drafts.get(inside)
            if other is None:
                failed = failed or DependencyRefused(reference.path, reference.name)
            elif other.session.type != SessionType.BATCH:
                wrong.append((reference.path, "is not a batch session"))
            else:
                parents.setdefault(other.session.id, Parent(other.session.id, settled=False, kind=kind))
            continue
        several = found.get(key, ())
        if not several:
            wrong.append((reference.path, "is not a session of yours"))
        for parent in several:
            if parent.type != SessionType.BATCH:
                wrong.append((reference.path, "is not a batch session"))
            elif parent.id not in parents:
                settled = kind.is_met(parent.state, parent.result)
                parents[parent.id] = Parent(parent.id, settled=settled, kind=kind)
            elif parents[parent.id].kind is kind and len(several) == 1 and parent.id in named:
                wrong.append((reference.path, "is given twice"))
            elif {parents[parent.id].kind, kind} == {DependencyKind.SUCCESS, DependencyKind.FAILURE}:
                wrong.append((reference.path, "is in depends_on, too: it cannot end both ways"))
        # An array and one of its sessions may be given.
        named |= {parent.id for parent in several} if len(several) == 1 else set()
    if wrong:
        return InvalidRequest(tuple(wrong))
    return failed or list(parents.values())
