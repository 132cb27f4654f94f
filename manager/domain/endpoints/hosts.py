"""Says which further host names an endpoint may not have: those by which the manager itself, its gateway, its routers
and endpoints are reached. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.rpc.core.addresses import is_address

if TYPE_CHECKING:
    from collections.abc import Collection


@dataclass(frozen=True, slots=True)
class OwnHosts:
    """Host names of the installation: the domain of endpoints, that of ports of sessions (empty: there is none),
    and the names that the manager is reached by.
    """

    endpoint_domain: str = "localhost"
    port_domain: str = ""
    names: frozenset[str] = frozenset()


def refusal(host: str, own: OwnHosts, router_names: Collection[str] = ()) -> str:
    """Returns why an endpoint may not have a host name, for people; empty when it may."""
    if is_address(host):
        return "must be a host name, and not an address"
    if _is_in(host, own.endpoint_domain):
        return f"is in {own.endpoint_domain}, where endpoints are given their names: use one of another domain"
    if own.port_domain and _is_in(host, own.port_domain):
        return f"is in {own.port_domain}, which is for ports of sessions: use one of another domain"
    if host in own.names:
        return "is a name of the manager"
    if host in router_names:
        return "is the name of a router"
    return ""


def _is_in(host: str, domain: str) -> bool:
    return host == domain or host.endswith(f".{domain}")
