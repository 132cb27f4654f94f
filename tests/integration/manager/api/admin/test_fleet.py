"""The FleetService: groups and their policies, agents and their etags, shares, join tokens."""

from __future__ import annotations

import hashlib
import time
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from sqlalchemy import text

from retinue.client.admin.scheduling_policy import agent_strategy, session_strategy, strategy_name
from retinue.manager.identity.tokens import hash_secret
from retinue.manager.store.fleet import nodes, routers
from retinue.manager.store.placement import orphans, shares
from retinue.manager.store.placement.orphans import ReportedOrphan
from retinue.manager.store.tables import Attempt, Kernel, Session
from retinue.manager.v1 import fleet_service_pb2 as pb
from retinue.manager.v1 import fleet_service_pb2_grpc
from retinue.manager.v1 import scheduling_policy_pb2 as sp
from retinue.manager.v1.enrollment_service_pb2 import NODE_KIND_ROUTER
from retinue.rpc.version import software_version
from tests.integration.manager.rig import Service, bearer, failure

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.asyncio(loop_scope="session")

Code = grpc.StatusCode


class Fleet:
    """The service as an administrator and as a user see it."""

    def __init__(
        self, stub: fleet_service_pb2_grpc.FleetServiceAsyncStub, service: Service, admin: str, user: str
    ) -> None:
        self.stub = stub
        self.service = service
        self.admin = bearer(admin)
        self.user = bearer(user)

    async def agents(self, *names: str, group: str = "default") -> None:
        async with self.service.database.transaction() as tx:
            for name in names:
                await tx.execute(
                    text("""
                        INSERT INTO agent (id, resource_group, state, drained, revoked, address, instance, architecture, software_version,
                            underlay_address, underlay_mtu, boot_id, version, capacity, backends)
                        VALUES (:name, :group, 'ALIVE', FALSE, FALSE, 'h:1', '', 'x86_64', '1.0', '', 0, '', 1,
                            '{"cpu": 4000, "mem": 1073741824}', '["process"]')
                    """),
                    {"name": name, "group": group},
                )


@pytest_asyncio.fixture(loop_scope="session")
async def fleet(service: Service) -> AsyncIterator[Fleet]:
    admin = await service.user("root", role="ADMIN", projects=())
    user = await service.user("ada")
    async with service.channel() as channel:
        yield Fleet(fleet_service_pb2_grpc.FleetServiceStub(channel), service, admin, user)


async def test_a_group_from_its_making_to_its_end(fleet: Fleet) -> None:
    stub, admin = fleet.stub, fleet.admin
    wanted = pb.ResourceGroup(
        name="gpu",
        scheduling_policy=sp.SchedulingPolicy(
            session_strategy=sp.SessionStrategy(fifo=sp.FifoStrategy(max_tries_before_skip=3)),
            agent_strategy=agent_strategy("dispersed"),
        ),
        owner_weights={"ada": 2},
        start_timeout=Duration(seconds=30),
        max_grace=Duration(seconds=3600),
        mass_loss_percent=20,
        mass_loss_agents=5,
        mass_loss_window=Duration(seconds=600),
        egress=pb.EGRESS_POLICY_DENY,
    )
    shown = await stub.CreateResourceGroup(
        pb.CreateResourceGroupRequest(resource_group=wanted, validate_only=True), metadata=admin
    )
    assert shown.resource_group.etag == ""
    made = (
        await stub.CreateResourceGroup(pb.CreateResourceGroupRequest(resource_group=wanted), metadata=admin)
    ).resource_group
    limits = ("start_timeout", "max_grace", "mass_loss_percent", "mass_loss_agents", "mass_loss_window")
    for field in ("name", "scheduling_policy", "owner_weights", "egress", *limits):
        assert getattr(made, field) == getattr(wanted, field) == getattr(shown.resource_group, field)
    taken = await failure(
        stub.CreateResourceGroup(pb.CreateResourceGroupRequest(resource_group=wanted), metadata=admin)
    )
    assert (taken.code, taken.reason) == (Code.ALREADY_EXISTS, "NAME_TAKEN")
    read = (await stub.GetResourceGroup(pb.GetResourceGroupRequest(name="gpu"), metadata=fleet.user)).resource_group
    assert read == made
    listed = await stub.ListResourceGroups(pb.ListResourceGroupsRequest(page_size=1), metadata=fleet.user)
    assert ([group.name for group in listed.resource_groups], bool(listed.next_page_token)) == (["default"], True)
    await fleet.agents("n1", group="gpu")
    used = await failure(stub.DeleteResourceGroup(pb.DeleteResourceGroupRequest(name="gpu"), metadata=admin))
    assert (used.code, used.reason) == (Code.FAILED_PRECONDITION, "IN_USE")
    await stub.DeleteAgent(pb.DeleteAgentRequest(agent="n1"), metadata=admin)
    stale = await failure(
        stub.DeleteResourceGroup(pb.DeleteResourceGroupRequest(name="gpu", etag="v0"), metadata=admin)
    )
    assert (stale.code, stale.reason, stale.metadata) == (Code.ABORTED, "ETAG_MISMATCH", {"etag": made.etag})
    await stub.DeleteResourceGroup(pb.DeleteResourceGroupRequest(name="gpu", etag=made.etag), metadata=admin)
    gone = await failure(stub.GetResourceGroup(pb.GetResourceGroupRequest(name="gpu"), metadata=admin))
    assert (gone.code, gone.metadata) == (Code.NOT_FOUND, {"kind": "resource_group", "id": "gpu"})


