"""The tables.

One truth for each fact: free capacity is capacity minus live claims, a claim lives as long as its attempt, shares are
sums of live claims. Amounts are integers in a slot's smallest unit: bytes for `mem` and `disk`, thousandths for every
other slot.
"""

from retinue.manager.store.tables.accounts import (
    ConsoleTicket,
    Membership,
    Project,
    Quota,
    Request,
    RetiredName,
    SshKey,
    Token,
    UserAccount,
)
from retinue.manager.store.tables.claims import Claim, DrfShare, Network, NetworkSite, ShareHour, Usage
from retinue.manager.store.tables.cluster import (
    AuditRecord,
    Cluster,
    Journal,
    JournalHead,
    Orphan,
    scheduling_change,
)
from retinue.manager.store.tables.endpoints import (
    Endpoint,
    EndpointReplica,
    EndpointRevision,
    EndpointTraffic,
    Rollout,
    ScalingFloor,
)
from retinue.manager.store.tables.fleet import (
    Agent,
    EndpointToken,
    JoinToken,
    Leadership,
    LeadershipLease,
    ResourceGroup,
    Router,
)
from retinue.manager.store.tables.session_details import (
    IdleLook,
    IdleOverride,
    PortAccess,
    PortTicket,
    SessionIdle,
    Webhook,
    WebhookCursor,
    WebhookDelivery,
)
from retinue.manager.store.tables.sessions import (
    Attempt,
    Kernel,
    KernelLog,
    Session,
    SessionDependency,
    Template,
    TemplateVersion,
)

__all__ = [
    "Agent",
    "Attempt",
    "AuditRecord",
    "Claim",
    "Cluster",
    "ConsoleTicket",
    "DrfShare",
    "Endpoint",
    "EndpointReplica",
    "EndpointRevision",
    "EndpointToken",
    "EndpointTraffic",
    "IdleLook",
    "IdleOverride",
    "JoinToken",
    "Journal",
    "JournalHead",
    "Kernel",
    "KernelLog",
    "Leadership",
    "LeadershipLease",
    "Membership",
    "Network",
    "NetworkSite",
    "Orphan",
    "PortAccess",
    "PortTicket",
    "Project",
    "Quota",
    "Request",
    "ResourceGroup",
    "RetiredName",
    "Rollout",
    "Router",
    "ScalingFloor",
    "Session",
    "SessionDependency",
    "SessionIdle",
    "ShareHour",
    "SshKey",
    "Template",
    "TemplateVersion",
    "Token",
    "Usage",
    "UserAccount",
    "Webhook",
    "WebhookCursor",
    "WebhookDelivery",
    "scheduling_change",
]
