"""The tables.

One truth for each fact: free capacity is capacity minus live claims, a claim lives as long as its attempt, shares are sums of
live claims. Amounts are integers in a slot's smallest unit: bytes for `mem`, thousandths for every other slot.
"""

from retinue.manager.store.tables.accounts import Membership, Project, Quota, Request, RetiredName, Token, UserAccount
from retinue.manager.store.tables.claims import Claim, DrfShare, Usage
from retinue.manager.store.tables.cluster import Cluster, Orphan
from retinue.manager.store.tables.fleet import Agent, JoinToken, Leadership, LeadershipLease, ResourceGroup
from retinue.manager.store.tables.idle import IdleLook, IdleOverride, SessionIdle
from retinue.manager.store.tables.journal import Journal, JournalHead, scheduling_change
from retinue.manager.store.tables.networks import Network, NetworkSite
from retinue.manager.store.tables.port_access import PortAccess, PortTicket
from retinue.manager.store.tables.sessions import Attempt, Kernel, KernelLog, Session, SessionDependency
from retinue.manager.store.tables.templates import Template, TemplateVersion
from retinue.manager.store.tables.webhooks import Webhook, WebhookCursor, WebhookDelivery

__all__ = [
    "Agent",
    "Attempt",
    "Claim",
    "Cluster",
    "DrfShare",
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
    "Session",
    "SessionDependency",
    "SessionIdle",
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
