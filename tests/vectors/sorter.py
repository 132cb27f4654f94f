"""The steps of sorter vectors: clients with weights and allocations,
and at each `expect_order` what is known of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from tests.vectors.scene import Amounts, exact

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass
class Clients:
    """The clients at one step."""

    total: Amounts = field(default_factory=dict)
    weights: dict[str, Fraction] = field(default_factory=dict)
    held: dict[str, dict[str, Fraction]] = field(default_factory=dict)
    # How many allocations each ever had.
    allocations: dict[str, int] = field(default_factory=dict)
    active: set[str] = field(default_factory=set)

    def share(self, client: str) -> Fraction:
        """Returns the weighted dominant share."""
        parts = [self.held[client].get(slot, Fraction(0)) / exact(of) for slot, of in self.total.items() if exact(of)]
        return max(parts, default=Fraction(0)) / self.weights.get(client, Fraction(1))

    def is_order_by_count(self) -> bool:
        """Says whether the number of allocations decides between equal shares,
        where names alone would give another order.
        """
        by_name = sorted(self.active, key=lambda client: (self.share(client), client))
        return by_name != sorted(
            self.active, key=lambda client: (self.share(client), self.allocations.get(client, 0), client)
        )


def orders(steps: list[Mapping[str, Any]]) -> Iterator[tuple[Clients, list[str]]]:
    """Yields the clients, which change afterwards, and the order expected of those that are active."""
    clients = Clients()
    for step in steps:
        match step["op"]:
            case "set_total":
                clients.total = step["res"]
            case "weight":
                clients.weights[step["path"]] = exact(step["value"])
            case "add":
                clients.held.setdefault(step["client"], {})
                clients.active.add(step["client"])
            case "activate":
                clients.active.add(step["client"])
            case "deactivate":
                clients.active.discard(step["client"])
            case "remove":
                del clients.held[step["client"]]
                clients.active.discard(step["client"])
            case "allocate" | "unallocate" as op:
                name, sign = step["client"], 1 if op == "allocate" else -1
                for slot, amount in step["res"].items():
                    of_client = clients.held[name]
                    of_client[slot] = of_client.get(slot, Fraction(0)) + sign * exact(amount)
                clients.allocations[name] = clients.allocations.get(name, 0) + (op == "allocate")
            case "update":
                clients.held[step["client"]] = {slot: exact(amount) for slot, amount in step["res"].items()}
            case "expect_order":
                yield clients, step["order"]
            case other:
                raise AssertionError(f"nothing runs steps {other!r}")
