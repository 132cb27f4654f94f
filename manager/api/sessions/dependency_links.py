"""What new sessions depend on: names and ids made into ids, and refusals passed on to those that depend on the refused."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from sqlmodel.ext.asyncio.session import AsyncSession

from retinue.manager.api.sessions.requests import Drafted
from retinue.manager.server import errors
from retinue.manager.session import submit
from retinue.manager.session.core.dependency_graph import dependents, find_cycles, path_text
from retinue.manager.session.core.states import ENDED_SESSION_STATES, Result, SessionType
from retinue.manager.store import dependencies, sessions
from retinue.manager.store.recordset import Row
from retinue.manager.v1 import session_pb2

# In one request; a graph denser than this is a mistake.
MAX_EDGES = 100_000


class Links:
    """The dependencies of the sessions of one request. Errors take the place of drafts in the list that was given."""

    def __init__(self, drafted: list[Drafted], messages: Sequence[session_pb2.SessionSpec]) -> None:
        self._drafted = drafted
        # By position, positions of those in the same request.
        self._inside: dict[int, list[int]] = {}
        self._names = [
            item.session["name"] if isinstance(item, submit.Draft) else message.name
            for item, message in zip(drafted, messages, strict=True)
        ]

    @property
    def any(self) -> bool:
        """Whether there are dependencies inside the request."""
        return bool(self._inside)

    async def resolve(self, tx: AsyncSession, owner: str) -> None:
        """Finds what the sessions depend on; must come before anything else is locked."""
        drafts = [(n, item) for n, item in enumerate(self._drafted) if isinstance(item, submit.Draft)]
        asked = {
            n: list(item.session["spec"]["depends_on"]) for n, item in drafts if item.session["spec"]["depends_on"]
        }
        if not asked:
            return
        if sum(map(len, asked.values())) > MAX_EDGES:
            raise errors.InvalidRequest([("specs", f"must be at most {MAX_EDGES} dependencies in all")])
        here: dict[tuple[str, str], int] = {}
        for n, item in drafts:
            here.setdefault((item.session["project"], item.session["name"]), n)
        refused = {
            name: n for n, name in enumerate(self._names) if name and not isinstance(self._drafted[n], submit.Draft)
        }
        outside: set[tuple[str, str]] = set()
        for n, item in drafts:
            for reference in asked.get(n, ()):
                key = (item.session["project"], reference)
                inside = here.get(key, refused.get(reference))
                if inside is None:
                    outside.add(key)
                else:
                    self._inside.setdefault(n, []).append(inside)
        found = await dependencies.resolve(tx, owner, outside) if outside else {}
        for n, item in drafts:
            if n in asked:
                self._drafted[n] = self._linked(item, asked[n], here, refused, found)
        self._refuse_cycles()
        self.refuse_dependents()

    def _linked(
        self,
        item: submit.Draft,
        asked: Sequence[str],
        here: dict[tuple[str, str], int],
        refused: dict[str, int],
        found: dict[tuple[str, str], Row],
    ) -> Drafted:
        wrong: list[errors.Violation] = []
        failed: errors.ApiError | None = None
        parents: dict[uuid.UUID, bool] = {}
        for position, reference in enumerate(asked):
            path, key = f"spec.depends_on[{position}]", (item.session["project"], reference)
            if (inside := here.get(key, refused.get(reference))) is not None:
                parent = self._drafted[inside]
                if not isinstance(parent, submit.Draft):
                    failed = failed or errors.DependencyRefused(path, reference)
                elif parent.session["type"] != SessionType.BATCH:
                    wrong.append((path, "is not a batch session"))
                else:
                    parents[parent.session["id"]] = False
                continue
            row = found.get(key)
            if row is None:
                wrong.append((path, "is not a session of yours"))
            elif row["type"] != SessionType.BATCH:
                wrong.append((path, "is not a batch session"))
            elif row["id"] in parents:
                wrong.append((path, "is given twice"))
            else:
                parents[row["id"]] = row["result"] == Result.SUCCESS and row["state"] in ENDED_SESSION_STATES
                if row["state"] in ENDED_SESSION_STATES and row["result"] != Result.SUCCESS:
                    how = row["result"] if row["result"] != Result.UNDEFINED else row["state"]
                    failed = failed or errors.DependencyFailed(path, row["name"], how)
        if wrong:
            return errors.InvalidRequest(wrong)
        if failed is not None:
            return failed
        item.session["spec"]["depends_on"] = [str(parent) for parent in parents]
        item.parents[:] = parents.items()
        return item

    def _refuse_cycles(self) -> None:
        for cycle in find_cycles(self._inside):
            names = [self._names[n] for n in cycle]
            for place, n in enumerate(cycle):
                text = f"is a cycle: {path_text(names[place:] + names[:place])}"
                self._drafted[n] = errors.InvalidRequest([("spec.depends_on", text)])

    async def refuse_taken(self, tx: AsyncSession, owner: str) -> None:
        """A session whose name is taken will not be made; those that depend on it must not be either."""
        if not self._inside:
            return
        drafts = [(n, item) for n, item in enumerate(self._drafted) if isinstance(item, submit.Draft)]
        keys = [(item.session["project"], item.session["name"]) for _, item in drafts]
        taken = await sessions.names_taken(tx, owner, keys)
        for (n, _), key in zip(drafts, keys, strict=True):
            if key in taken:
                self._drafted[n] = errors.NameTaken("session", key[1])
            taken.add(key)
        self.refuse_dependents()

    def refuse_dependents(self) -> None:
        """Those that depend on one that was refused are refused too."""
        roots = [n for n, item in enumerate(self._drafted) if not isinstance(item, submit.Draft)]
        for n, parent in dependents(self._inside, roots).items():
            if isinstance(self._drafted[n], submit.Draft):
                self._drafted[n] = errors.DependencyRefused("spec.depends_on", self._names[parent])