DISPERSED = sp.SchedulingPolicy(agent_strategy=agent_strategy("dispersed"))


def strategies(group: pb.ResourceGroup) -> tuple[str, str]:
    """Returns the names of the agent strategy and the session strategy."""
    policy = group.scheduling_policy
    return strategy_name(policy.agent_strategy), strategy_name(policy.session_strategy)


async def update(fleet: Fleet, group: pb.ResourceGroup, *paths: str, validate_only: bool = False) -> pb.ResourceGroup:
    request = pb.UpdateResourceGroupRequest(
        resource_group=group, update_mask=FieldMask(paths=paths), validate_only=validate_only
    )
    return (await fleet.stub.UpdateResourceGroup(request, metadata=fleet.admin)).resource_group


async def test_updates(fleet: Fleet) -> None:
    before = (
        await fleet.stub.GetResourceGroup(pb.GetResourceGroupRequest(name="default"), metadata=fleet.user)
    ).resource_group
    # Without a mask, what is set.
    changed = await update(fleet, pb.ResourceGroup(name="default", scheduling_policy=DISPERSED))
    assert strategies(changed) == ("dispersed", "drf")
    assert changed.etag != before.etag
    # With a mask, what is named; what is empty goes back to its default.
    changed = await update(
        fleet,
        pb.ResourceGroup(
            name="default",
            scheduling_policy=sp.SchedulingPolicy(session_strategy=session_strategy("fifo")),
            owner_weights={"ada": 3},
        ),
        "scheduling_policy.session_strategy",
        "scheduling_policy.agent_strategy",
    )
    assert (*strategies(changed), dict(changed.owner_weights)) == ("concentrated", "fifo", {})
    shown = await update(
        fleet, pb.ResourceGroup(name="default", owner_weights={"ada": 3}), "owner_weights", validate_only=True
    )
    assert dict(shown.owner_weights) == {"ada": 3}
    after = (
        await fleet.stub.GetResourceGroup(pb.GetResourceGroupRequest(name="default"), metadata=fleet.user)
    ).resource_group
    assert after == changed
    stale = await failure(
        update(fleet, pb.ResourceGroup(name="default", scheduling_policy=DISPERSED, etag=before.etag))
    )
    assert (stale.code, stale.metadata) == (Code.ABORTED, {"etag": after.etag})
    missing = await failure(update(fleet, pb.ResourceGroup(name="nowhere", scheduling_policy=DISPERSED)))
    assert missing.code is Code.NOT_FOUND


