"""Names of resources of a router."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import HttpFilter

from retinue.proxy.core.fields import pack

if TYPE_CHECKING:
    from google.protobuf.message import Message

LISTENER, ROUTES, CERTIFICATE = "clients", "endpoints", "clients"
GATE_CLUSTER = "gate"
METADATA = "retinue"
FILTERS = "envoy.filters.http"
JWT_FILTER, JWT_PAYLOAD = f"{FILTERS}.jwt_authn", "jwt"


def cluster_name(endpoint_id: str, revision: int) -> str:
    """Returns the name of the cluster of a revision."""
    return f"{endpoint_id}/{revision}"


def parse_cluster_name(name: str) -> tuple[str, int] | None:
    """Returns endpoint and revision of a cluster; None for a cluster of the router itself."""
    endpoint_id, slash, number = name.rpartition("/")
    return (endpoint_id, int(number)) if slash and number.isdecimal() else None


def optional_filter(name: str, settings: Message) -> HttpFilter:
    """Returns a filter that requests pass by, unless their route has a configuration for it."""
    return HttpFilter(name=f"{FILTERS}.{name}", typed_config=pack(settings), disabled=True)
