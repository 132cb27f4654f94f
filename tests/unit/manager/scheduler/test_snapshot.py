"""The columns of a pass: whose past usage and whose quotas count."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from retinue.manager.domain.scheduling.policy import Tier
from retinue.manager.domain.scheduling.records import AgentRecord, GroupRecord, PendingSession
from retinue.manager.domain.session.quota_subjects import Account, Subject
from retinue.manager.domain.session.runtime_features import FEATURES, needed, offered
from retinue.manager.scheduler.core import snapshot as snapshots
from retinue.manager.scheduler.core.cache import Cache, Limit
from retinue.manager.scheduler.core.snapshot import Endpoint, PastUsage, Snapshot
from retinue.manager.scheduling.columns import UNLIMITED, AgentPreferences
from retinue.manager.scheduling.fair_share import DAY_SECONDS
from tests.unit.manager.scheduler.waiting_sessions import AGENTS, waiting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

QUEUE = [waiting("ann"), waiting("ben", "q"), waiting("cem")]


def build(
    agents: Sequence[AgentRecord],
    held: Mapping[tuple[str, str], tuple[int, Mapping[str, int]]],
    queue: Sequence[PendingSession],
    weights: Mapping[str, int],
    *,
    past: PastUsage | None = None,
    limits: Mapping[Subject, Limit] | None = None,
    replicas: Mapping[Endpoint, Mapping[str, int]] | None = None,
    isolations: Sequence[str] = (),
) -> Snapshot:
    """A snapshot of group g; `held` is by owner and project, with the number of placed
    sessions and the amounts on the first agent.
    """
    cache = Cache.empty(offered, needed)
    cache.groups["g"] = GroupRecord("g", "drf", "concentrated", {}, weights, "", isolations)
    for row in agents:
        cache.agents.put(row)
    for (owner, project), (sessions, amounts) in held.items():
        cache.add_placed(Account("g", owner, project), sessions)
        for slot, amount in amounts.items():
            cache.add_claim("n0", Account("g", owner, project), slot, amount)
    for subject, limit in (limits or {}).items():
        cache.put_quota(subject, limit)
    cache.put_waiting(replace(row, sequence=number) for number, row in enumerate(queue, 1))
    return snapshots.snapshot_of(cache, "g", 0.0, past, replicas=replicas or {})


def test_without_past_usage_owners_are_in_order_of_arrival() -> None:
    snapshot = build(AGENTS, {("zoe", "p"): (1, {"cpu": 1})}, QUEUE, {})
    assert list(snapshot.owners.names) == ["ann", "ben", "cem", "zoe"]
    assert snapshot.owners.past_usage is None
    assert snapshot.queue.quotas is None


def test_past_usage_is_a_part_of_what_the_group_gives() -> None:
    whole = 4000 * 10 * DAY_SECONDS
    usage = {"ann": {"cpu": whole / 4}, "ben": {"cpu": whole / 8, "mem": 2048 * 10 * DAY_SECONDS / 8}}
    snapshot = build(AGENTS, {}, QUEUE, {}, past=PastUsage(usage, 10))
    assert list(snapshot.owners.names) == ["cem", "ann", "ben"]
    assert snapshot.owners.past_usage is not None
    assert snapshot.owners.past_usage.tolist() == pytest.approx([0.0, 1 / 8, 1 / 8])
    weighed = build(AGENTS, {}, QUEUE, {}, past=PastUsage(usage, 10, {"cpu": 1.0}))
    assert list(weighed.owners.names) == ["cem", "ben", "ann"]
    heavy = build(AGENTS, {}, QUEUE, {"ann": 4}, past=PastUsage(usage, 10, {"cpu": 1.0}))
    assert list(heavy.owners.names) == ["cem", "ann", "ben"]


def test_each_session_is_held_to_its_own_quotas() -> None:
    limits = {
        ("PROJECT", "q"): Limit({"cpu": 5000}, None),
        ("RESOURCE_GROUP", "g"): Limit({"disk": 1}, 9),
        ("USER", "ann"): Limit({"mem": 0}, None),
    }
    held = {("zoe", "q"): (1, {"cpu": 1000, "gone": 7}), ("yan", "p"): (2, {})}
    quotas = build(AGENTS, held, QUEUE, {}, limits=limits).queue.quotas
    assert quotas is not None
    assert list(quotas.of_sessions) == [(2, 1), (0, 1), (1,)]
    assert list(quotas.slots) == ["cpu", "mem"]
    assert quotas.limits.tolist() == [[5000, UNLIMITED], [UNLIMITED, UNLIMITED], [UNLIMITED, 0]]
    assert quotas.held.tolist() == [[1000, 0], [1000, 0], [0, 0]]
    assert quotas.session_limits.tolist() == [UNLIMITED, 9, UNLIMITED]
    assert quotas.sessions.tolist() == [1, 3, 0]


def test_images_need_a_backend_for_them_and_native_processes_another() -> None:
    agents = [
        replace(AGENTS[0], backends=["process", "docker"]),
        AGENTS[1],
        replace(AGENTS[1], id="n2", backends=["x"]),
    ]
    session = waiting("ann")
    main = json.loads(session.kernels or "")[0]
    kernels = json.dumps([main, {**main, "hostname": "sub1", "image": True, "isolation": "CONTAINER"}])
    session = replace(session, kernels=kernels, cluster_size=2)
    snapshot = build(agents, {}, [session], {})
    assert snapshot.agents.offers is not None
    assert snapshot.agents.offers.tolist() == [3, 1, 0]
    assert snapshot.queue.needs is not None
    assert snapshot.queue.needs.tolist() == [1, 2]


def test_what_a_session_wants_of_agents_comes_through() -> None:
    row = replace(waiting("ann"), failed_agents=["n1", "gone"], agents=["n0", "gone"], agents_strict=False)
    replica = replace(waiting("ben"), endpoint="e", replica_placement="PACK", architecture="aarch64")
    snapshot = build(AGENTS, {}, [row, replica, waiting("cem")], {}, replicas={("p", "e"): {"n1": 2, "gone": 1}})
    assert snapshot.queue.wishes == {
        0: AgentPreferences(designated=(0,), avoided=(1,)),
        1: AgentPreferences(endpoint=0, pack=True),
    }
    assert list(snapshot.queue.replicas) == [{1: 2}]
    assert snapshot.queue.architectures == {1: "aarch64"}


def test_strict_agents_that_are_away_are_waited_for() -> None:
    row = replace(waiting("ann"), agents=["gone"], agents_strict=True)
    why = build(AGENTS, {}, [row], {}).queue.held_back[0]
    assert (why.tier, why.code) == (Tier.SYSTEM, "NO_AGENT_AVAILABLE")
    assert "gone" in why.message


def test_sessions_with_the_same_kernels_share_them_also_after_others_are_gone() -> None:
    cache = Cache.empty(offered, needed)
    amounts: list[dict[str, Any]] = [{"cpu": 1000 + number // 2, "mem": 7} for number in range(3000)]
    rows = [replace(waiting("ann", **slots), sequence=number) for number, slots in enumerate(amounts)]
    cache.put_waiting(rows)
    assert cache.queue.kernel_count == 1500
    for number, row in enumerate(rows):
        if number % 3:
            cache.queue.remove(row.id)
    assert cache.queue.packed == 1
    cache.put_waiting([replace(waiting("ben", disk=1), sequence=9000)])
    kept = [*amounts[::3], {"disk": 1}]
    kernels, offsets = cache.queue.kernels_of(cache.queue.rows_of("g"))
    assert offsets.tolist() == list(range(len(kept) + 1))
    columns = {slot: cache.slots.column(slot) for slot in ("cpu", "mem", "disk")}
    found = cache.queue.requests[kernels]
    assert [{slot: int(row[at]) for slot, at in columns.items() if row[at]} for row in found] == kept


def test_agents_that_failed_may_be_written_as_null() -> None:
    none: Any = None
    row = replace(waiting("ann"), failed_agents=none, agents=["n1"])
    wishes = snapshots.wishes_of(row, {"n0": 0, "n1": 1}, {})
    assert wishes is not None
    assert (wishes.designated, wishes.avoided) == ((1,), ())


def kernels_of(*isolations: str, sftp: bool = False) -> PendingSession:
    """A session with a kernel of each isolation."""
    session = waiting("ann")
    main = json.loads(session.kernels or "")[0]
    kernels = [{**main, "hostname": f"k{rank}", "isolation": isolation} for rank, isolation in enumerate(isolations)]
    return replace(session, kernels=json.dumps(kernels), cluster_size=len(kernels), sftp=sftp)


def test_virtual_machines_need_an_agent_that_says_it_runs_them() -> None:
    agents = [
        replace(AGENTS[0], backends=["process", "docker", "vm"]),
        # An earlier snapshot says nothing of them, and no agent knows the others.
        replace(AGENTS[1], backends=["process", "VM", "vm ", "", "kata"]),
    ]
    snapshot = build(agents, {}, [kernels_of("VM", "CONTAINER", "PROCESS")], {})
    assert snapshot.agents.offers is not None
    assert snapshot.queue.needs is not None
    offers, needs = snapshot.agents.offers.tolist(), snapshot.queue.needs.tolist()
    assert [[offer & need == need for need in needs] for offer in offers] == [[True] * 3, [False, False, True]]
    assert [FEATURES[need.bit_length() - 1] for need in needs] == [
        "a runtime for virtual machines",
        "a runtime for containers",
        "a runtime for native processes",
    ]
    # With images is another thing.
    row = kernels_of("VM")
    of_image = replace(row, kernels=json.dumps([json.loads(row.kernels or "")[0] | {"image": True}]))
    agents.append(replace(AGENTS[0], id="n2", backends=["vm", "vm-images"]))
    snapshot = build(agents, {}, [of_image], {})
    assert snapshot.agents.offers is not None
    assert snapshot.queue.needs is not None
    (need,) = snapshot.queue.needs.tolist()
    assert [offer & need == need for offer in snapshot.agents.offers.tolist()] == [False, False, True]


def test_a_session_of_an_unknown_isolation_is_left_out() -> None:
    cache = Cache.empty(offered, needed)
    cache.put_waiting([kernels_of("ENCLAVE"), kernels_of("PROCESS")])
    assert cache.queue.rows_of("g").size == 1
    assert len(cache.unreadable) == 1


def test_sessions_wait_whose_isolation_their_group_no_longer_allows() -> None:
    rows = [
        kernels_of("CONTAINER"),
        kernels_of("CONTAINER", "VM"),
        kernels_of("PROCESS"),
        kernels_of("PROCESS", sftp=True),
        kernels_of("PROCESS", "VM"),
    ]
    assert not build(AGENTS, {}, rows, {}).queue.held_back
    held = build(AGENTS, {}, rows, {}, isolations=["CONTAINER"]).queue.held_back
    assert {row: (why.tier, why.code) for row, why in held.items()} == dict.fromkeys(
        (1, 2, 4), (Tier.POLICY, "ISOLATION_NOT_ALLOWED")
    )
    assert held[1].message == "resource group g does not allow virtual machines"
    assert held[4].message == "resource group g does not allow native processes and virtual machines"
    assert not build(AGENTS, {}, [], {}, isolations=["VM"]).queue.held_back


def test_agents_whose_addresses_are_of_two_families() -> None:
    """One that has said none may be of either."""
    addresses = ("192.0.2.1", "2001:db8::1", "")

    def families(*numbers: int) -> tuple[list[str], list[int]]:
        rows = [
            replace(AGENTS[0], id=f"n{number}", underlay_address=addresses[number], backends=["process"])
            for number in numbers
        ]
        agents = build(rows, {}, [], {}).agents
        assert agents.offers is not None
        return list(agents.families.values()), [
            sum(bool(offer & bit) for bit in agents.families) for offer in agents.offers.tolist()
        ]

    assert families(0, 1, 2) == (["IPv4", "IPv6"], [1, 1, 2])
    for alike in ((0, 2), (1, 2), (2,), ()):
        assert families(*alike) == ([], [0] * len(alike))