async def test_weights_reach_the_shares_in_the_same_commit(fleet: Fleet) -> None:
    await fleet.agents("n1")
    async with fleet.service.database.transaction() as tx:
        await tx.execute(
            text("""
                INSERT INTO claim (kernel_id, epoch, slot, agent_id, resource_group, owner, amount)
                VALUES (:first, 1, 'cpu', 'n1', 'default', 'ada', 3000), (:second, 1, 'mem', 'n1', 'default', 'bob', 536870912)
            """),
            {"first": uuid.uuid4(), "second": uuid.uuid4()},
        )
        held = [shares.Difference("default", "ada", "cpu", 3000), shares.Difference("default", "bob", "mem", 536870912)]
        groups, before = shares.reading([("default", "ada"), ("default", "bob")])
        found = await tx.pipeline(groups, before)
        await tx.pipeline(shares.writing(held, found.of(groups), found.of(before)))
    await update(fleet, pb.ResourceGroup(name="default", owner_weights={"ada": 3}))
    listed = (await fleet.stub.ListShares(pb.ListSharesRequest(), metadata=fleet.admin)).shares
    own = await fleet.stub.ListShares(pb.ListSharesRequest(), metadata=fleet.user)
    assert ([share.owner for share in own.shares], dict(own.held_by_others)) == (["ada"], {"mem": "512m"})
    for metadata, weights in ((fleet.admin, {"ada": 3, "eve": 5}), (fleet.user, {"ada": 3})):
        await update(fleet, pb.ResourceGroup(name="default", owner_weights={"ada": 3, "eve": 5}))
        group = await fleet.stub.GetResourceGroup(pb.GetResourceGroupRequest(name="default"), metadata=metadata)
        groups_seen = await fleet.stub.ListResourceGroups(pb.ListResourceGroupsRequest(), metadata=metadata)
        assert dict(group.resource_group.owner_weights) == weights
        assert dict(groups_seen.resource_groups[0].owner_weights) == weights
    assert [(s.owner, s.weight, s.dominant_slot, s.numerator, s.denominator, dict(s.held)) for s in listed] == [
        ("bob", 1, "mem", 536870912, 1073741824, {"mem": "512m"}),
        ("ada", 3, "cpu", 3000, 4000, {"cpu": "3"}),
    ]
    missing = await failure(fleet.stub.ListShares(pb.ListSharesRequest(resource_group="nowhere"), metadata=fleet.user))
    assert missing.code is Code.NOT_FOUND
    agent = (await fleet.stub.GetAgent(pb.GetAgentRequest(agent="n1"), metadata=fleet.admin)).agent
    assert (dict(agent.capacity), dict(agent.occupied)) == ({"cpu": "4", "mem": "1g"}, {"cpu": "3", "mem": "512m"})


