"""Limits how many calls a caller may make, in this one place. Pure, with the time passed in.

Each caller has, for each weight of calls, a number that may run at a time and a token bucket. So a caller who asks for
much is refused, and has no part of what others need. Agents and administrators are callers of their own classes, with
more of both. What is counted is what this replica serves. How many streams are open at a time is counted by
`rpc.stream_limits`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto


class CallerClass(Enum):
    """Kinds of callers, each with its own limits."""

    USER = auto()
    ADMIN = auto()
    AGENT = auto()
    # Of calls that need no credentials: all of one address are one caller.
    ADDRESS = auto()


class Weight(Enum):
    """The cost class of a call."""

    # It reads a few rows.
    LIGHT = auto()
    # It writes a few rows.
    WRITE = auto()
    # It may read a great many rows.
    HEAVY = auto()
    # It may write a great many rows.
    BULK = auto()
    # It waits for an agent, which costs others nothing meanwhile.
    RELAYED = auto()


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller that is counted as one: a user, an agent, or an address."""

    kind: CallerClass
    name: str


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `at_a_time` calls run; `burst` may begin at once, and `rate` more a second."""

    at_a_time: int
    rate: float
    burst: int


Limits = Mapping[tuple[CallerClass, Weight], Limit]

_WEIGHTS: Mapping[str, Weight] = {
    "/retinue.manager.v1.SessionService/BatchCreateSessions": Weight.BULK,
    "/retinue.manager.v1.SessionService/BatchTerminateSessions": Weight.BULK,
    **dict.fromkeys(
        (
            "/retinue.manager.v1.SessionService/CreateSession",
            "/retinue.manager.v1.SessionService/TerminateSession",
            "/retinue.manager.v1.SessionService/RestartSession",
            "/retinue.manager.v1.SessionService/UpdateSession",
            "/retinue.manager.v1.SessionService/ExtendSession",
            "/retinue.manager.v1.TemplateService/CreateTemplate",
            "/retinue.manager.v1.TemplateService/UpdateTemplate",
            "/retinue.manager.v1.TemplateService/DeleteTemplate",
            "/retinue.manager.v1.EndpointService/CreateEndpoint",
            "/retinue.manager.v1.EndpointService/UpdateEndpoint",
            "/retinue.manager.v1.EndpointService/DeleteEndpoint",
            "/retinue.manager.v1.EndpointService/DeployRevision",
            "/retinue.manager.v1.EndpointService/PromoteRollout",
            "/retinue.manager.v1.EndpointService/PauseRollout",
            "/retinue.manager.v1.EndpointService/ResumeRollout",
            "/retinue.manager.v1.EndpointService/RollBackEndpoint",
            "/retinue.manager.v1.EndpointService/SetTraffic",
            "/retinue.manager.v1.EndpointService/SetScalingFloor",
            "/retinue.manager.v1.EndpointService/CreateEndpointToken",
            "/retinue.manager.v1.EndpointService/RevokeEndpointToken",
            "/retinue.manager.v1.FleetService/ConfirmLostAgents",
            "/retinue.manager.v1.FleetService/DrainAgent",
            "/retinue.manager.v1.FleetService/UndrainAgent",
            "/retinue.manager.v1.FleetService/RevokeAgent",
            "/retinue.manager.v1.FleetService/DeleteAgent",
            "/retinue.manager.v1.FleetService/EndOrphans",
            "/retinue.manager.v1.FleetService/RevokeRouter",
            "/retinue.manager.v1.FleetService/CreateResourceGroup",
            "/retinue.manager.v1.FleetService/UpdateResourceGroup",
            "/retinue.manager.v1.FleetService/DeleteResourceGroup",
            "/retinue.manager.v1.FleetService/CreateJoinToken",
            "/retinue.manager.v1.AccountService/CreateProject",
            "/retinue.manager.v1.AccountService/DeleteProject",
            "/retinue.manager.v1.AccountService/CreateUser",
            "/retinue.manager.v1.AccountService/DeleteUser",
            "/retinue.manager.v1.AccountService/SetMembership",
            "/retinue.manager.v1.AccountService/DeleteMembership",
            "/retinue.manager.v1.AccountService/SetFileOwner",
            "/retinue.manager.v1.AccountService/SetUserRole",
            "/retinue.manager.v1.AccountService/CreateToken",
            "/retinue.manager.v1.AccountService/RevokeToken",
            "/retinue.manager.v1.AccountService/CreateConsoleTicket",
            "/retinue.manager.v1.AccountService/CreateSshKey",
            "/retinue.manager.v1.AccountService/DeleteSshKey",
            "/retinue.manager.v1.AccountService/SetQuota",
            "/retinue.manager.v1.AccountService/SetIdleOverride",
        ),
        Weight.WRITE,
    ),
    **dict.fromkeys(
        (
            "/retinue.manager.v1.AppService/StartApp",
            "/retinue.manager.v1.AppService/GetApp",
            "/retinue.manager.v1.AppService/StopApp",
            "/retinue.manager.v1.KernelService/CreatePortTicket",
            "/retinue.manager.v1.KernelService/CreatePortTunnel",
            "/retinue.manager.v1.KernelService/CreateSshCertificate",
        ),
        Weight.RELAYED,
    ),
    **dict.fromkeys(
        (
            "/retinue.manager.v1.SessionService/ListSessions",
            "/retinue.manager.v1.SessionService/GetSessionGraph",
            "/retinue.manager.v1.SessionService/ExplainSession",
            "/retinue.manager.v1.KernelService/ListUsageSamples",
            "/retinue.manager.v1.TemplateService/ListTemplates",
            "/retinue.manager.v1.TemplateService/RenderTemplate",
            "/retinue.manager.v1.FleetService/ListAgents",
            "/retinue.manager.v1.FleetService/ListOrphans",
            "/retinue.manager.v1.FleetService/ListRouters",
            "/retinue.manager.v1.FleetService/ListResourceGroups",
            "/retinue.manager.v1.FleetService/ListShares",
            "/retinue.manager.v1.FleetService/ListShareHistories",
            "/retinue.manager.v1.FleetService/VerifyLedger",
            "/retinue.manager.v1.AccountService/ListProjects",
            "/retinue.manager.v1.AccountService/ListUsers",
            "/retinue.manager.v1.AccountService/ListTokens",
            "/retinue.manager.v1.AccountService/ListQuotas",
            "/retinue.manager.v1.AccountService/ListSshKeys",
            "/retinue.manager.v1.AccountService/ListIdleOverrides",
            "/retinue.manager.v1.AccountService/ListAuditRecords",
            "/retinue.manager.v1.EndpointService/ListEndpoints",
            "/retinue.manager.v1.EndpointService/ListRevisions",
            "/retinue.manager.v1.EndpointService/ListEndpointTokens",
        ),
        Weight.HEAVY,
    ),
}

# Calls within these wait for their turn: see `retinue.manager.server.turns`. What holds connections to the database for
# long has to leave some to other users: see `retinue.manager.store.postgres.lanes`.
DEFAULT_LIMITS: Limits = {
    (CallerClass.USER, Weight.LIGHT): Limit(at_a_time=128, rate=500, burst=2000),
    (CallerClass.USER, Weight.WRITE): Limit(at_a_time=128, rate=100, burst=1000),
    (CallerClass.USER, Weight.RELAYED): Limit(at_a_time=128, rate=100, burst=1000),
    (CallerClass.USER, Weight.HEAVY): Limit(at_a_time=3, rate=50, burst=200),
    (CallerClass.USER, Weight.BULK): Limit(at_a_time=2, rate=2, burst=20),
    (CallerClass.ADMIN, Weight.LIGHT): Limit(at_a_time=512, rate=2000, burst=10_000),
    (CallerClass.ADMIN, Weight.WRITE): Limit(at_a_time=512, rate=500, burst=5000),
    (CallerClass.ADMIN, Weight.RELAYED): Limit(at_a_time=512, rate=500, burst=5000),
    (CallerClass.ADMIN, Weight.HEAVY): Limit(at_a_time=16, rate=200, burst=1000),
    (CallerClass.ADMIN, Weight.BULK): Limit(at_a_time=8, rate=20, burst=200),
    (CallerClass.AGENT, Weight.LIGHT): Limit(at_a_time=16, rate=20, burst=200),
    # Many nodes, or a load balancer, may be behind one address.
    (CallerClass.ADDRESS, Weight.LIGHT): Limit(at_a_time=256, rate=200, burst=2000),
}
# Seconds of the event loop, which are processor time; of heavy and bulk calls, those without rows.
COSTS: Mapping[Weight, float] = {
    Weight.LIGHT: 0.002,
    Weight.WRITE: 0.006,
    Weight.HEAVY: 0.004,
    Weight.BULK: 0.010,
    Weight.RELAYED: 0.004,
}
# Of each row in a page, and of each session that a bulk call makes or ends.
ROW_COST, BULK_ROW_COST = 0.00015, 0.0001
# Of a stream when it is opened, and of a call that is refused.
STREAM_COST, REFUSAL_COST = 0.004, 0.001
# So many calls of a caller may wait to be refused; further ones are refused at once.
MAX_WAITING = 1000
# After which a call that found too many others is worth trying again.
_PAUSE_SECONDS = 0.25
_MAX_CALLERS = 10_000
# Streams of a user, or of an address without a known user, that may be open at a time at this replica, by method.
DEFAULT_STREAM_LIMIT = 256
STREAM_LIMITS: Mapping[str, int] = {
    # Each is a connection to an agent and a process in a kernel.
    "/retinue.manager.v1.KernelService/Attach": 64,
    "/retinue.manager.v1.KernelService/ExecuteCode": 64,
    # A browser that loads a large page through port-forward, and a pool of connections to a database in a kernel.
    "/retinue.manager.v1.KernelService/OpenPort": 512,
    # Each is a connection to an agent.
    "/retinue.manager.v1.KernelService/UploadFiles": 32,
    "/retinue.manager.v1.KernelService/DownloadFiles": 32,
    "/retinue.manager.v1.KernelService/ListFiles": 32,
    # Anyone may call the first of these.
    "/grpc.health.v1.Health/Watch": 64,
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": 64,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": 64,
}


def weight_of(method: str) -> Weight:
    """Returns the weight of a method by its full name."""
    return _WEIGHTS.get(method, Weight.LIGHT)


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a call may not begin, in words, and after how many seconds it is worth trying again."""

    description: str
    retry_seconds: float


