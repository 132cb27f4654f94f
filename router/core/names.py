"""Names of resources of a router."""

from __future__ import annotations

from retinue.proxy.core.fields import Json

LISTENER, ROUTES, CERTIFICATE = "clients", "endpoints", "clients"
GATE_CLUSTER = "gate"
METADATA = "retinue"
JWT_FILTER, JWT_PAYLOAD = "envoy.filters.http.jwt_authn", "jwt"


def cluster_name(endpoint_id: str, revision: int) -> str:
    """Returns the name of the cluster of a revision."""
    return f"{endpoint_id}/{revision}"


def parse_cluster_name(name: str) -> tuple[str, int] | None:
    """Returns endpoint and revision of a cluster; None for a cluster of the router itself."""
    endpoint_id, slash, number = name.rpartition("/")
    return (endpoint_id, int(number)) if slash and number.isdecimal() else None


def optional_filter(name: str, settings: Json) -> Json:
    """Returns a filter that requests pass by, unless their route has a configuration for it."""
    return {"name": f"envoy.filters.http.{name}", "typed_config": settings, "disabled": True}
