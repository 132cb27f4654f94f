"""External strategies get a pass as messages, and their answers are plain values."""

from __future__ import annotations

import numpy as np
from google.protobuf.duration_pb2 import Duration

from retinue.manager.domain.scheduling.policy import Tier
from retinue.manager.scheduler.external import convert
from retinue.manager.scheduling.columns import AgentPreferences, Agents, Explanation, Owners, Queue
from retinue.strategy.v1 import strategy_service_pb2 as pb

AGENTS = Agents(
    slots=("cpu", "mem"),
    ids=["n0", "n1"],
    capacity=np.array([[4000, 64], [2000, 32]]),
    used=np.array([[1000, 0], [2500, 0]]),
    schedulable=np.array([True, False]),
    architectures=["x86_64", "aarch64"],
    kernels=np.array([1, 3]),
)
OWNERS = Owners(names=["ann", "bob"], weights=np.array([1, 2]), held=np.array([[1000, 0], [2500, 0]]))
HELD_BACK = Explanation(Tier.POLICY, "HELD", "waits until it is released")
# Two kernels of the first session, one of each other; the third is held back, agents are nominated for the fourth.
QUEUE = Queue(
    ids=["a", "b", "c", "d"],
    owners=np.array([1, 0, 0, 0]),
    priorities=np.array([10, 20, 10, 10]),
    orders=np.arange(4),
    single_node=np.array([True, False, False, False]),
    offsets=np.array([0, 2, 3, 4, 5]),
    requests=np.array([[1000, 1], [2000, 2], [500, 0], [1, 1], [1, 1]]),
    tries=np.array([3, 0, 0, 0]),
    held_back={2: HELD_BACK},
    architectures={0: "aarch64"},
    wishes={0: AgentPreferences(designated=[1], strict=True)},
    waited=np.array([7, 8, 9, 10]),
    nominated={3: [0]},
)


def test_a_pass_becomes_the_sessions_that_may_be_tried_their_owners_and_agents() -> None:
    waiting = convert.waiting_sessions(AGENTS, OWNERS, QUEUE)
    assert waiting == [
        pb.WaitingSession(
            id="a",
            owner="bob",
            priority=10,
            kernels=[pb.Kernel(amounts=[1000, 1]), pb.Kernel(amounts=[2000, 2])],
            single_node=True,
            tries=3,
            waited=Duration(seconds=7),
            architecture="aarch64",
            agents=["n1"],
            agents_strict=True,
        ),
        pb.WaitingSession(
            id="b", owner="ann", priority=20, kernels=[pb.Kernel(amounts=[500, 0])], waited=Duration(seconds=8)
        ),
    ]
    assert convert.order_request("g", AGENTS, OWNERS, waiting) == pb.OrderSessionsRequest(
        resource_group="g",
        slots=["cpu", "mem"],
        capacity=[6000, 96],
        sessions=waiting,
        owners=[
            pb.Owner(name="ann", weight=1, held=[1000, 0]),
            pb.Owner(name="bob", weight=2, held=[2500, 0]),
        ],
    )
    first, second = convert.place_request("g", AGENTS, waiting).agents
    assert (first.id, list(first.free), first.schedulable, first.kernels) == ("n0", [3000, 64], True, 1)
    # An agent that shrank has nothing free, and never less.
    assert (second.id, list(second.free), second.schedulable, second.kernels) == ("n1", [0, 32], False, 3)


def test_priority_comes_before_the_order_of_a_strategy_and_what_it_left_out_comes_last() -> None:
    waiting = [pb.WaitingSession(id=name, priority=10 + 10 * (name == "z")) for name in "abcz"]
    assert [session.id for session in convert.in_order(waiting, ["c", "a", "z"])] == ["z", "c", "a", "b"]
    assert [session.id for session in convert.in_order(waiting, None)] == ["z", "a", "b", "c"]


def test_answers_become_plain_values() -> None:
    assert convert.order_of(pb.OrderSessionsResponse(session_ids=["b", "a"])) == ["b", "a"]
    placement = pb.Placement(session_id="a", agent_ids=["n0", "n0"])
    assert convert.placements_of(pb.PlaceSessionsResponse(placements=[placement])) == {"a": ["n0", "n0"]}