async def test_agents(fleet: Fleet) -> None:
    stub = fleet.stub
    await fleet.agents("n1", "n2", "n3")
    agent = (await stub.GetAgent(pb.GetAgentRequest(agent="n2"), metadata=fleet.admin)).agent
    assert agent.HasField("kernels")
    seen = (await stub.GetAgent(pb.GetAgentRequest(agent="n2"), metadata=fleet.user)).agent
    in_list = (await stub.ListAgents(pb.ListAgentsRequest(), metadata=fleet.user)).agents
    for one in (seen, *in_list):
        assert (one.state, dict(one.capacity)) == (agent.state, dict(agent.capacity))
        assert not (
            {field.name for field, _ in one.ListFields()} & {"address", "occupied", "kernels", "version", "create_time"}
        )
    assert (agent.state, agent.drained, list(agent.available_runtimes)) == (pb.AGENT_STATE_ALIVE, False, ["process"])
    stale = await failure(stub.DrainAgent(pb.DrainAgentRequest(agent="n2", etag="old"), metadata=fleet.admin))
    assert (stale.code, stale.metadata) == (Code.ABORTED, {"etag": agent.etag})
    drained = [(await stub.DrainAgent(pb.DrainAgentRequest(agent="n2"), metadata=fleet.admin)).agent for _ in range(2)]
    assert drained[0] == drained[1]
    assert drained[0].drained
    assert drained[0].etag != agent.etag
    filters = {
        'drained = "true"': ["n2"],
        'drained != "true" AND id != "n3"': ["n1"],
        'state = "AGENT_STATE_ALIVE"': ["n1", "n2", "n3"],
        'state = "ALIVE" AND resource_group = "default" AND architecture = "x86_64" AND id = "n3"': ["n3"],
        'id = "n1\' OR TRUE --"': [],
    }
    for filter_text, expected in filters.items():
        found = await stub.ListAgents(pb.ListAgentsRequest(filter=filter_text), metadata=fleet.user)
        assert [agent.id for agent in found.agents] == expected
    back = (await stub.UndrainAgent(pb.UndrainAgentRequest(agent="n2"), metadata=fleet.admin)).agent
    assert not back.drained
    async with fleet.service.database.transaction() as tx:
        found_now = """[{"type": "QUARANTINED", "reason": "X", "message": "m", "since": "2026-01-02T00:00:00+00:00", "blocks": true}]"""
        await tx.execute(
            text("UPDATE agent SET found_conditions = CAST(:found AS jsonb) WHERE id = 'n2'"), {"found": found_now}
        )
    ill = (await stub.GetAgent(pb.GetAgentRequest(agent="n2"), metadata=fleet.admin)).agent
    assert ill.etag == back.etag
    (condition,) = ill.conditions
    assert (condition.type, condition.reason, condition.message, condition.blocks_placement) == (
        pb.AGENT_CONDITION_TYPE_QUARANTINED,
        "X",
        "m",
        True,
    )
    assert condition.since_time.ToJsonString() == "2026-01-02T00:00:00Z"
    first = await stub.ListAgents(pb.ListAgentsRequest(page_size=2), metadata=fleet.user)
    other_query = pb.ListAgentsRequest(page_token=first.next_page_token, filter='drained = "true"')
    assert (await failure(stub.ListAgents(other_query, metadata=fleet.user))).fields == ["page_token"]
    for call in (
        stub.GetAgent(pb.GetAgentRequest(agent="n9"), metadata=fleet.user),
        stub.DrainAgent(pb.DrainAgentRequest(agent="n9"), metadata=fleet.admin),
        stub.UndrainAgent(pb.UndrainAgentRequest(agent="n9"), metadata=fleet.admin),
    ):
        missing = await failure(call)
        assert (missing.code, missing.metadata) == (Code.NOT_FOUND, {"kind": "agent", "id": "n9"})


async def test_a_deadline_of_a_drain_is_shown_until_the_drain_ends(fleet: Fleet) -> None:
    await fleet.agents("n1")
    drain = partial(pb.DrainAgentRequest, agent="n1")
    bounded = (await fleet.stub.DrainAgent(drain(deadline=Duration(seconds=600)), metadata=fleet.admin)).agent
    left = bounded.drain_deadline_time.ToSeconds() - time.time()
    assert 500 < left <= 601
    unbounded = (await fleet.stub.DrainAgent(drain(), metadata=fleet.admin)).agent
    assert unbounded.drained
    assert not unbounded.HasField("drain_deadline_time")
    assert unbounded.etag != bounded.etag
    await fleet.stub.DrainAgent(drain(deadline=Duration()), metadata=fleet.admin)
    back = (await fleet.stub.UndrainAgent(pb.UndrainAgentRequest(agent="n1"), metadata=fleet.admin)).agent
    assert not back.HasField("drain_deadline_time")
    wrong = await failure(fleet.stub.DrainAgent(drain(deadline=Duration(seconds=-1)), metadata=fleet.admin))
    assert (wrong.code, wrong.fields) == (Code.INVALID_ARGUMENT, ["deadline"])