@dataclass(slots=True)
class _Account:
    tokens: float
    at: float
    running: int = field(default=0)


_Key = tuple[Caller, Weight]


class CallLimits:
    """Counts the calls of each caller, in bounded memory; belongs on one event loop."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS, max_callers: int = _MAX_CALLERS) -> None:
        self._limits = limits
        self._max_callers = max_callers
        # The one that called last is at the end.
        self._accounts: OrderedDict[_Key, _Account] = OrderedDict()

    def begin(self, caller: Caller, method: str, now: float, *, stream: bool = False) -> Refusal | None:
        """Counts a call that begins at `now` in seconds, unless it is refused; each that began must `end`.

        A stream counts when it is opened, and not among those that run.
        """
        weight = weight_of(method)
        limit = self._limits.get((caller.kind, weight)) or self._limits[caller.kind, Weight.LIGHT]
        key = (caller, weight)
        account = self._accounts.pop(key, None) or _Account(limit.burst, now)
        self._accounts[key] = account
        self._forget_idle()
        account.tokens = min(float(limit.burst), account.tokens + (now - account.at) * limit.rate)
        account.at = now
        if not stream and account.running >= limit.at_a_time:
            return Refusal(f"{account.running} of at most {limit.at_a_time} calls of this kind run", _PAUSE_SECONDS)
        if account.tokens < 1:
            seconds = (1 - account.tokens) / limit.rate
            return Refusal(f"more than {limit.rate:g} calls of this kind a second", seconds)
        account.tokens -= 1
        if not stream:
            account.running += 1
        return None

    def end(self, caller: Caller, method: str) -> None:
        """Counts the end of a call, not of a stream, that began."""
        self._accounts[caller, weight_of(method)].running -= 1

    def __len__(self) -> int:
        return len(self._accounts)

    def _forget_idle(self) -> None:
        """Makes room: those of whom a call runs are kept, and so the next one to go is looked for among a few."""
        for _ in range(min(len(self._accounts) - self._max_callers, 8)):
            key, account = self._accounts.popitem(last=False)
            if account.running:
                self._accounts[key] = account
