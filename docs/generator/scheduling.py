"""The page of the two-level scheduler, from the tables of strategies and verdicts in `manager/scheduling`."""

from __future__ import annotations

from docs.generator.markdown import label, mermaid, table
from retinue.manager.scheduling import reasons
from retinue.manager.scheduling.columns import Tier, Verdict
from retinue.manager.scheduling.strategies import AGENT_STRATEGIES, COMMON_OPTIONS, SESSION_STRATEGIES


def page() -> str:
    """The whole page."""
    verdicts, kinds, options, words = (
        ", ".join(f"`{word}`" for word in found)
        for found in (
            [one.name for one in Verdict],
            [one.value for one in Tier],
            sorted(COMMON_OPTIONS),
            sorted(value for name, value in vars(reasons).items() if name.isupper() and value == name),
        )
    )
    return f"""# The two-level scheduler

Each resource group has a strategy that says which session is next, and one that says which agents it gets. Both are names; an
administrator's own are Python entry points, or servers of `retinue.strategy.v1` ([how to](../how-to/scheduling-strategies.md)).

{diagram()}
## Which session

{_strategies(SESSION_STRATEGIES)}
## Which agents

{_strategies(AGENT_STRATEGIES)}
Whatever the strategies, a group may also set {options}. An option that neither
strategy reads is refused.

## What comes out

A pass gives every session one verdict: {verdicts}. Whatever is not `{Verdict.PLACED.name}` waits with a reason of
one of the kinds {kinds}. The scheduler's own reasons are {words}; others come from
quotas, dependencies and start times. `retinue explain SESSION` shows them with amounts.
"""


def diagram() -> str:
    """From the queue through both levels to verdicts."""
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


def _strategies(strategies: dict[str, frozenset[str]]) -> str:
    rows = [
        (f"`{name}`", ", ".join(f"`{one}`" for one in sorted(options)) or "none")
        for name, options in strategies.items()
    ]
    return table(["strategy", "options of its own"], rows)
