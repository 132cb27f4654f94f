"""Every method says whether its calls are recorded, and records show what they may."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask

from retinue.manager.identity.principal import Kind, Membership, Principal
from retinue.manager.listeners import SERVICES
from retinue.manager.server.audit_rules import (
    MAX_NAME,
    MAX_SUMMARY,
    RULES,
    Recorded,
    object_of,
    rule_for,
    shown,
    summary_of,
)
from retinue.manager.server.authorization import METHODS, Access
from retinue.manager.v1 import account_service_pb2 as pb
from retinue.manager.v1 import fleet_service_pb2, kernel_service_pb2
from retinue.types.v1 import terminal_pb2

if TYPE_CHECKING:
    from google.protobuf.descriptor import MethodDescriptor

ADA = Principal(Kind.USER, "ada")
PIA = Principal(Kind.USER, "pia", memberships=(Membership("default", "ADMIN"),))
MIA = Principal(Kind.USER, "mia", memberships=(Membership("default", "MEMBER"),))
ROOT = Principal(Kind.USER, "root", role="ADMIN")
NODE = Principal(Kind.AGENT, "n1", role="ADMIN")
ACCOUNTS = "/retinue.manager.v1.AccountService/"
CREATE_USER, CREATE_TOKEN = RULES[f"{ACCOUNTS}CreateUser"], RULES[f"{ACCOUNTS}CreateToken"]
# Names of fields that hold secrets, what a user has written, or what runs.
SECRET_FIELDS = {
    *("token", "join_token", "secret", "password", "public_key", "certificate", "proof", "challenge", "data"),
    *(
        "description",
        "label",
        "environment",
        "variables",
        "command",
        "script",
        "arguments",
        "spec",
        "webhooks",
        "stdin",
    ),
}


def methods() -> dict[str, MethodDescriptor]:
    pool = descriptor_pool.Default()
    services = [pool.FindServiceByName(name) for name in SERVICES]
    return {f"/{service.full_name}/{method.name}": method for service in services for method in service.methods}


def test_every_method_says_whether_it_is_recorded() -> None:
    assert set(RULES) == set(methods())


def test_what_is_for_administrators_is_recorded_unless_it_only_reads() -> None:
    found = methods()
    forgotten = [
        method
        for method, access in METHODS.items()
        if access is Access.ADMIN
        and found[method].GetOptions().idempotency_level != 1
        and RULES[method].recorded is not Recorded.ALWAYS
    ]
    assert len([method for method, access in METHODS.items() if access is Access.ADMIN]) > 10
    assert forgotten == []


def test_every_path_is_a_field_and_none_is_secret() -> None:
    recorded = {method: rule for method, rule in RULES.items() if rule.recorded is not Recorded.NEVER}
    assert len(recorded) > 30
    for method, rule in recorded.items():
        for path in (*rule.fields, *([rule.name] if rule.name else [])):
            kind: Any = methods()[method].input_type
            *above, last = path.split(".")
            for name in above:
                kind = kind.fields_by_name[name].message_type
            assert last in kind.fields_by_name, (method, path)
            # Of a spec a field may be recorded, and never the whole.
            assert not {*above, last} & (SECRET_FIELDS - {"spec"}), (method, path)
            assert last != "spec", (method, path)


@pytest.mark.parametrize(
    ("method", "recorded"),
    [
        ("AccountService/CreateUser", {"ada", "pia", "mia", "root", "n1"}),
        ("AccountService/ListUsers", set()),
        ("SessionService/TerminateSession", {"pia", "root"}),
        ("TemplateService/DeleteTemplate", {"pia", "root"}),
        ("SessionService/CreateSession", set()),
        ("Unknown/Method", set()),
    ],
)
def test_whose_calls_may_be_recorded(method: str, recorded: set[str]) -> None:
    everyone = (ADA, PIA, MIA, ROOT, NODE)
    found = {who.name for who in everyone if rule_for(f"/retinue.manager.v1.{method}", who) is not None}
    assert found == recorded
    assert rule_for("/retinue.manager.v1.SessionService/TerminateSession", None) is None


def test_a_summary_has_the_fields_that_are_given() -> None:
    user = pb.User(
        name="eve", role=pb.USER_ROLE_ADMIN, memberships=[pb.Membership(project="p", role=pb.PROJECT_ROLE_MEMBER)]
    )
    assert summary_of(CREATE_USER, pb.CreateUserRequest(user=user)) == (
        "user.role=USER_ROLE_ADMIN user.memberships=p/PROJECT_ROLE_MEMBER"
    )
    assert summary_of(CREATE_USER, pb.CreateUserRequest()) == ""
    assert summary_of(CREATE_USER, pb.CreateUserRequest(user=pb.User(role=7))) == "user.role=7"  # type: ignore[arg-type]
    token = pb.CreateTokenRequest(user="ada", description="free text", ttl=Duration(seconds=60))
    assert summary_of(CREATE_TOKEN, token) == "ttl=60s"
    quota = pb.Quota(kind=pb.QUOTA_KIND_USER, name="ada", slots={"mem": "1g", "cpu": "2"}, max_sessions=0)
    assert summary_of(RULES[f"{ACCOUNTS}SetQuota"], pb.SetQuotaRequest(quota=quota)) == (
        "quota.kind=QUOTA_KIND_USER quota.slots=cpu:2,mem:1g quota.max_sessions=0"
    )
    update = fleet_service_pb2.UpdateResourceGroupRequest(update_mask=FieldMask(paths=["egress", "max_grace"]))
    assert summary_of(RULES["/retinue.manager.v1.FleetService/UpdateResourceGroup"], update) == (
        "update_mask=egress,max_grace"
    )
    attach = kernel_service_pb2.AttachRequest(
        start=kernel_service_pb2.AttachStart(
            session="s", spec=terminal_pb2.CommandSpec(command=["echo", "x"], detached=True)
        )
    )
    assert summary_of(RULES["/retinue.manager.v1.KernelService/Attach"], attach) == "start.spec.detached=true"


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        (Duration(seconds=5, nanos=-1), "ttl=5s-1ns"),
        (Duration(seconds=2**62), f"ttl={2**62}s+0ns"),
        (Duration(seconds=0), "ttl=0s"),
    ],
)
def test_what_makes_no_sense_is_shown_as_it_is(span: Duration, expected: str) -> None:
    assert summary_of(CREATE_TOKEN, pb.CreateTokenRequest(ttl=span)) == expected
    update = fleet_service_pb2.UpdateResourceGroupRequest(update_mask=FieldMask(paths=["Odd__Path", "a.B", ""]))
    assert summary_of(RULES["/retinue.manager.v1.FleetService/UpdateResourceGroup"], update) == (
        "update_mask=Odd__Path,a.B,"
    )


def test_the_object_is_what_the_request_names_else_the_caller() -> None:
    assert object_of(CREATE_USER, pb.CreateUserRequest(user=pb.User(name="eve")), ROOT) == "eve"
    assert object_of(CREATE_TOKEN, pb.CreateTokenRequest(user="eve"), ROOT) == "eve"
    assert object_of(CREATE_TOKEN, pb.CreateTokenRequest(), ADA) == "ada"
    assert object_of(RULES[f"{ACCOUNTS}CreateSshKey"], pb.CreateSshKeyRequest(public_key="k"), ADA) == "ada"
    revoke = RULES[f"{ACCOUNTS}RevokeToken"]
    known = "8d3f2d5e-6a40-4b8e-9a55-0c2f3f1f7a11"
    assert object_of(revoke, pb.RevokeTokenRequest(token_id=known), ROOT) == known
    assert object_of(revoke, pb.RevokeTokenRequest(token_id="rtn_abc"), ROOT) == "(hidden)"
    assert object_of(revoke, pb.RevokeTokenRequest(token_id="n_abcdef"), ROOT) == "(hidden)"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("eve", "eve"),
        ("rtn_0123", "(hidden)"),
        ("x rtj_0123 y", "x (hidden) y"),
        ("a=eyJhbGciOiJub25lIn0.e30.", "a=(hidden)"),
        ("whsec_abc", "(hidden)"),
        ("part_one", "part_one"),
        ("a\nb\x1b[0m", "a\\u000ab\\u001b[0m"),
    ],
)
def test_texts_are_shown_without_secrets_and_controls(text: str, expected: str) -> None:
    assert shown(text, MAX_NAME) == expected


def test_texts_are_bounded() -> None:
    long = pb.CreateUserRequest(user=pb.User(name="é" * 4000), request_id="x" * 4000)
    assert len(object_of(CREATE_USER, long, ROOT).encode()) <= MAX_NAME + len("…".encode())
    assert len(summary_of(CREATE_USER, long).encode()) <= MAX_SUMMARY + len("…".encode())
