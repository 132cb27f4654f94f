"""Every awaited step of the store, the links to agents, records, networks and engines has a failpoint."""

from __future__ import annotations

import ast
import functools
import random
from typing import TYPE_CHECKING

import pytest

from retinue.manager.store.postgres.database import GIVING_UP
from retinue.rpc.failpoints import Action
from tests.failpoints.walk import KILLS_OF_MANAGER, picks_of, rounds_of
from tests.support.failpoint_sites import ROOTS, STATEMENTS, Scope, calls, points, receiver, scopes, tail

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LAYERS = (
    "manager/store",
    "manager/dispatch",
    "manager/agent_rpc",
    "agent/network",
    "agent/docker",
    "agent/process",
    "agent/runtime",
    "agent/reconcile",
    "agent/fencing",
    "agent/state",
)
LEAVING = {"asyncio.to_thread", "asyncio.open_connection", "asyncio.create_subprocess_exec", "asyncio.start_server"}
"""What of asyncio leaves the process; the rest of it waits for what happens within."""
FOREIGN = {
    *("client", "container", "containers", "images", "system", "session", "response", "content"),
    *("connection", "cursor", "driver", "found", "second", "first", "pool", "process", "_process"),
    *("reader", "writer", "stream", "_stream", "channel", "stub"),
}
"""What variables are called that are objects of libraries, whose methods leave the process."""
GIVEN = {
    *("step", "part", "body", "report", "done", "lasting", "_sleep", "_desired", "_removable", "_PERSIST"),
    *("requests", "events", "pieces", "lines", "_turn_comes"),
}
"""Functions, futures and streams that are given to a function: their steps are where they are made."""
STATEMENT_SITES = {f"manager.store.postgres.database.Transaction.{name}" for name in STATEMENTS}
"""What is a point wherever it is called."""
WITHIN = {
    "set_autocommit",
    "lock",
    "_lock",
    "writing",
    "_under_way",
    "_welcoming",
    "_probing",
    "setdefault",
    "aclosing",
    "AsyncExitStack",
    "enter_async_context",
}
"""Locks, what only closes something at the end of a block, and a setting of the driver."""
CLOSING = GIVING_UP | {"dispose"}
"""What gives up something whose state is known by then: there is no answer that could be lost."""


@functools.cache
def ours() -> frozenset[str]:
    """The names of all asynchronous functions of ours, whose own steps are looked at where they are."""
    everything = (scope for root in ROOTS for scope in scopes(root))
    return frozenset(scope.node.name for scope in everything if isinstance(scope.node, ast.AsyncFunctionDef))


def awaited(scope: Scope) -> Iterator[ast.expr]:
    """The expressions that a function waits for."""
    for node in scope.own:
        if isinstance(node, ast.Await):
            yield node.value
        elif isinstance(node, ast.AsyncFor):
            yield node.iter
        elif isinstance(node, ast.AsyncWith):
            yield from (item.context_expr for item in node.items)


def receiver_of(function: ast.expr) -> str:
    """Of `failpoints.active.awaited`, too."""
    return receiver(function.value) if isinstance(function, ast.Attribute) else ""


def passing(scopes_of_layer: Sequence[Scope]) -> list[str]:
    """The functions that are points, or pass one, or are steps of such; by site."""
    direct = {
        scope.site
        for scope in scopes_of_layer
        if scope.point is not None
        or scope.site in STATEMENT_SITES
        or any("failpoints" in {receiver(call.func), receiver_of(call.func)} for call in calls(scope))
    }
    return [scope.site for scope in scopes_of_layer if direct & set(around(scope.site))]


def around(site: str) -> Iterator[str]:
    """A function, and those that it is within."""
    yield site
    while inner := site.rpartition(".<locals>.")[0]:
        yield (site := inner)


def covered(step: ast.expr) -> bool:
    """Whether something awaited has a point of its own, is looked at elsewhere, or does not leave the process."""
    function = step.func if isinstance(step, ast.Call) else step
    text, name, of = ast.unparse(function), tail(function), receiver(function)
    if text.startswith("asyncio."):
        # A socket that is given is connected already.
        connected = isinstance(step, ast.Call) and any(keyword.arg == "sock" for keyword in step.keywords)
        return text not in LEAVING or connected
    if name in GIVEN | WITHIN | CLOSING or (of == "tx" and name in STATEMENTS):
        return True
    return of not in FOREIGN and (name in ours() or name in {"in_thread", "run"})


@pytest.mark.parametrize("layer", LAYERS)
def test_every_awaited_step_has_a_point(layer: str) -> None:
    found = scopes(layer)
    having = set(passing(found))
    steps = [(scope, step) for scope in found for step in awaited(scope)]
    assert steps
    bare = [
        f"{scope.site}: {ast.unparse(step)}" for scope, step in steps if scope.site not in having and not covered(step)
    ]
    assert bare == []


@pytest.mark.parametrize(
    ("step", "has"),
    [
        ("tx.execute(statement)", True),
        ("asyncio.sleep(1)", True),
        ("NETWORK.run(function)", True),
        ("asyncio.to_thread(function)", False),
        ("client.containers.create(body)", False),
        ("container.start()", False),
        ("connection.execute(statement)", False),
        ("self._process.wait()", False),
        ("something.unheard_of()", False),
    ],
)
def test_steps_that_leave_the_process_are_known(step: str, has: bool) -> None:
    assert covered(ast.parse(step, mode="eval").body) is has


def test_points_of_each_layer_are_enumerated() -> None:
    found = points()
    for expected in (
        "store.commit@manager.scheduler.group_loop.GroupLoop._write",
        "store.pipeline@manager.store.placement.placements.write",
        "store.execute@manager.store.leadership.leadership.read_holder",
        "store.execute_within@manager.store.leadership.leadership._renew",
        "link.write.snapshot",
        "link.read.report",
        "sync.receive.change",
        "sync.send.report",
        "record.add",
        "file.rename",
        "records@agent.runtime.attempt_store.AttemptStore.save",
        "namespace.create",
        "netlink.CreateBridge",
        "netlink.CreateTunnel",
        "netlink.CreateVeth",
        "network@agent.network.links.SessionNetworks._exclusively",
        "engine.create",
        "engine.start",
        "thread@agent.process.runtime.ProcessRuntime._start",
    ):
        assert expected in found, expected


def test_all_rounds_have_every_pick_once() -> None:
    picks = picks_of(points())
    rounds = rounds_of(picks, random.Random(1))
    assert sorted(pick for picked in rounds for pick in picked) == sorted(picks)
    assert len(set(map(str, picks))) == len(picks)
    assert {pick.action for pick in picks} == set(Action)
    assert max(sum(pick.kills_manager for pick in picked) for picked in rounds) == KILLS_OF_MANAGER
    assert {pick.point for pick in picks} == points()


def test_points_of_many_callers_are_called_by_those_that_name_them() -> None:
    """What is passed on, as to a thread, is called by a library, after which the point would be named."""
    everything = [scope for root in ROOTS for scope in scopes(root)]
    # Those of other layers are called as their names are everywhere else, too.
    named = (point for scope in everything if (point := scope.point) is not None and point.sites)
    names = {point.function for point in named if point.name.startswith("file.")}
    assert "replace_file" in names
    passed_on = [
        f"{tail(argument)} in {scope.site}"
        for scope in everything
        for call in calls(scope)
        for argument in (*call.args, *(keyword.value for keyword in call.keywords))
        if tail(argument) in names
    ]
    assert passed_on == []
