"""The page of states: diagrams and tables from the tables of states of sessions and endpoints, and `features.py`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from docs.generator.markdown import mermaid, table
from retinue.manager.domain.endpoints.states import LIFECYCLE_MOVES, REPLICA_MOVES, ROLLOUT_MOVES
from retinue.manager.domain.session.features import FEATURES, Feature
from retinue.manager.domain.session.states import KERNEL_MOVES, SESSION_MOVES, SESSION_OWNERS

State = TypeVar("State", bound=StrEnum)


def page() -> str:
    """Returns the whole page."""
    owners = [(f"`{state}`", who, bound) for state, (who, bound) in SESSION_OWNERS.items()]
    features = [[f.value, *("yes" if f in FEATURES[kind] else "no" for kind in FEATURES)] for f in Feature]
    return f"""# States

No other moves than those below are ever made. Each move of a session is one entry of the journal, with its cause.

## Sessions

A move back to `PENDING` is that of a gang that could not start everywhere, of a batch session that is run again, or of one that was preempted.

{diagram(SESSION_MOVES)}
{_moves(SESSION_MOVES)}
Who moves a session out of a state, and what bounds its stay there:

{table(["state", "moved by", "bound"], owners)}
## Kernels

Reports say how far a kernel has come, so states may be skipped.

{diagram(KERNEL_MOVES)}
{_moves(KERNEL_MOVES)}
## Endpoints

{diagram(LIFECYCLE_MOVES)}
What is shown of an endpoint besides (`READY`, `UPDATING`, `DEGRADED`, `ASLEEP`, `UNAVAILABLE`) follows from its replicas.

### Rollouts

{diagram(ROLLOUT_MOVES)}
{_moves(ROLLOUT_MOVES)}
### Replicas

{diagram(REPLICA_MOVES)}
{_moves(REPLICA_MOVES)}
## What each type of session has

The rest is refused with `FEATURE_UNAVAILABLE`.

{table(["", *(kind.lower() for kind in FEATURES)], features)}"""


def diagram(moves: Mapping[State, frozenset[State]]) -> str:
    """Returns the diagram of a table of moves: from the first state to those that nothing leaves."""
    order = list(moves)
    lines = ["stateDiagram-v2", f"    [*] --> {order[0]}"]
    for state, after in moves.items():
        lines += [f"    {state} --> {one}" for one in sorted(after, key=order.index)]
    lines += [f"    {state} --> [*]" for state, after in moves.items() if not after]
    return mermaid("\n".join(lines))


def _moves(moves: Mapping[State, frozenset[State]]) -> str:
    order = list(moves)
    rows = [
        (f"`{state}`", ", ".join(f"`{one}`" for one in sorted(after, key=order.index)) or "nothing: it has ended")
        for state, after in moves.items()
    ]
    return table(["from", "to"], rows)
