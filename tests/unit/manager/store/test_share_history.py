"""What a sample of shares is made of."""

from __future__ import annotations

from retinue.manager.store.placement.share_history import Holding, ShareKind, Subject, sampled

CAPACITY = {"cpu": 4000, "mem": 1000, "disk": 10}


def by_kind(found: dict[tuple[str, Subject], float], kind: ShareKind) -> dict[tuple[str, str], float]:
    return {(group, subject.name): share for (group, subject), share in found.items() if subject.kind is kind}


def test_shares_are_of_users_of_projects_and_of_the_group() -> None:
    found = sampled(
        {"default": CAPACITY, "gpu": {"cpu": 8000}},
        [
            Holding("default", "ada", "p", "cpu", 1000),
            Holding("default", "ada", "q", "cpu", 1000),
            Holding("default", "ada", "p", "mem", 100),
            Holding("default", "bob", "p", "mem", 500),
            Holding("gpu", "bob", "p", "cpu", 1000),
        ],
    )
    assert by_kind(found, ShareKind.USER) == {
        ("default", "ada"): 0.5,
        ("default", "bob"): 0.5,
        ("gpu", "bob"): 0.125,
    }
    assert by_kind(found, ShareKind.PROJECT) == {("default", "p"): 0.6, ("default", "q"): 0.25, ("gpu", "p"): 0.125}
    assert by_kind(found, ShareKind.RESOURCE_GROUP) == {("default", ""): 0.6, ("gpu", ""): 0.125}


def test_a_group_without_anything_is_sampled_too() -> None:
    assert sampled({"empty": {}}, []) == {("empty", Subject(ShareKind.RESOURCE_GROUP, "")): 0.0}


def test_what_counts_in_no_share_is_none() -> None:
    held = [Holding("default", "ada", "p", "disk", 5), Holding("default", "bob", "p", "cuda.device", 1)]
    assert by_kind(sampled({"default": CAPACITY}, held), ShareKind.USER) == {}


def test_a_share_may_be_above_one_when_nodes_have_gone() -> None:
    found = sampled({"default": {"cpu": 1000}}, [Holding("default", "ada", "p", "cpu", 3000)])
    assert by_kind(found, ShareKind.USER) == {("default", "ada"): 3.0}
