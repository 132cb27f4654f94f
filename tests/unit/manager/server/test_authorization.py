"""Every method is in the table, and the table allows what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import descriptor_pool

from retinue.manager.domain.errors import MethodDenied
from retinue.manager.identity.principal import Kind, Principal
from retinue.manager.listeners import SERVICES
from retinue.manager.server.authorization import METHODS, Access, access_to, authorise

USER = Principal(Kind.USER, "ada")
ADMIN = Principal(Kind.USER, "root", role="ADMIN")
AGENT = Principal(Kind.AGENT, "n1")
METHOD = "/retinue.manager.v1.FleetService/DrainAgent"
# A user who is called like an agent, and an agent with a role, gain nothing by it.
AGENT_WITH_ROLE = Principal(Kind.AGENT, "n1", role="ADMIN")


def registered() -> set[str]:
    pool = descriptor_pool.Default()
    services = [pool.FindServiceByName(name) for name in SERVICES]
    return {f"/{service.full_name}/{method.name}" for service in services for method in service.methods}


def test_every_registered_method_has_a_row() -> None:
    assert registered() - set(METHODS) == set()


def test_no_row_is_left_over() -> None:
    assert set(METHODS) - registered() == set()


def test_every_service_of_the_contract_is_registered() -> None:
    pool = descriptor_pool.Default()
    contract = set()
    for path in (Path(__file__).parents[4] / "protos/retinue/manager/v1").glob("*_service.proto"):
        file = pool.FindFileByName(f"retinue/manager/v1/{path.name}")
        contract |= {service.full_name for service in file.services_by_name.values()}
    assert len(contract) > 1
    assert contract <= set(SERVICES)


@pytest.mark.parametrize(
    ("access", "allowed"),
    [
        (Access.ANYONE, {"ada", "root", "n1"}),
        (Access.CALLER, {"ada", "root", "n1"}),
        (Access.USER, {"ada", "root"}),
        (Access.ADMIN, {"root"}),
        (Access.NODE, {"n1"}),
        (None, set()),
    ],
)
def test_who_may(access: Access | None, allowed: set[str]) -> None:
    for principal in (USER, ADMIN, AGENT, AGENT_WITH_ROLE):
        if principal.name in allowed:
            authorise(access, principal, METHOD)
        else:
            with pytest.raises(MethodDenied):
                authorise(access, principal, METHOD)


def test_a_refusal_says_which_method_and_who_may() -> None:
    with pytest.raises(MethodDenied, match=r"^DrainAgent is for administrators, and you are user ada$"):
        authorise(Access.ADMIN, USER, METHOD)
    with pytest.raises(MethodDenied, match=r"^DrainAgent is for users, with a token, and you are agent n1$"):
        authorise(Access.USER, AGENT, METHOD)
    with pytest.raises(MethodDenied, match=r"^DrainAgent is for agents and routers"):
        authorise(Access.NODE, ADMIN, METHOD)


def test_no_caller_may_call_unknown_methods() -> None:
    assert access_to("/retinue.manager.v1.SessionService/Undeclared") is None
