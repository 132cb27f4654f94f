"""Decides who may call which method. One table; a method that is not in it may not be called.

Rules about single things (whose session, which project) belong to the services.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from retinue.manager.domain.errors import MethodDenied
from retinue.manager.identity.principal import Kind, Principal

if TYPE_CHECKING:
    from collections.abc import Mapping


class Access(Enum):
    """The callers that a method is open to."""

    ANYONE = auto()
    CALLER = auto()
    """Anyone with credentials."""
    USER = auto()
    ADMIN = auto()
    NODE = auto()


def _methods(service: str, access: Mapping[str, Access]) -> dict[str, Access]:
    return {f"/{service}/{method}": who for method, who in access.items()}


METHODS: Mapping[str, Access] = {
    **_methods(
        "retinue.manager.v1.SessionService",
        {
            "CreateSession": Access.USER,
            "BatchCreateSessions": Access.USER,
            "GetSession": Access.USER,
            "ListSessions": Access.USER,
            "GetSessionGraph": Access.USER,
            "TerminateSession": Access.USER,
            "BatchTerminateSessions": Access.USER,
            "RestartSession": Access.USER,
            "UpdateSession": Access.USER,
            "ExtendSession": Access.USER,
            "WatchSessions": Access.USER,
            "ExplainSession": Access.USER,
        },
    ),
    **_methods(
        "retinue.manager.v1.KernelService",
        {
            "StreamLogs": Access.USER,
            "StreamStats": Access.USER,
            "ListUsageSamples": Access.USER,
            "Attach": Access.USER,
            "OpenPort": Access.USER,
            "CreatePortTicket": Access.USER,
            "CreatePortTunnel": Access.USER,
            "CreateSshCertificate": Access.USER,
            "ExecuteCode": Access.USER,
            "UploadFiles": Access.USER,
            "DownloadFiles": Access.USER,
            "ListFiles": Access.USER,
        },
    ),
    **_methods(
        "retinue.manager.v1.AppService",
        {
            "StartApp": Access.USER,
            "GetApp": Access.USER,
            "StopApp": Access.USER,
        },
    ),
    **_methods(
        "retinue.manager.v1.TemplateService",
        {
            "CreateTemplate": Access.USER,
            "GetTemplate": Access.USER,
            "ListTemplates": Access.USER,
            "UpdateTemplate": Access.USER,
            "DeleteTemplate": Access.USER,
            "RenderTemplate": Access.USER,
        },
    ),
    **_methods(
        "retinue.manager.v1.EndpointService",
        {
            "CreateEndpoint": Access.USER,
            "GetEndpoint": Access.USER,
            "ListEndpoints": Access.USER,
            "UpdateEndpoint": Access.USER,
            "DeleteEndpoint": Access.USER,
            "DeployRevision": Access.USER,
            "GetRevision": Access.USER,
            "ListRevisions": Access.USER,
            "PromoteRollout": Access.USER,
            "PauseRollout": Access.USER,
            "ResumeRollout": Access.USER,
            "RollBackEndpoint": Access.USER,
            "SetTraffic": Access.USER,
            "SetScalingFloor": Access.USER,
            "ExplainEndpoint": Access.USER,
            "WatchEndpoints": Access.USER,
            "StreamEndpointStats": Access.USER,
            "GetEndpointHistory": Access.USER,
            "CreateEndpointToken": Access.USER,
            "ListEndpointTokens": Access.USER,
            "RevokeEndpointToken": Access.USER,
        },
    ),
    **_methods(
        "retinue.manager.v1.FleetService",
        {
            "GetAgent": Access.USER,
            "ListAgents": Access.USER,
            "DrainAgent": Access.ADMIN,
            "UndrainAgent": Access.ADMIN,
            "RevokeAgent": Access.ADMIN,
            "DeleteAgent": Access.ADMIN,
            "ConfirmLostAgents": Access.ADMIN,
            "ListOrphans": Access.ADMIN,
            "EndOrphans": Access.ADMIN,
            "GetRouter": Access.ADMIN,
            "ListRouters": Access.ADMIN,
            "RevokeRouter": Access.ADMIN,
            "GetResourceGroup": Access.USER,
            "ListResourceGroups": Access.USER,
            "CreateResourceGroup": Access.ADMIN,
            "UpdateResourceGroup": Access.ADMIN,
            "DeleteResourceGroup": Access.ADMIN,
            "ListShares": Access.USER,
            "ListShareHistories": Access.USER,
            "VerifyLedger": Access.ADMIN,
            "CreateJoinToken": Access.ADMIN,
        },
    ),
    **_methods(
        "retinue.manager.v1.AccountService",
        {
            "GetCaller": Access.USER,
            "CreateProject": Access.ADMIN,
            "GetProject": Access.USER,
            "ListProjects": Access.USER,
            "DeleteProject": Access.ADMIN,
            "CreateUser": Access.ADMIN,
            "GetUser": Access.ADMIN,
            "ListUsers": Access.ADMIN,
            "DeleteUser": Access.ADMIN,
            "SetMembership": Access.ADMIN,
            "DeleteMembership": Access.ADMIN,
            "SetFileOwner": Access.ADMIN,
            "SetUserRole": Access.ADMIN,
            "CreateToken": Access.USER,
            "ListTokens": Access.USER,
            "RevokeToken": Access.USER,
            "CreateConsoleTicket": Access.USER,
            "CreateSshKey": Access.USER,
            "ListSshKeys": Access.USER,
            "DeleteSshKey": Access.USER,
            "SetQuota": Access.ADMIN,
            "GetQuota": Access.USER,
            "ListQuotas": Access.USER,
            "SetIdleOverride": Access.ADMIN,
            "ListIdleOverrides": Access.USER,
            "ListAuditRecords": Access.ADMIN,
        },
    ),
    **_methods(
        "retinue.manager.v1.EnrollmentService",
        {
            # The join token in the request is the credential.
            "Enroll": Access.ANYONE,
            # Of a node whose certificate has expired: the proof in the request is the credential.
            "BeginRecovery": Access.ANYONE,
            "RecoverCertificate": Access.ANYONE,
            "Announce": Access.NODE,
            "RenewCertificate": Access.NODE,
        },
    ),
    **_methods("grpc.health.v1.Health", {"Check": Access.ANYONE, "List": Access.ANYONE, "Watch": Access.ANYONE}),
    **_methods("grpc.reflection.v1.ServerReflection", {"ServerReflectionInfo": Access.CALLER}),
    **_methods("grpc.reflection.v1alpha.ServerReflection", {"ServerReflectionInfo": Access.CALLER}),
}


def access_to(method: str) -> Access | None:
    """Returns who may call a method by its full name, `/package.Service/Method`; None: no caller."""
    return METHODS.get(method)


_WHO: Mapping[Access, str] = {
    Access.USER: "is for users, with a token",
    Access.ADMIN: "is for administrators",
    Access.NODE: "is for agents and routers, with a certificate",
}


def authorise(access: Access | None, principal: Principal, method: str) -> None:
    """Raises MethodDenied, which names the method, unless the principal is one of those who may."""
    match access:
        case Access.ANYONE | Access.CALLER:
            allowed = True
        case Access.USER:
            allowed = principal.kind is Kind.USER
        case Access.ADMIN:
            allowed = principal.is_admin
        case Access.NODE:
            allowed = principal.kind in {Kind.AGENT, Kind.ROUTER}
        case _:
            allowed = False
    if not allowed:
        name = method.rpartition("/")[2]
        who = "is for nobody" if access is None else _WHO[access]
        raise MethodDenied(f"{name} {who}, and you are {principal.kind.lower()} {principal.name}", {"method": name})
