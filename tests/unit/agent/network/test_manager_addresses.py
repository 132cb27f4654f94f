"""Names of managers are looked up again and again."""

from __future__ import annotations

from retinue.agent.network.node import ManagerAddresses


def test_what_names_mean_is_followed() -> None:
    meanings = {"a": {"192.0.2.1"}, "b": set[str]()}
    managers = ManagerAddresses(meanings, lambda host: meanings[host])
    assert managers.known == frozenset()
    assert managers.look()
    assert managers.known == {"192.0.2.1"}
    assert not managers.look()
    meanings.update(a={"192.0.2.7"}, b={"192.0.2.2", "2001:db8::2"})
    assert managers.look()
    assert managers.known == {"192.0.2.7", "192.0.2.2", "2001:db8::2"}


def test_a_name_server_that_does_not_answer_takes_nothing_away() -> None:
    meanings = {"a": {"192.0.2.1"}, "b": {"192.0.2.2"}}
    managers = ManagerAddresses(meanings, lambda host: meanings[host])
    managers.look()
    meanings.update(a=set())
    assert not managers.look()
    assert managers.known == {"192.0.2.1", "192.0.2.2"}


def test_an_address_is_its_own_meaning() -> None:
    managers = ManagerAddresses(["192.0.2.1"])
    assert managers.look()
    assert managers.known == {"192.0.2.1"}