async def test_agents_are_removed_when_they_run_nothing_and_revoked_whatever_they_run(fleet: Fleet) -> None:
    await fleet.agents("n1", "n2")
    held = uuid.uuid4()
    async with fleet.service.database.transaction() as tx:
        tx.add(
            Session(
                id=held,
                name="held",
                owner="ada",
                project="default",
                resource_group="default",
                type="BATCH",
                cluster_mode="SINGLE_NODE",
                cluster_size=1,
                priority=50,
                state="RUNNING",
            )
        )
        await tx.flush()
        tx.add(
            Kernel(
                id=held,
                session_id=held,
                role="main",
                role_index=1,
                local_rank=0,
                hostname="main1",
                state="RUNNING",
                agent_id="n1",
                epoch=1,
            )
        )
        await tx.flush()
        tx.add(
            Attempt(kernel_id=held, epoch=1, session_id=held, agent_id="n1", term=1, goal="RUNNING", observed="RUNNING")
        )
    stale = await failure(fleet.stub.DeleteAgent(pb.DeleteAgentRequest(agent="n2", etag="old"), metadata=fleet.admin))
    assert stale.code is Code.ABORTED
    await fleet.stub.DeleteAgent(pb.DeleteAgentRequest(agent="n2"), metadata=fleet.admin)
    busy = await failure(fleet.stub.DeleteAgent(pb.DeleteAgentRequest(agent="n1"), metadata=fleet.admin))
    assert (busy.code, busy.reason) == (Code.FAILED_PRECONDITION, "IN_USE")
    await fleet.stub.RevokeAgent(pb.RevokeAgentRequest(agent="n1"), metadata=fleet.admin)
    assert not (await fleet.stub.ListAgents(pb.ListAgentsRequest(), metadata=fleet.admin)).agents
    gone = await failure(fleet.stub.RevokeAgent(pb.RevokeAgentRequest(agent="n1"), metadata=fleet.admin))
    assert gone.code is Code.NOT_FOUND
    async with fleet.service.database.transaction() as tx:
        conditions = (await tx.execute(text("SELECT conditions FROM session"))).scalar_one()
    assert [condition["type"] for condition in conditions] == ["AGENT_LOST"]


async def test_join_tokens(fleet: Fleet) -> None:
    made = await fleet.stub.CreateJoinToken(pb.CreateJoinTokenRequest(), metadata=fleet.admin)
    certificate = x509.load_pem_x509_certificate(fleet.service.authority.certificate)
    assert made.ca_fingerprint == hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).hexdigest()
    async with fleet.service.database.transaction() as tx:
        row = (
            await tx.execute(
                text("SELECT resource_group, agent_id, uses_left, expire_time - now() AS ttl FROM join_token")
            )
        ).one()
    assert (row.resource_group, row.agent_id, row.uses_left) == ("default", None, 1)
    assert 800 < row.ttl.total_seconds() <= 900
    missing = await failure(
        fleet.stub.CreateJoinToken(pb.CreateJoinTokenRequest(resource_group="x"), metadata=fleet.admin)
    )
    assert (missing.code, missing.metadata["kind"]) == (Code.NOT_FOUND, "resource_group")


async def test_the_ledger_is_verified(fleet: Fleet) -> None:
    await fleet.agents("n1")
    sound = await fleet.stub.VerifyLedger(pb.VerifyLedgerRequest(), metadata=fleet.admin)
    assert (list(sound.mismatches), sound.claims, sound.shares, sound.agents) == ([], 0, 0, 1)
    async with fleet.service.database.transaction() as tx:
        await tx.execute(
            text("""
                INSERT INTO claim (kernel_id, epoch, slot, agent_id, resource_group, owner, amount)
                VALUES ('00000000-0000-4000-8000-000000000001', 1, 'cpu', 'n1', 'default', 'ada', 5500)
            """)
        )
    found = await fleet.stub.VerifyLedger(pb.VerifyLedgerRequest(resource_group="default"), metadata=fleet.admin)
    assert found.claims == 1
    assert list(found.mismatches) == [
        pb.LedgerMismatch(
            kind=pb.LEDGER_KIND_CLAIM,
            resource_group="default",
            agent="n1",
            owner="ada",
            attempt_id="00000000-0000-4000-8000-000000000001.1",
            slot="cpu",
            recorded="5.5",
            derived="nothing",
        ),
        pb.LedgerMismatch(
            kind=pb.LEDGER_KIND_SHARE,
            resource_group="default",
            owner="ada",
            slot="cpu",
            recorded="nothing",
            derived="5.5",
        ),
        pb.LedgerMismatch(
            kind=pb.LEDGER_KIND_SHARE,
            resource_group="default",
            owner="ada",
            recorded="nothing",
            derived="5500/4000 of cpu, weight 1",
        ),
        pb.LedgerMismatch(
            kind=pb.LEDGER_KIND_CAPACITY,
            resource_group="default",
            agent="n1",
            slot="cpu",
            recorded="5.5",
            derived="4",
        ),
    ]
    missing = await failure(fleet.stub.VerifyLedger(pb.VerifyLedgerRequest(resource_group="x"), metadata=fleet.admin))
    assert (missing.code, missing.metadata["kind"]) == (Code.NOT_FOUND, "resource_group")


