"""The page of the two-level scheduler, from the tables of strategies and verdicts in `manager/scheduling`."""

from __future__ import annotations

from google.protobuf.descriptor import OneofDescriptor

from docs.generator.markdown import label, mermaid, table
from retinue.manager.domain.scheduling.policy import Tier
from retinue.manager.scheduling import reasons
from retinue.manager.scheduling.columns import Verdict
from retinue.manager.scheduling.strategies import AGENT_STRATEGIES, SESSION_STRATEGIES
from retinue.manager.v1.scheduling_policy_pb2 import AgentStrategy, SchedulingPolicy, SessionStrategy


def page() -> str:
    """Returns the whole page."""
    verdicts, kinds, options, words = (
        ", ".join(f"`{word}`" for word in found)
        for found in (
            [one.name for one in Verdict],
            [one.value for one in Tier],
            [name for name in SchedulingPolicy.DESCRIPTOR.fields_by_name if not name.endswith("_strategy")],
            sorted(value for name, value in vars(reasons).items() if name.isupper() and value == name),
        )
    )
    return f"""# The two-level scheduler

Each resource group has a strategy that says which session is next, and one that says which agents it gets. Both are names; an
administrator's own (`custom`, `external`) are Python entry points, or servers of `retinue.strategy.v1`
([how to](../how-to/scheduling-strategies.md)).

{diagram()}
## Which session

{_strategies(SessionStrategy.DESCRIPTOR.oneofs_by_name["strategy"])}
## Which agents

{_strategies(AgentStrategy.DESCRIPTOR.oneofs_by_name["strategy"])}
Whatever the strategies, a group may also set {options}
([fields of the policy](api/scheduling_policy.md)). An option that no strategy reads is refused.

## What comes out

A pass gives every session one verdict: {verdicts}. Whatever is not `{Verdict.PLACED.name}` waits with a reason of
one of the kinds {kinds}. The scheduler's own reasons are {words}; others come from
quotas, dependencies and start times. `retinue explain SESSION` shows them with amounts.
"""


def diagram() -> str:
    """Returns the diagram from the queue through both levels to verdicts."""
    lines = ["flowchart TD", '    queue["waiting sessions of a resource group"] --> bands["priority, highest first"]']
    lines += ['    subgraph one["1: which session"]', "        direction LR"]
    lines += [f'        s{number}["{label(name)}"]' for number, name in enumerate(SESSION_STRATEGIES)]
    lines += ["    end", "    bands --> one"]
    lines += ['    one --> filters["agents that take sessions, of its architecture and features, with room"]']
    lines += ['    subgraph two["2: which agents"]', "        direction LR"]
    lines += [f'        a{number}["{label(name)}"]' for number, name in enumerate(AGENT_STRATEGIES)]
    lines += ["    end", "    filters --> two"]
    lines += ['    two --> gang{"a place for every kernel?"}']
    placed = Verdict.PLACED.name
    lines += [f'    gang -- yes --> placed["{placed}: claims, shares, states and journal in one commit"]']
    lines += [
        "    placed --> one",
        f'    gang -- no --> {Verdict.NO_ROOM.name}["{Verdict.NO_ROOM.name}: waits with a reason"]',
    ]
    lines += [f"    {Verdict.NO_ROOM.name} --> one"]
    others = [one.name for one in Verdict if one not in (Verdict.PLACED, Verdict.NO_ROOM)]
    lines += [f'    one -- otherwise --> others["{"<br/>".join(others)}"]']
    return mermaid("\n".join(lines))


def _strategies(kinds: OneofDescriptor) -> str:
    rows = [
        (f"`{field.name.replace('_', '-')}`", ", ".join(f"`{one.name}`" for one in field.message_type.fields) or "none")
        for field in kinds.fields
        if field.message_type is not None
    ]
    return table(["strategy", "fields of its own"], rows)
