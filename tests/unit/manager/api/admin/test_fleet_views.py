"""Users see what they can have of the fleet, and nothing of who else has what."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp

from retinue.manager.api.admin.fleet_convert import agent_for_user, group_for_user, shares_for_user
from retinue.manager.v1 import fleet_service_pb2 as pb
from retinue.manager.v1.scheduling_policy_pb2 import FifoStrategy, SchedulingPolicy, SessionStrategy


def test_an_agent_is_its_state_and_its_size() -> None:
    condition = pb.AgentCondition(
        type=pb.AGENT_CONDITION_TYPE_OTHER, reason="Why", message="/var/lib is full", blocks_placement=True
    )
    agent = pb.Agent(
        id="a",
        resource_group="default",
        state=pb.AGENT_STATE_ALIVE,
        drained=True,
        address="10.0.0.7:7441",
        architecture="x86_64",
        capacity={"cpu": "8"},
        occupied={"cpu": "3"},
        kernels=3,
        version="1.2",
        etag="5",
        create_time=Timestamp(seconds=1),
        heartbeat_time=Timestamp(seconds=2),
        available_runtimes=["process"],
        conditions=[condition],
    )
    assert agent_for_user(agent) == pb.Agent(
        id="a",
        resource_group="default",
        state=pb.AGENT_STATE_ALIVE,
        drained=True,
        architecture="x86_64",
        capacity={"cpu": "8"},
        available_runtimes=["process"],
        conditions=[pb.AgentCondition(type=pb.AGENT_CONDITION_TYPE_OTHER, blocks_placement=True)],
    )


def test_a_group_has_the_roots_and_the_weight_of_the_caller() -> None:
    roots = [
        pb.MountRoot(path="/all", writable=True),
        pb.MountRoot(path="/ours", projects=["deep", "red"]),
        pb.MountRoot(path="/theirs", projects=["red"]),
    ]
    policy = SchedulingPolicy(session_strategy=SessionStrategy(fifo=FifoStrategy(max_tries_before_skip=3)))
    group = pb.ResourceGroup(name="g", owner_weights={"ada": 2, "bob": 7}, mount_roots=roots, scheduling_policy=policy)
    assert group_for_user(group, "ada", ("deep",)) == pb.ResourceGroup(
        name="g",
        owner_weights={"ada": 2},
        mount_roots=[pb.MountRoot(path="/all", writable=True), pb.MountRoot(path="/ours", projects=["deep"])],
        scheduling_policy=policy,
    )
    assert not group_for_user(group, "eve", ()).owner_weights


def test_shares_of_others_are_one_sum() -> None:
    own = pb.Share(owner="ada", weight=1, dominant_slot="cpu", numerator=1, denominator=4, held={"cpu": "2"})
    others = [
        pb.Share(owner="bob", held={"cpu": "1.5", "mem": "1g"}),
        pb.Share(owner="eve", held={"cpu": "0.5", "cuda.device": "1"}),
    ]
    seen = shares_for_user([others[0], own, others[1]], "ada")
    assert list(seen.shares) == [own]
    assert dict(seen.held_by_others) == {"cpu": "2", "mem": "1g", "cuda.device": "1"}
    assert "bob" not in str(seen)