async def test_orphans_are_listed_and_ended(fleet: Fleet) -> None:
    await fleet.agents("n1")
    kernels = [uuid.UUID(int=number) for number in (1, 2, 3)]
    async with fleet.service.database.transaction() as tx:
        found = [ReportedOrphan(kernel, 1, None, "RUNNING") for kernel in kernels]
        assert await orphans.replace(tx, "n1", found) == set()
    stub = fleet.stub
    listed: list[pb.Orphan] = []
    request = pb.ListOrphansRequest(page_size=2)
    while True:
        page = await stub.ListOrphans(request, metadata=fleet.admin)
        listed += page.orphans
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    assert [(orphan.agent, orphan.attempt_id, orphan.end_requested) for orphan in listed] == [
        ("n1", f"{kernel}.1", False) for kernel in kernels
    ]
    ids = [f"{kernels[0]}.1"]
    for _ in range(2):
        ended = await stub.EndOrphans(pb.EndOrphansRequest(agent="n1", attempt_ids=ids), metadata=fleet.admin)
        assert list(ended.attempt_ids) == ids
    page = await stub.ListOrphans(pb.ListOrphansRequest(agent="n1"), metadata=fleet.admin)
    assert [orphan.end_requested for orphan in page.orphans] == [True, False, False]
    for unknown in (
        pb.EndOrphansRequest(agent="none"),
        pb.EndOrphansRequest(agent="n1", attempt_ids=[*ids, f"{kernels[0]}.2"]),
    ):
        assert (await failure(stub.EndOrphans(unknown, metadata=fleet.admin))).code is Code.NOT_FOUND
    ended = await stub.EndOrphans(pb.EndOrphansRequest(agent="n1"), metadata=fleet.admin)
    assert len(ended.attempt_ids) == 3


async def test_administrators_confirm_that_held_agents_are_lost(fleet: Fleet) -> None:
    stub, admin = fleet.stub, fleet.admin
    await fleet.agents("h1", "h2", "h3")
    async with fleet.service.database.transaction() as tx:
        await tx.execute(
            text("""
                UPDATE agent SET found_conditions = '[{"type": "LOSS_HELD", "reason": "", "message": "m",
                    "since": "2026-01-01T00:00:00+00:00", "blocks": true}]' WHERE id IN ('h1', 'h2')
            """)
        )

    async def confirm(*agent_ids: str, group: str = "") -> list[str]:
        request = pb.ConfirmLostAgentsRequest(agents=agent_ids, resource_group=group)
        return list((await stub.ConfirmLostAgents(request, metadata=admin)).agents)

    for agent_ids, group in ((["none"], ""), ([], "none"), (["h1", "none"], "default")):
        request = pb.ConfirmLostAgentsRequest(agents=agent_ids, resource_group=group)
        assert (await failure(stub.ConfirmLostAgents(request, metadata=admin))).code is Code.NOT_FOUND
    assert await confirm("h3", "h2") == ["h2"]
    assert await confirm(group="default") == ["h1"]
    assert await confirm("h1", "h1", "h2", group="default") == []
    async with fleet.service.database.transaction() as tx:
        targets = await nodes.read_targets(tx)
    assert {name: targets[name].hold.value for name in ("h1", "h2", "h3")} == {
        "h1": "CONFIRMED",
        "h2": "CONFIRMED",
        "h3": "",
    }
    shown = (await stub.GetAgent(pb.GetAgentRequest(agent="h1"), metadata=admin)).agent
    assert [(item.type, item.reason, item.message) for item in shown.conditions] == [
        (pb.AGENT_CONDITION_TYPE_LOSS_HELD, "CONFIRMED", "root confirmed that it is lost")
    ]


