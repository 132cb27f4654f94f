"""The failpoints of the product as its source has them: by syntax trees, so that a new step cannot be forgotten."""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import retinue.agent
import retinue.manager
import retinue.rpc
from retinue.agent.network.core import operations
from retinue.agent.v1 import agent_service_pb2
from retinue.manager.store.postgres.database import GIVING_UP, shielded_methods

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOTS = {
    "manager": Path(retinue.manager.__file__).parent,
    "agent": Path(retinue.agent.__file__).parent,
    "rpc": Path(retinue.rpc.__file__).parent,
}
_LANES = {"RECORDS": "records", "STATE": "state", "KERNELS": "kernels", "NETWORK": "network", "_lane": "docker"}
STATEMENTS = frozenset(shielded_methods()) - GIVING_UP
"""The methods of a transaction that are points."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Point:
    """A decorated function: its name as a point, and whether it has one for each caller."""

    function: str
    name: str
    sites: bool
    package: str

    def is_called(self, name: str, site: str) -> bool:
        """Whether a call by this name, in that function, is one of it."""
        return name == self.function and (self.package.startswith("rpc.") or site.startswith(self.package))


@dataclass(slots=True)
class Scope:
    """A function or a module: its name as a site, and what is directly in it, functions inside excepted."""

    site: str
    node: Function | ast.Module
    own: list[ast.AST] = field(default_factory=list)

    @property
    def point(self) -> Point | None:
        """Returns the point that the function is; None when it is none."""
        for decorator in getattr(self.node, "decorator_list", ()):
            if isinstance(decorator, ast.Call) and tail(decorator.func) in {"awaited", "blocking"}:
                sites = any(keyword.arg == "sites" for keyword in decorator.keywords)
                layer = ast.literal_eval(decorator.args[0])
                name = self.site.rpartition(".")[2]
                package = ".".join(self.site.split(".")[:2])
                return Point(name, f"{layer}.{name.strip('_')}", sites, package)
        return None


def tail(node: ast.expr) -> str:
    """Returns the last part of a dotted name; empty for anything else."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def receiver(node: ast.expr) -> str:
    """Returns the part before the last one of a dotted name; empty for anything else."""
    return tail(node.value) if isinstance(node, ast.Attribute) else ""


def scopes(folder: str) -> Sequence[Scope]:
    """Returns the functions and modules of a folder, as `manager/store`."""
    begin = f"{folder.replace('/', '.')}."
    return [scope for scope in _all_scopes(folder.partition("/")[0]) if scope.site.startswith(begin)]


@functools.cache
def _all_scopes(root: str) -> Sequence[Scope]:
    found: list[Scope] = []
    for path in sorted(ROOTS[root].rglob("*.py")):
        parts = (root, *path.relative_to(ROOTS[root]).with_suffix("").parts)
        if "_pb2" in path.name or "versions" in parts:
            continue
        module = ".".join(parts).removesuffix(".__init__")
        found += _scopes(ast.parse(path.read_text()), module, "<module>")
    return found


def _scopes(node: Function | ast.Module, module: str, name: str) -> Iterator[Scope]:
    scope = Scope(f"{module}.{name}", node)
    prefix = "" if name == "<module>" else f"{name}.<locals>."
    inner: list[tuple[Function, str]] = []

    def visit(parent: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(parent):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                inner.append((child, prefix + child.name))
            elif isinstance(child, ast.ClassDef):
                visit(child, f"{prefix}{child.name}.")
            else:
                scope.own.append(child)
                visit(child, prefix)

    visit(node, prefix)
    yield scope
    for function, inner_name in inner:
        yield from _scopes(function, module, inner_name)


def calls(scope: Scope) -> Iterator[ast.Call]:
    """Yields the calls directly in a function."""
    return (node for node in scope.own if isinstance(node, ast.Call))


@functools.cache
def points() -> frozenset[str]:
    """Returns the names of all points."""
    everything = [scope for root in ROOTS for scope in scopes(root)]
    decorated = [point for scope in everything if (point := scope.point) is not None]
    found = {point.name for point in decorated if not point.sites}
    by_caller = [point for point in decorated if point.sites]
    for scope in everything:
        for call in calls(scope):
            found.update(_points_of(call, scope.site, by_caller))
    request, response = agent_service_pb2.SyncRequest.DESCRIPTOR, agent_service_pb2.SyncResponse.DESCRIPTOR
    down = [entry.name for entry in request.oneofs_by_name["step"].fields]
    up = [entry.name for entry in response.oneofs_by_name["step"].fields]
    found |= {f"link.write.{name}" for name in down} | {f"sync.receive.{name}" for name in down}
    found |= {f"link.read.{name}" for name in (*up, "end")} | {f"sync.send.{name}" for name in up}
    found |= {f"netlink.{name}" for name, value in vars(operations).items() if _is_operation(name, value)}
    return frozenset(found)


def _is_operation(name: str, value: object) -> bool:
    return (
        isinstance(value, type)
        and value.__module__ == operations.__name__
        and hasattr(value, "__dataclass_fields__")
        and name != "Step"
    )


def _points_of(call: ast.Call, site: str, by_caller: Sequence[Point]) -> Iterator[str]:
    name, of = tail(call.func), receiver(call.func)
    if name == "transaction":
        yield f"store.commit@{site}"
    elif name == "fetch":
        yield f"store.execute@{site}"
    elif of == "tx" and name in STATEMENTS:
        yield f"store.{name}@{site}"
    if name == "run" and of in _LANES:
        yield f"{_LANES[of]}@{site}"
    elif name == "in_thread":
        yield f"thread@{site}"
    elif name == "reach" and call.args and isinstance(call.args[0], ast.Constant):
        yield str(call.args[0].value)
    yield from (f"{point.name}@{site}" for point in by_caller if point.is_called(name, site))
