"""All of the engine's resources for an endpoint, by one function of the table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.router.core.clusters import assigned, assignment, cluster
from retinue.router.core.names import cluster_name
from retinue.router.core.picker import picker_cluster, picker_cluster_name
from retinue.router.core.routes import virtual_host

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envoy.config.cluster.v3.cluster_pb2 import Cluster
    from envoy.config.endpoint.v3.endpoint_components_pb2 import LbEndpoint
    from envoy.config.endpoint.v3.endpoint_pb2 import ClusterLoadAssignment
    from envoy.config.route.v3.route_components_pb2 import VirtualHost

    from retinue.router.core.table import Endpoint, Replica, Revision


@dataclass(frozen=True, slots=True)
class EndpointResources:
    """A virtual host, clusters, and the replicas of those of revisions, by cluster name;
    no virtual host once the endpoint is gone.
    """

    host: VirtualHost | None
    clusters: Mapping[str, Cluster]
    assignments: Mapping[str, ClusterLoadAssignment]


NOTHING = EndpointResources(None, {}, {})


def endpoint_resources(
    endpoint: Endpoint, *, gated: bool, kept: Sequence[Revision] = (), picker: Sequence[str] = ()
) -> EndpointResources:
    """Returns the resources of an endpoint; `picker` are the addresses of its picker.

    A request that is held has chosen its cluster before. So while an endpoint is `gated`, revisions that are no longer
    in the table are `kept`, and each one without a ready replica has those of the others.
    """
    if endpoint.deleted:
        return EndpointResources(virtual_host(endpoint, gated=False), {}, {})
    numbers = {revision.number for revision in endpoint.revisions}
    present = {revision.number: revision for revision in (*endpoint.revisions, *endpoint.chosen)}
    revisions = [*present.values(), *(revision for revision in kept if gated and revision.number not in present)]
    serving = [replica for revision in endpoint.serving for replica in revision.ready]
    clusters, assignments = {}, {}
    for revision in revisions:
        name = cluster_name(endpoint.id, revision.number)
        replicas: Sequence[Replica] = revision.replicas if revision.number in numbers else ()
        if gated and not any(not replica.draining for replica in replicas):
            replicas = [*replicas, *serving]
        clusters[name] = cluster(endpoint.id, revision, endpoint.routing)
        assignments[name] = assignment(name, replicas)
    if endpoint.routing.picker is not None:
        clusters[picker_cluster_name(endpoint.id)] = picker_cluster(endpoint.id, endpoint.routing.picker, picker)
    return EndpointResources(virtual_host(endpoint, gated=gated), clusters, assignments)


def merged(old: ClusterLoadAssignment, new: ClusterLoadAssignment) -> ClusterLoadAssignment:
    """Returns an assignment with the replicas of both: those of the old one as they were."""
    hosts = {_key(host): host for part in (new, old) for group in part.endpoints for host in group.lb_endpoints}
    return assigned(new.cluster_name, [host for _, host in sorted(hosts.items(), key=lambda item: item[0])])


def _key(host: LbEndpoint) -> tuple[str, int]:
    address = host.endpoint.address.socket_address
    return address.address, address.port_value