ADMIN_ONLY: list[tuple[str, Any]] = [
    ("DrainAgent", pb.DrainAgentRequest(agent="n1")),
    ("UndrainAgent", pb.UndrainAgentRequest(agent="n1")),
    ("RevokeAgent", pb.RevokeAgentRequest(agent="n1")),
    ("DeleteAgent", pb.DeleteAgentRequest(agent="n1")),
    ("CreateResourceGroup", pb.CreateResourceGroupRequest(resource_group=pb.ResourceGroup(name="g"))),
    ("UpdateResourceGroup", pb.UpdateResourceGroupRequest(resource_group=pb.ResourceGroup(name="default"))),
    ("DeleteResourceGroup", pb.DeleteResourceGroupRequest(name="default")),
    ("CreateJoinToken", pb.CreateJoinTokenRequest()),
    ("VerifyLedger", pb.VerifyLedgerRequest()),
    ("ConfirmLostAgents", pb.ConfirmLostAgentsRequest(agents=["n1"])),
    ("ListOrphans", pb.ListOrphansRequest()),
    ("EndOrphans", pb.EndOrphansRequest(agent="n1")),
    ("GetRouter", pb.GetRouterRequest(router="r1")),
    ("ListRouters", pb.ListRoutersRequest()),
    ("RevokeRouter", pb.RevokeRouterRequest(router="r1")),
]


@pytest.mark.attack("self-promotion")
@pytest.mark.parametrize(("method", "request_message"), ADMIN_ONLY, ids=[method for method, _ in ADMIN_ONLY])
async def test_users_do_not_administer(fleet: Fleet, method: str, request_message: Any) -> None:
    refused = await failure(getattr(fleet.stub, method)(request_message, metadata=fleet.user))
    assert (refused.code, refused.reason) == (Code.PERMISSION_DENIED, "METHOD_DENIED")


async def test_one_router(fleet: Fleet) -> None:
    unknown = await failure(fleet.stub.GetRouter(pb.GetRouterRequest(router="r1"), metadata=fleet.admin))
    assert (unknown.code, unknown.metadata) == (Code.NOT_FOUND, {"kind": "router", "id": "r1"})
    wanted = pb.CreateJoinTokenRequest(kind=NODE_KIND_ROUTER)
    secret = (await fleet.stub.CreateJoinToken(wanted, metadata=fleet.admin)).token
    async with fleet.service.database.transaction() as tx:
        await routers.enrol(tx, hash_secret(secret), "r1")
    for state in (pb.ROUTER_STATE_JOINING, pb.ROUTER_STATE_REVOKED):
        found = await fleet.stub.GetRouter(pb.GetRouterRequest(router="r1"), metadata=fleet.admin)
        assert (found.router.id, found.router.state) == ("r1", state)
        await fleet.stub.RevokeRouter(pb.RevokeRouterRequest(router="r1"), metadata=fleet.admin)


async def test_an_agent_of_another_build_says_so(fleet: Fleet) -> None:
    async def conditions(version: str) -> list[tuple[int, str]]:
        async with fleet.service.database.transaction() as tx:
            await tx.execute(text("UPDATE agent SET software_version = :version WHERE id = 'n3'"), {"version": version})
        agent = (await fleet.stub.GetAgent(pb.GetAgentRequest(agent="n3"), metadata=fleet.admin)).agent
        assert agent.version == version
        return [(condition.type, condition.message) for condition in agent.conditions]

    await fleet.agents("n3")
    own = software_version()
    assert await conditions(own) == []
    for other in (f"{own.partition('+')[0]}+g0123456789ab", "0.0.1"):
        ((kind, message),) = await conditions(other)
        assert kind == pb.AGENT_CONDITION_TYPE_VERSION_DIFFERS
        assert other in message
        assert own in message
